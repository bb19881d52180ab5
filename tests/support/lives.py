"""A life of a run without a model: claim, restore, record, save with retention, end. And what must hold after
any life, however it went.

In: a store, a name for the machine. Out: the steps that were acknowledged. The clock moves only by sleeping.
"""

import contextlib
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.liveness import Clock, ProcessIdentity
from outlast.checkpoint.restore import list_commits, restore_newest, verify_commit
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import OutlastError
from outlast.storage import Store

Arrays = dict[str, NDArray[np.generic]]
CONFIG = CheckpointConfig(part_bytes=600)


class FakeClock(Clock):
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> float:
        return 1.8e9 + self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def process_on(host: str) -> ProcessIdentity:
    """Return a process of another machine, of which nothing but its heartbeat is known."""
    return ProcessIdentity(host=host, pid=7, started="1", machine=None)


def arrays_of(step: int) -> Arrays:
    """Return the arrays of a step: several types and shapes, every value a function of the step."""
    rng = np.random.default_rng(step)
    return {
        "params/embedding": rng.standard_normal((40, 8), dtype=np.float32),
        "params/bias": rng.standard_normal(5, dtype=np.float32),
        "params/half": rng.standard_normal((3, 4), dtype=np.float32).astype(ml_dtypes.bfloat16),
        "opt_state/count": np.array(step, dtype=np.int32),
        "opt_state/empty": np.zeros((0, 3), dtype=np.float16),
        "opt_state/flags": rng.integers(0, 2, 9).astype(np.bool_),
    }


def claim(store: Store, host: str, clock: Clock | None = None) -> Attempt:
    """Claim a run from a machine of that name, without a heartbeat thread: each beat is the test's own."""
    attempt = claim_attempt(
        store,
        config=CONFIG,
        clock=clock or FakeClock(),
        process=process_on(host),
        start_heartbeat=False,
        report=lambda _: None,
    )
    store.retry(attempt.beat)
    return attempt


def begin(store: Store, host: str, clock: Clock | None = None) -> tuple[Attempt, CheckpointWriter]:
    """Claim, restore, record, and open a writer: what a training process does before its first step."""
    attempt = claim(store, host, clock)
    restored = restore_newest(store, attempt_number=attempt.number, report=lambda _: None)
    if restored:
        check_arrays(restored.arrays, restored.commit.step)
        attempt.record_restored(restored.commit.step, restored.commit.name)
    else:
        attempt.record_restored(0)
    return attempt, CheckpointWriter(store, CONFIG, attempt, {"seed": 1}, {}, report=lambda _: None)


def live(store: Store, steps: Sequence[int] = (30, 40, 50), host: str = "second") -> list[int]:
    """One life from claim to end; return the steps whose save was acknowledged."""
    done: list[int] = []
    with contextlib.suppress(OutlastError):
        attempt, writer = begin(store, host)
        for step in steps:
            try:
                writer.save(step, arrays_of(step), wait=True)
                writer.rank([steps[0]])
                done.append(step)
            except OutlastError:
                assert writer.last_error is not None
        attempt.close()
    return done


def check_whole(store: Store, acknowledged: int, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """What must hold after any life, and with another one after it: the newest step is at least the one that
    was acknowledged and right to the bit, everything listed can be read, one commit a step, and it goes on.

    Args:
        meanwhile: happens once the other life has restored and recorded.
    """
    attempt, writer = begin(store, "third")
    meanwhile()
    restored = restore_newest(store, attempt_number=attempt.number, report=lambda _: None)
    assert restored is not None
    assert restored.skipped == []
    assert restored.commit.step >= acknowledged
    check_arrays(restored.arrays, restored.commit.step)
    rows = [row for row in list_commits(store) if row.in_line]
    assert len(rows) >= 2
    assert len({row.step for row in rows}) == len(rows)
    assert [problem for row in rows for problem in verify_commit(store, row.name)] == []
    assert writer.save(60, arrays_of(60), wait=True)


def check_arrays(arrays: Arrays, step: int) -> None:
    """Check that arrays are those of a step, to the bit."""
    expected = arrays_of(step)
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].tobytes() == array.tobytes(), f"{name} is not that of step {step}"
