"""Training and evaluating with whole words: masks from the stream's word starts, the same every time."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from outlast.models.config import ModelConfig, resolve_model
from outlast.models.randomness import fold, row_keys
from outlast.objectives.config import MASKED, MlmConfig
from outlast.objectives.mlm import make_objective
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.training.config import OptimizerConfig
from outlast.training.evaluate import HeldOutSource, evaluate_sources
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import initial_state
from outlast.training.step import make_evaluation_step, make_train_step
from support.datasets import SPECIAL_IDS, VOCAB_SIZE, write_counting_data

LENGTH, ROWS = 32, 4


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> TokenStream:
    folder = tmp_path_factory.mktemp("data")
    write_counting_data(LocalStore(folder), [[70, 30], [55, 100, 3]], has_words=True)
    config = StreamConfig(
        manifest=str(folder / "manifest.json"), sequence_length=LENGTH, global_batch_size=ROWS
    )
    return TokenStream(config, seed=0, word_starts=True)


def test_steps_and_evaluations_mask_whole_words(stream: TokenStream) -> None:
    model = ModelConfig(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32)
    encoder = resolve_model(model, vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS, sequence_length=LENGTH)
    objective = make_objective(encoder, MlmConfig(whole_words=True), special_ids=SPECIAL_IDS, remat="none")
    schedule = make_schedule(OptimizerConfig(), 10)
    optimizer = make_optimizer(OptimizerConfig(), schedule, decays(objective.param_table))
    state = partial(initial_state, objective.param_table, optimizer, 0)
    batch = stream.batch(0)
    expected = objective.mask(
        jnp.asarray(batch["input_ids"]),
        jnp.asarray(batch["attention_mask"]),
        fold(row_keys(0, "train", 0, jnp.arange(ROWS)), "masks"),
        jnp.asarray(batch["word_starts"]),
    )
    measured: list[Any] = []
    for num_microbatches in (1, 2):
        step = make_train_step(objective, optimizer, schedule, seed=0, num_microbatches=num_microbatches)
        measured.append(step(state(), batch)[1].terms[MASKED])
    assert float(measured[0].weight_sum) == float(measured[1].weight_sum) == float(expected.weights.sum())
    np.testing.assert_allclose(measured[0].loss_sum, measured[1].loss_sum, rtol=1e-5)

    evaluation_step = make_evaluation_step(objective, seed=0)
    results = [
        evaluate_sources(evaluation_step, state(), [HeldOutSource(None, stream.evaluation_batches())])
        for _ in range(2)
    ]
    assert results[0] == results[1]
    assert results[0] is not None
    assert results[0]["num_examples"] == stream.num_examples
    # Another batch size leaves every example its words: they are keyed by its index.
    alone = TokenStream(
        StreamConfig(manifest=stream.config.manifest, sequence_length=LENGTH, global_batch_size=3),
        seed=0,
        word_starts=True,
    )
    other = evaluate_sources(evaluation_step, state(), [HeldOutSource(None, alone.evaluation_batches())])
    assert other is not None
    assert other["num_predictions"] == results[0]["num_predictions"]
    assert other["loss"] == pytest.approx(results[0]["loss"], rel=1e-5)
