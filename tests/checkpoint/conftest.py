"""What the checkpoint tests share: a clock that only sleeping moves, machines that are elsewhere, small
states.
"""

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.process import Clock, ProcessIdentity
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.storage import Store

State = dict[str, NDArray[np.generic]]


class FakeClock(Clock):
    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return 1.8e9 + self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> Clock:
    return FakeClock()


@pytest.fixture
def config() -> CheckpointConfig:
    return CheckpointConfig(part_bytes=600)


@pytest.fixture
def machine() -> Callable[[str], ProcessIdentity]:
    """A process of another machine, of which nothing but its heartbeat is known."""

    def build(host: str) -> ProcessIdentity:
        return ProcessIdentity(host=host, pid=7, started="1", machine=None)

    return build


@pytest.fixture
def state() -> Callable[[int], State]:
    """The arrays of a step: several types and shapes, every value a function of the step."""

    def build(step: int) -> State:
        rng = np.random.default_rng(step)
        return {
            "params/embedding": rng.standard_normal((40, 8), dtype=np.float32),
            "params/bias": rng.standard_normal(5, dtype=np.float32),
            "params/half": rng.standard_normal((3, 4), dtype=np.float32).astype(ml_dtypes.bfloat16),
            "opt_state/count": np.array(step, dtype=np.int32),
            "opt_state/empty": np.zeros((0, 3), dtype=np.float16),
            "opt_state/flags": rng.integers(0, 2, 9).astype(np.bool_),
        }

    return build


@pytest.fixture
def claim(
    clock: Clock, config: CheckpointConfig, machine: Callable[[str], ProcessIdentity]
) -> Callable[[Store, str], Attempt]:
    """Claim a run from a machine of that name, without a heartbeat thread: each beat is the test's own."""

    def build(store: Store, host: str) -> Attempt:
        attempt = claim_attempt(
            store,
            config=config,
            clock=clock,
            process=machine(host),
            start_heartbeat=False,
            report=lambda _: None,
        )
        store.retry(attempt.beat)
        return attempt

    return build


@pytest.fixture
def start(
    claim: Callable[[Store, str], Attempt], config: CheckpointConfig
) -> Callable[[Store, str], tuple[Attempt, CheckpointWriter]]:
    """Claim, restore, record, and open a writer: what a training process does before its first step."""

    def build(store: Store, host: str) -> tuple[Attempt, CheckpointWriter]:
        attempt = claim(store, host)
        restored = restore_newest(store, attempt_number=attempt.number, report=lambda _: None)
        if restored:
            attempt.record_restored(restored.commit.step, restored.commit.name)
        else:
            attempt.record_restored(0)
        return attempt, CheckpointWriter(store, config, attempt, {"seed": 1}, {}, report=lambda _: None)

    return build


@pytest.fixture
def save_steps(
    start: Callable[[Store, str], tuple[Attempt, CheckpointWriter]], state: Callable[[int], State]
) -> Callable[[Store, Sequence[int]], None]:
    """One whole life: an attempt that saves these steps and ends."""

    def build(store: Store, steps: Sequence[int]) -> None:
        attempt, writer = start(store, "first")
        for step in steps:
            writer.save(step, state(step), wait=True)
        attempt.close()

    return build
