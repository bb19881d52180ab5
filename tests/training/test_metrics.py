"""What a run measures: rates, every step in a line, nothing that is not finite, no step lost to a store."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import pytest

from outlast.errors import RunError, StoreUnreachable
from outlast.logs import ProgressLine
from outlast.objectives.config import MASKED, MlmConfig
from outlast.objectives.loss import LossTerm
from outlast.storage import Chunks, LocalStore
from outlast.training.metrics import MetricsFile, Place, StepMeter
from outlast.training.step import Measured


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def measured(loss: float, grad_norm: float = 1.0) -> Measured:
    loss_sum, weight, correct, norm, rate = map(jnp.float32, (loss * 4.0, 4.0, 2.0, grad_norm, 0.1))
    return Measured({MASKED: LossTerm(loss_sum, weight, {"accuracy": correct})}, norm, rate)


def make_meter(folder: Path, clock: Clock, *, interval_steps: int = 2, start_step: int = 0) -> StepMeter:
    return StepMeter(
        MetricsFile(LocalStore(folder), 1, clock=clock),
        ProgressLine("training", 800, clock=clock),
        start_step=start_step,
        place_of=lambda step: Place(8 * step, 80 * step, step / 4, {}),
        interval_steps=interval_steps,
        report=MlmConfig().report,
        clock=clock,
    )


def lines(folder: Path) -> list[dict[str, float]]:
    found = sorted((folder / "metrics").glob("*.jsonl"))
    return [json.loads(line) for path in found for line in path.read_text().splitlines()]


def test_every_step_is_in_a_line_the_last_ones_too(tmp_path: Path) -> None:
    clock = Clock()
    meter = make_meter(tmp_path, clock)
    for step, loss in enumerate([5.0, 3.0, 2.0], start=1):
        clock.now += 2.0
        meter.record(step, measured(loss))
    meter.close()
    meter.file.close()
    first, last = lines(tmp_path)
    assert (first["step"], first["loss"], first["epoch"]) == (2, 4.0, 0.5)
    assert (last["step"], last["loss"]) == (3, 2.0)
    assert first["accuracy"] == 0.5


def test_an_evaluation_does_not_count_as_training_time(tmp_path: Path) -> None:
    clock = Clock()
    meter = make_meter(tmp_path, clock)
    clock.now += 2.0
    with meter.paused():
        clock.now += 100.0
    meter.record(1, measured(1.0))
    clock.now += 2.0
    meter.record(2, measured(1.0))
    meter.close()
    meter.file.close()
    assert lines(tmp_path)[0]["tokens_per_second"] == 2 * 80 / 4.0


def test_waiting_for_data_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    meter = make_meter(tmp_path, clock, interval_steps=1)

    def slow() -> str:
        clock.now += 3.0
        return "batch"

    assert meter.next_batch(iter(slow, None)) == "batch"
    clock.now += 1.0
    meter.record(1, measured(1.0))
    meter.close()
    meter.file.close()
    assert lines(tmp_path)[0]["waiting_share"] == 0.75


@pytest.mark.parametrize(("loss", "grad_norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_what_is_not_finite_stops_the_run_with_its_step(
    tmp_path: Path, loss: float, grad_norm: float
) -> None:
    meter = make_meter(tmp_path, Clock())
    meter.record(1, measured(1.0))
    meter.record(2, measured(loss, grad_norm))
    with pytest.raises(RunError, match=r"loss of step 2 is .*\n.*learning_rate"):
        meter.settle()


def test_a_store_that_fails_costs_no_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(LocalStore):
        def replace(self, name: str, content: Chunks) -> None:
            raise StoreUnreachable("The store is away.")

    file = MetricsFile(Failing(tmp_path), 1)
    file.write({"step": 1})
    file.close()
    assert "training goes on" in caplog.text
