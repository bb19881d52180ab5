"""The evaluations of a run: which are kept, and how they are ranked."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from outlast.storage import LocalStore
from outlast.training.evaluate_sources import HeldOutSource
from outlast.training.evaluations import RunEvaluations, read_evaluations
from outlast.training.state import TrainState
from outlast.training.step import Batch, Measured


def evaluate_batch(params: Any, model_state: Any, batch: Batch) -> Measured:
    zero = jnp.float32(0)
    return Measured(jnp.float32(batch["loss"]), jnp.float32(1), zero, zero, zero, {})


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_neither_kept_nor_ranked(
    tmp_path: Path, wrong: float, caplog: pytest.LogCaptureFixture
) -> None:
    losses = {10: 0.5, 20: wrong, 30: 0.4, 40: 0.3}
    rankings: list[list[int]] = []
    store = LocalStore(tmp_path)

    def held_out(step: int) -> list[HeldOutSource]:
        batch: dict[str, Any] = {"loss": losses[step], "example_weights": np.ones(1)}
        return [HeldOutSource(None, [batch])]

    evaluations = RunEvaluations(
        store,
        total_steps=40,
        interval_steps=10,
        evaluation_step=evaluate_batch,
        held_out=held_out,
        stop=lambda: False,
        keep=rankings.append,
    )
    for step in losses:
        evaluations.make(step, TrainState(jnp.int32(step), {}, {}, ()))
    assert rankings == [[10], [30, 10], [40, 30, 10]]
    assert sorted(read_evaluations(store)) == [10, 30, 40]
    assert len(list((tmp_path / "evaluations").iterdir())) == 3
    assert f"step 20: the held-out loss is {wrong}" in caplog.text
