"""One update: microbatches change rounding only, a step repeats, a snapshot survives donation."""

from typing import Any

import jax
import numpy as np
import pytest

from outlast.errors import CheckpointError
from outlast.models.config import ModelConfig, resolve_model
from outlast.objectives.config import MASKED, NEXT_SENTENCE, MlmConfig
from outlast.objectives.loss import mean_loss
from outlast.objectives.mlm import make_objective
from outlast.training.config import OptimizerConfig
from outlast.training.evaluate import HeldOutSource, evaluate_sources
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import TrainState, initial_state, restore_state, restore_tree, snapshot
from outlast.training.step import TrainStep, make_evaluation_step, make_train_step

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCAB_SIZE, LENGTH = 60, 16


def make_parts(
    num_microbatches: int = 1, dropout: float = 0.1, *, next_sentence: bool = False
) -> tuple[TrainState, TrainStep, Any]:
    model = ModelConfig(
        architecture="bert" if next_sentence else "roberta",
        num_layers=2,
        hidden_size=16,
        num_heads=2,
        intermediate_size=32,
        dropout=dropout,
        attention_dropout=dropout,
    )
    encoder = resolve_model(
        model,
        vocab_size=VOCAB_SIZE,
        special_ids=SPECIAL_IDS,
        sequence_length=LENGTH,
        next_sentence=next_sentence,
    )
    masking = MlmConfig(next_sentence=next_sentence)
    objective = make_objective(encoder, masking, special_ids=SPECIAL_IDS, remat="none")
    config = OptimizerConfig(learning_rate=1e-2)
    schedule = make_schedule(config, 100)
    optimizer = make_optimizer(config, schedule, decays(objective.param_table))
    state = initial_state(objective.param_table, optimizer, 0)
    step = make_train_step(objective, optimizer, schedule, seed=0, num_microbatches=num_microbatches)
    return state, step, objective


def make_batch(seed: int, rows: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (rows, LENGTH)).astype(np.int32)
    mask = (np.arange(LENGTH) < rng.integers(4, LENGTH + 1, (rows, 1))).astype(np.int8)  # uneven rows
    return {
        "input_ids": np.where(mask, ids, 0).astype(np.int32),
        "attention_mask": mask,
        "next_sentence_label": (np.arange(rows) % 3 == 0).astype(np.int32),
    }


@pytest.mark.parametrize("next_sentence", [False, True])
def test_microbatches_change_rounding_only(next_sentence: bool) -> None:
    """The parts have unequal numbers of predictions, and equal numbers of rows: two means, two weights."""
    results: list[dict[str, Any]] = []
    for num_microbatches in (1, 4):
        state, step, _ = make_parts(num_microbatches, next_sentence=next_sentence)
        state, _ = step(state, make_batch(0))
        state, measured = step(state, make_batch(1))
        assert set(measured.terms) == {MASKED, *([NEXT_SENTENCE] if next_sentence else [])}
        results.append(snapshot(state))
        for name, term in measured.terms.items():
            results[-1] |= {f"{name} loss": term.loss_sum, f"{name} weight": term.weight_sum}
    for other in results[1:]:
        assert other["mlm weight"] == results[0]["mlm weight"]  # the same masks
        for name, value in results[0].items():
            np.testing.assert_allclose(other[name], value, rtol=2e-3, atol=2e-5, err_msg=name)


