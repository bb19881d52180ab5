"""Which evaluations belong to a run: those of the states in its line, whatever else lies in the folder; and
how they are ranked.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.lineage import CommitKey
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.objectives.config import MASKED, MlmConfig
from outlast.objectives.loss import LossTerm
from outlast.storage import LocalStore
from outlast.training.evaluate import HeldOutSource
from outlast.training.evaluations import RunEvaluations
from outlast.training.ranking import Ranking, read_evaluations
from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep

CONFIG = CheckpointConfig()
ONE = jnp.ones([])
BATCH = {"example_weights": np.ones(2)}


def masked(loss: Array) -> dict[str, LossTerm]:
    return {MASKED: LossTerm(loss, ONE, {"accuracy": ONE})}


class Life:
    """One attempt: restores, evaluates states whose loss is given, saves."""

    def __init__(self, store: LocalStore, attempt: Attempt, num_batches: int) -> None:
        restored = restore_newest(store, attempt_number=attempt.number)
        self.restored_step = restored.commit.step if restored else 0
        attempt.record_restored(self.restored_step, restored.commit.name if restored else None)
        self._writer = CheckpointWriter(store, CONFIG, attempt, identity={}, mesh={})
        self.evaluations = RunEvaluations(
            store,
            commit_of=attempt.commit_of,
            total_steps=12,
            interval_steps=4,
            evaluation_step=EvaluationStep(
                lambda params, model_state, batch: masked(params["loss"]), MlmConfig().report
            ),
            held_out=lambda step: [HeldOutSource(None, [BATCH] * num_batches)],
            ranking=Ranking(),
            stop=lambda: False,
            keep=self._writer.rank,
        )

    def evaluate(self, step: int, loss: float) -> None:
        params: dict[str, Any] = {"loss": jnp.float32(loss)}
        self.evaluations.make(step, TrainState(jnp.int32(step), params, {}, ()))

    def save(self, step: int) -> None:
        self._writer.save(step, {"params/x": np.zeros(1, np.float32)}, wait=True)


@contextmanager
def life(store: LocalStore, num_batches: int = 1) -> Generator[Life]:
    attempt = claim_attempt(store, config=CONFIG, report=lambda message: None)
    yield Life(store, attempt, num_batches)
    attempt.close()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def losses(store: LocalStore) -> dict[int, float]:
    return {step: fields["loss"] for step, fields in read_evaluations(store).items()}


def test_what_a_life_evaluated_that_left_no_commit_does_not_count(store: LocalStore) -> None:
    with life(store) as first:
        first.evaluate(4, 9.0)
    # Nothing is committed, so nothing tells whether this is the same recipe.
    with life(store) as second:
        assert second.evaluations.best_first == []
        assert second.evaluations.due(4)
        second.save(4)
    with life(store) as third:
        assert third.restored_step == 4
        assert third.evaluations.due(4), "owed by the second, whatever the first wrote for that step"
        third.evaluate(4, 2.0)
    assert losses(store) == {4: 2.0}


def test_what_lies_beyond_the_restored_step_is_evaluated_again(store: LocalStore) -> None:
    with life(store) as first:
        first.save(4)
        first.evaluate(4, 3.0)
        first.evaluate(8, 2.0)
    with life(store) as second:
        assert (second.evaluations.due(4), second.evaluations.due(8)) == (False, True)
        assert second.evaluations.best_first == [4]
        second.evaluate(8, 1.0)
        assert losses(store) == {4: 3.0, 8: 1.0}


def test_what_was_owed_is_made_once(store: LocalStore) -> None:
    with life(store) as first:
        first.save(4)
    with life(store) as second:
        second.evaluate(4, 3.0)
    with life(store) as third:
        assert not third.evaluations.due(4)
    assert losses(store) == {4: 3.0}


def test_a_replaced_writer_does_not_overwrite_what_its_successor_wrote(store: LocalStore) -> None:
    with life(store) as first:
        first.save(4)
    with life(store) as second:
        second.save(8)
        second.evaluate(8, 1.0)
        first.evaluate(8, 9.0)
        assert losses(store) == {8: 1.0}


@pytest.mark.parametrize("of_before", [False, True])
def test_a_changed_evaluation_is_said_and_counts_no_more(
    store: LocalStore, of_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of those that an earlier version wrote, without a digest, only the whole is read."""
    with life(store) as first:
        first.save(4)
        first.evaluate(4, 3.25)
    (path,) = (store.root / "evaluations").iterdir()
    if of_before:
        path.write_text(json.dumps(read_evaluations(store)[4], sort_keys=True) + "\n")
    assert losses(store) == {4: 3.25}
    whole = path.read_bytes()
    changes = range(0, 8 * len(whole), 1 if not of_before else 8 * len(whole))
    for bit in changes:
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert losses(store) == {}, (bit, bytes(changed))
    assert caplog.text.count("is no evaluation; it will be made again") == len(changes)
    path.rename(path.with_name("000000000003-1.json"))
    path.with_name("000000000003-1.json").write_bytes(whole)
    assert losses(store) == {}, "it is not that of its name"


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_neither_kept_nor_ranked(
    store: LocalStore, wrong: float, caplog: pytest.LogCaptureFixture
) -> None:
    losses = {10: 0.5, 20: wrong, 30: 0.4, 40: 0.3}
    rankings: list[list[int]] = []

    def held_out(step: int) -> list[HeldOutSource]:
        batch: dict[str, Any] = {"loss": losses[step], "example_weights": np.ones(1)}
        return [HeldOutSource(None, [batch])]

    evaluations = RunEvaluations(
        store,
        commit_of=lambda step: CommitKey(step, 1),
        total_steps=40,
        interval_steps=10,
        evaluation_step=EvaluationStep(
            lambda params, model_state, batch: masked(jnp.float32(batch["loss"])), MlmConfig().report
        ),
        held_out=held_out,
        ranking=Ranking(),
        stop=lambda: False,
        keep=rankings.append,
    )
    for step in losses:
        evaluations.make(step, TrainState(jnp.int32(step), {}, {}, ()))
    assert rankings == [[10], [30, 10], [40, 30, 10]]
    assert sorted(read_evaluations(store)) == [10, 30, 40]
    assert len(list(store.list("evaluations/"))) == 3
    assert f"step 20: the held-out loss is {wrong}" in caplog.text


def test_evaluations_of_other_examples_are_not_compared_and_that_is_said(
    store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    with life(store) as first:
        first.save(4)
        first.evaluate(4, 1.0)
        first.save(8)
        first.evaluate(8, 2.0)
        assert first.evaluations.best_first == [4, 8]
    assert "do not compare" not in caplog.text
    with life(store, num_batches=2) as second:
        second.evaluate(12, 9.0)
        assert second.evaluations.best_first == [12, 4, 8]
    assert "step 12 is evaluated on 4 examples, step 8 was on 2: the two do not compare" in caplog.text
