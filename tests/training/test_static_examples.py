"""Training on static examples: the loss is that of the masks the records hold, and of no others."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.interchange.import_tfrecord import ImportConfig, import_tfrecord
from outlast.models.config import FAMILIES, ModelConfig, resolve_model
from outlast.models.randomness import fold, row_keys
from outlast.objectives.config import MASKED, MlmConfig
from outlast.objectives.mlm import MlmObjective, given_masks, make_objective
from outlast.recipe import make_recipe
from outlast.run.assemble import assemble
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.training.config import OptimizerConfig
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import initial_state
from outlast.training.step import make_evaluation_step, make_train_step
from support.datasets import SPECIAL_IDS
from support.records import VOCAB_SIZE, masked_rows, pair_rows, write_bert_file, write_tokenizer_folder

LENGTH, ROWS = 32, 8


def make_parts() -> tuple[MlmObjective, Any, Any]:
    """Objective, compiled step, and the state before it."""
    model = ModelConfig(
        architecture="bert",
        num_layers=1,
        hidden_size=16,
        num_heads=2,
        intermediate_size=32,
        dropout=0.0,
        attention_dropout=0.0,
    )
    encoder = resolve_model(model, vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS, sequence_length=LENGTH)
    objective = make_objective(encoder, MlmConfig(), special_ids=SPECIAL_IDS, remat="none")
    schedule = make_schedule(OptimizerConfig(), 10)
    optimizer = make_optimizer(OptimizerConfig(), schedule, decays(objective.param_table))
    step = make_train_step(objective, optimizer, schedule, seed=0, num_microbatches=1)
    return objective, step, partial(initial_state, objective.param_table, optimizer, 0)


@pytest.fixture(scope="module")
def parts() -> tuple[MlmObjective, Any, Any]:
    return make_parts()


def measure(parts: tuple[MlmObjective, Any, Any], batch: dict[str, Any]) -> tuple[float, float, float]:
    """Loss, weight and gradient norm of the first step."""
    _, step, state = parts
    _, measured = step(state(), batch)
    term = measured.terms[MASKED]
    return float(term.loss_sum), float(term.weight_sum), float(measured.grad_norm)


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> TokenStream:
    folder = tmp_path_factory.mktemp("records")
    write_bert_file(folder / "f.tfrecord", masked_rows(ROWS))
    url = import_tfrecord(
        [str(folder / "f.tfrecord")],
        str(folder / "data"),
        ImportConfig(),
        tokenizer=str(write_tokenizer_folder(folder / "tokenizer")),
        num_processes=1,
    )
    return TokenStream(StreamConfig(manifest=url, sequence_length=LENGTH, global_batch_size=ROWS), seed=0)


def test_records_train_with_the_masks_they_have(
    imported: TokenStream, parts: tuple[MlmObjective, Any, Any]
) -> None:
    given = masked_rows(ROWS)
    found = measure(parts, imported.examples(np.arange(ROWS)))
    assert found == measure(parts, given)
    assert found[1] == given["masked_weights"].sum()
    other = {**given, "masked_ids": (given["masked_ids"] + 1) % VOCAB_SIZE}
    assert found[0] != measure(parts, other)[0]


def test_the_loss_is_that_of_the_same_masks_made_on_the_device(
    parts: tuple[MlmObjective, Any, Any],
) -> None:
    """What the device would have drawn, given as a static example, costs the same."""
    objective, _, state = parts
    params = state().params
    rows = {name: jax.numpy.asarray(array) for name, array in pair_rows(ROWS).items()}
    keys = row_keys(0, "train", 0, jax.numpy.arange(ROWS))
    loss = jax.jit(lambda batch: objective.loss(params, {}, batch, row_keys=keys, train=False).terms[MASKED])
    drawn = loss(rows)
    masked = objective.mask(rows["input_ids"], rows["attention_mask"], fold(keys, "masks"))
    static = {
        **rows,
        "input_ids": masked.input_ids,
        "masked_positions": masked.positions,
        "masked_ids": masked.labels,
        "masked_weights": masked.weights,
    }
    given = loss(static)
    np.testing.assert_allclose(given.loss_sum, drawn.loss_sum, rtol=1e-6)
    assert float(given.weight_sum) == float(drawn.weight_sum) > 0


def test_an_evaluation_counts_each_record_once(
    imported: TokenStream, parts: tuple[MlmObjective, Any, Any]
) -> None:
    objective, _, state = parts
    evaluation_step = make_evaluation_step(objective, seed=0)
    config = replace(imported.config, global_batch_size=3)
    batches = list(TokenStream(config, seed=0).evaluation_batches())
    assert [len(batch["input_ids"]) for batch in batches] == [3, 3, 3]
    params = state().params
    weight = sum(float(evaluation_step.terms_of(params, {}, batch)[MASKED].weight_sum) for batch in batches)
    assert weight == masked_rows(ROWS)["masked_weights"].sum()


def test_fixed_examples_tell_no_words(imported: TokenStream) -> None:
    with pytest.raises(ConfigError, match=r"it holds fixed examples\.[\s\S]*prepare the data from text"):
        TokenStream(imported.config, seed=0, word_starts=True)


def test_another_number_of_predictions_is_refused() -> None:
    batch = {name: jax.numpy.asarray(array) for name, array in masked_rows(ROWS).items()}
    with pytest.raises(ConfigError, match=r"5 predictions each, the recipe 7[\s\S]*set it to 5"):
        given_masks(batch, MlmConfig(max_predictions=7))
    assert given_masks(batch, MlmConfig(max_predictions=5)).labels.shape == (ROWS, 5)


@pytest.mark.parametrize(
    ("highest", "refused"),
    [(0, []), (1, ["roberta", "modernbert"]), (2, ["roberta", "modernbert", "bert", "bigbird"])],
)
def test_a_model_without_the_token_types_is_refused(tmp_path: Path, highest: int, refused: list[str]) -> None:
    """A type that a model has no row for is NaN, or nothing. Types of 0 alone are for every model."""
    rows = masked_rows(ROWS)
    rows["token_type_ids"] *= highest
    write_bert_file(tmp_path / "f.tfrecord", rows)
    url = import_tfrecord(
        [str(tmp_path / "f.tfrecord")],
        str(tmp_path / "data"),
        ImportConfig(),
        tokenizer=str(write_tokenizer_folder(tmp_path / "tokenizer")),
        num_processes=1,
    )
    for architecture in FAMILIES:
        stream = {"manifest": url, "sequence_length": LENGTH, "global_batch_size": ROWS}
        model = {"architecture": architecture, "preset": "tiny"}
        recipe = make_recipe({"stream": stream, "model": model}, where="test")
        if architecture not in refused:
            assemble(recipe)
            continue
        with pytest.raises(
            ConfigError, match=f"have {highest + 1} token types[\\s\\S]*--as tokens"
        ) as caught:
            assemble(recipe)
        assert f"{highest + 1} or more" in str(caught.value)