def test_a_step_repeats_to_the_last_bit() -> None:
    first, second = (
        snapshot(step(state, make_batch(0))[0]) for state, step, _ in (make_parts(), make_parts())
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_masks_differ_between_steps() -> None:
    state, step, _ = make_parts(dropout=0.0)
    frozen = snapshot(state)
    state, first = step(state, make_batch(0))
    again = restore_state({**frozen, "step": np.array(1, np.int32), **counts(frozen, 1)}, state)
    _, second = step(again, make_batch(0))
    assert float(mean_loss(first.terms)) != float(mean_loss(second.terms))


def test_kernels_of_an_older_shape_are_restored() -> None:
    """Checkpoints held the products of a kernel side by side before they had an axis of their own."""
    whole = np.arange(2 * 4 * 3 * 5, dtype=np.float32).reshape(2, 4, 3, 5)
    template = {"kernel": np.zeros_like(whole)}
    restored = restore_tree({"kernel": whole.reshape(2, 4, 15)}, template)
    assert np.array_equal(restored["kernel"], whole)
    with pytest.raises(CheckpointError, match="kernel"):
        restore_tree({"kernel": whole.reshape(4, 2, 15)}, template)


def counts(arrays: dict[str, Any], value: int) -> dict[str, Any]:
    return {name: np.array(value, np.int32) for name in arrays if name.endswith("/count")}


def test_the_step_counts_and_the_loss_falls() -> None:
    state, step, _ = make_parts(dropout=0.0)
    losses: list[float] = []
    for _ in range(60):
        state, measured = step(state, make_batch(0))
        losses.append(float(mean_loss(measured.terms)))
    assert int(state.step) == 60
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3


def test_a_snapshot_does_not_change_when_the_state_is_donated() -> None:
    state, step, _ = make_parts()
    before = snapshot(state)
    copies = {name: value.copy() for name, value in before.items()}
    for seed in range(3):
        state, _ = step(state, make_batch(seed))
    assert all(np.array_equal(before[name], copies[name]) for name in before)
    assert not np.array_equal(snapshot(state)["params/embeddings/word"], before["params/embeddings/word"])


def test_a_restored_state_goes_on_bit_for_bit() -> None:
    state, step, _ = make_parts()
    state, _ = step(state, make_batch(0))
    arrays = snapshot(state)
    unbroken = snapshot(step(state, make_batch(1))[0])
    fresh, fresh_step, _ = make_parts()
    resumed = snapshot(fresh_step(restore_state(arrays, fresh), make_batch(1))[0])
    assert list(unbroken) == list(resumed)
    assert all(np.array_equal(unbroken[name], resumed[name]) for name in unbroken)


def test_restoring_copies_the_arrays_and_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Each compilation would delay every start. Nothing else has compiled for these shapes."""
    arrays = {"a": np.zeros((64, 53), np.float32), "b": np.zeros((64, 59), np.int32)}
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        jax.jit(lambda x: x * 2)(np.zeros((64, 61)))
        assert "Compiling" in caplog.text  # jax does say it
        caplog.clear()
        restored = restore_tree(arrays, arrays)
        assert "Compiling" not in caplog.text
    for name, value in arrays.items():
        value += 1
        assert not np.any(restored[name])


def test_every_array_left_out_of_a_checkpoint_is_noticed() -> None:
    state, step, _ = make_parts()
    arrays = snapshot(step(state, make_batch(0))[0])
    template = jax.eval_shape(lambda: make_parts()[0])
    for name in arrays:
        with pytest.raises(CheckpointError, match=f"{name} is missing"):
            restore_state({other: value for other, value in arrays.items() if other != name}, template)
    for stale in counts(arrays, 0):
        with pytest.raises(CheckpointError, match=r"count is 0, its step 1"):
            restore_state({**arrays, stale: np.array(0, np.int32)}, template)


def test_an_evaluation_repeats_and_ignores_the_rows_that_fill_up() -> None:
    state, _, objective = make_parts()
    step = make_evaluation_step(objective, seed=0)

    def batches(size: int) -> list[dict[str, Any]]:
        whole = make_batch(3, rows=12)
        made: list[dict[str, Any]] = []
        for first in range(0, 12, size):
            rows = np.arange(first, first + size)
            real = rows < 12
            picked = np.where(real, rows, 0)
            made.append(
                {
                    **{name: value[picked] for name, value in whole.items()},
                    "example_index": picked.astype(np.int32),
                    "example_weights": real.astype(np.float32),
                }
            )
        return made

    def held_out(size: int) -> list[HeldOutSource]:
        return [HeldOutSource(None, batches(size))]

    even, again, uneven = (evaluate_sources(step, state, held_out(size)) for size in (4, 4, 8))
    assert even == again
    assert even is not None
    assert uneven is not None
    assert uneven["num_examples"] == 12
    assert uneven["num_predictions"] == even["num_predictions"]
    assert uneven["loss"] == pytest.approx(even["loss"], rel=1e-5)
    assert evaluate_sources(step, state, held_out(4), stop=lambda: True) is None
