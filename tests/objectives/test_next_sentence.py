"""Next-sentence prediction: what it adds to the loss, where it is refused, and that parts of a batch add
up."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.models.config import ModelConfig, resolve_model
from outlast.models.params import flatten, init_params
from outlast.models.randomness import row_keys
from outlast.objectives.config import MASKED, NEXT_SENTENCE, MlmConfig
from outlast.objectives.loss import LossOutput
from outlast.objectives.mlm import MlmObjective, make_objective

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCAB_SIZE, LENGTH, ROWS = 60, 16, 6


def objective(config: MlmConfig, *, next_sentence: bool = True) -> MlmObjective:
    model = resolve_model(
        ModelConfig(architecture="bert", num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32),
        vocab_size=VOCAB_SIZE,
        special_ids=SPECIAL_IDS,
        sequence_length=LENGTH,
        next_sentence=next_sentence,
    )
    return make_objective(model, config, special_ids=SPECIAL_IDS)


BOTH = objective(MlmConfig(next_sentence=True))
ALONE = objective(MlmConfig(), next_sentence=False)
PARAMS = init_params(BOTH.param_table, 3)


def make_batch() -> dict[str, Any]:
    """Pairs of uneven length, so that every row has another number of predictions."""
    rng = np.random.default_rng(0)
    real = np.arange(LENGTH) < rng.integers(5, LENGTH + 1, (ROWS, 1))
    ids = np.where(real, rng.integers(5, VOCAB_SIZE, (ROWS, LENGTH)), 0).astype(np.int32)
    return {
        "input_ids": ids,
        "attention_mask": real.astype(np.int8),
        "token_type_ids": (real & (np.arange(LENGTH) > 3)).astype(np.int8),
        "next_sentence_label": rng.integers(0, 2, ROWS).astype(np.int32),
    }


@partial(jax.jit, static_argnames="which")
def _loss(params: Any, batch: Any, keys: Any, which: MlmObjective) -> LossOutput:
    return which.loss(params, {}, batch, row_keys=keys, train=False)


def loss(batch: dict[str, Any], which: MlmObjective = BOTH, params: Any = PARAMS) -> LossOutput:
    keys = row_keys(0, "train", 0, jnp.arange(len(batch["input_ids"])))
    return _loss(params, {name: jnp.asarray(value) for name, value in batch.items()}, keys, which)


def test_masked_language_modelling_beside_it_stays_as_it_is() -> None:
    both = loss(make_batch())
    alone = loss(make_batch(), ALONE, {name: PARAMS[name] for name in ("embeddings", "layers", "head")})
    assert flatten(ALONE.param_table).keys() < flatten(BOTH.param_table).keys()
    assert (list(both.terms), list(alone.terms)) == ([MASKED, NEXT_SENTENCE], [MASKED])
    assert both.terms[MASKED] == alone.terms[MASKED]
    term = both.terms[NEXT_SENTENCE]
    assert float(term.weight_sum) == ROWS
    assert float(term.loss_sum) / ROWS == pytest.approx(np.log(2), abs=0.1)  # untrained: a coin


def test_a_label_that_is_wrong_costs_what_the_logits_say() -> None:
    batch = make_batch()
    turned = {**batch, "next_sentence_label": 1 - batch["next_sentence_label"]}
    right, wrong = (loss(case).terms[NEXT_SENTENCE] for case in (batch, turned))
    assert float(right.scores["accuracy"]) + float(wrong.scores["accuracy"]) == ROWS
    assert float(right.loss_sum) != float(wrong.loss_sum)


def test_rows_that_fill_up_weigh_nothing() -> None:
    batch = make_batch()
    weights = np.array([1, 0, 1, 0, 0, 1], np.float32)
    some = loss({**batch, "example_weights": weights}).terms[NEXT_SENTENCE]
    # The same rows with their own labels, the others' labels turned: nothing may change.
    turned = np.where(weights == 0, 1 - batch["next_sentence_label"], batch["next_sentence_label"])
    again = loss({**batch, "example_weights": weights, "next_sentence_label": turned.astype(np.int32)})
    assert float(some.weight_sum) == 3
    assert some == again.terms[NEXT_SENTENCE]


@pytest.mark.parametrize("which", [BOTH, ALONE])
def test_the_weights_are_known_without_the_model(which: MlmObjective) -> None:
    batch = {**make_batch(), "example_weights": np.array([1, 1, 0.5, 0, 1, 2], np.float32)}
    keys = row_keys(0, "train", 0, jnp.arange(ROWS))
    found = which.weight_sums({name: jnp.asarray(value) for name, value in batch.items()}, row_keys=keys)
    params = PARAMS if which is BOTH else {name: PARAMS[name] for name in ALONE.param_table}
    terms = loss(batch, which, params).terms
    assert found == {name: term.weight_sum for name, term in terms.items()}


def test_examples_without_labels_are_refused() -> None:
    batch = make_batch()
    del batch["next_sentence_label"]
    with pytest.raises(ConfigError, match=r"next_sentence_label in the data set"):
        loss(batch)


def test_a_model_without_the_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="without a next-sentence head"):
        objective(MlmConfig(next_sentence=True), next_sentence=False)
    for architecture in ("roberta", "modernbert"):
        with pytest.raises(ConfigError, match=f"A {architecture} model has no next-sentence head"):
            resolve_model(
                ModelConfig(architecture=architecture, preset="tiny"),
                vocab_size=VOCAB_SIZE,
                special_ids=SPECIAL_IDS,
                sequence_length=LENGTH,
                next_sentence=True,
            )
