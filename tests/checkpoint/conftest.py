"""What the checkpoint tests share (``support.lives``), as fixtures: a clock of each test's own, machines,
states.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pytest

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.liveness import Clock, ProcessIdentity
from outlast.checkpoint.save import CheckpointWriter
from outlast.storage import Store
from support import lives


@pytest.fixture
def clock() -> Clock:
    return lives.FakeClock()


@pytest.fixture
def config() -> CheckpointConfig:
    return lives.CONFIG


@pytest.fixture
def machine() -> Callable[[str], ProcessIdentity]:
    """A process of another machine, of which nothing but its heartbeat is known."""
    return lives.process_on


@pytest.fixture
def state() -> Callable[[int], lives.Arrays]:
    return lives.arrays_of


@pytest.fixture
def claim(clock: Clock) -> Callable[[Store, str], Attempt]:
    return partial(lives.claim, clock=clock)


@pytest.fixture
def start(clock: Clock) -> Callable[[Store, str], tuple[Attempt, CheckpointWriter]]:
    return partial(lives.begin, clock=clock)


@pytest.fixture
def save_steps(
    start: Callable[[Store, str], tuple[Attempt, CheckpointWriter]],
) -> Callable[[Store, Sequence[int]], None]:
    """One whole life: an attempt that saves these steps and ends."""

    def build(store: Store, steps: Sequence[int]) -> None:
        attempt, writer = start(store, "first")
        for step in steps:
            writer.save(step, lives.arrays_of(step), wait=True)
        attempt.close()

    return build
