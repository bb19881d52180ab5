"""Every storage operation of a life fails once, or for good, before or after its effect."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.restore import list_commits, restore_newest, verify_commit
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import OutlastError, StorageError, StoreUnreachable
from outlast.storage import Chunks, LocalStore, ObjectInfo, Store

T = TypeVar("T")
State = dict[str, NDArray[np.generic]]
Start = Callable[[Store, str], tuple[Attempt, CheckpointWriter]]


class FaultStore(Store):
    """A real folder whose n-th operation fails: with the effect or without it, once or for good."""

    retry_seconds = 0.02
    first_pause_seconds = 0.001

    def __init__(
        self, root: Path, *, fail_at: int, for_good: bool, after_effect: bool, error: type[StorageError]
    ) -> None:
        self.inner = LocalStore(root)
        self.url = self.inner.url
        self.count = 0
        self.fired = False
        self._fail_at = fail_at
        self._for_good = for_good
        self._after_effect = after_effect
        self._error = error

    def _failing(self) -> bool:
        self.count += 1
        failing = self.count >= self._fail_at if self._for_good else self.count == self._fail_at
        self.fired = self.fired or failing
        return failing

    def _do(self, action: Callable[[], T]) -> T:
        failing = self._failing()
        if failing and not self._after_effect:
            raise self._error("injected, before the effect")
        result = action()
        if failing:
            raise self._error("injected, after the effect")
        return result

    def read(self, name: str) -> bytes:
        return self._do(lambda: self.inner.read(name))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self._do(lambda: self.inner.read_range(name, start, length))

    def create(self, name: str, content: Chunks) -> None:
        self._do(lambda: self.inner.create(name, content))

    def replace(self, name: str, content: Chunks) -> None:
        self._do(lambda: self.inner.replace(name, content))

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return self._do(lambda: self.inner.list(prefix))

    def size_bytes(self, name: str) -> int:
        return self._do(lambda: self.inner.size_bytes(name))

    def delete(self, name: str) -> None:
        self._do(lambda: self.inner.delete(name))


def live(store: Store, start: Start, state: Callable[[int], State]) -> list[int]:
    """One life from claim to end; return the steps whose save was acknowledged."""
    done: list[int] = []
    try:
        attempt, writer = start(store, "second")
    except OutlastError:
        return done
    for step in (30, 40, 50):
        try:
            writer.save(step, state(step), wait=True)
            writer.rank([30])
            done.append(step)
        except OutlastError:
            assert writer.last_error is not None
    attempt.close()
    return done


def check_whole(root: Path, start: Start, state: Callable[[int], State], done: list[int]) -> None:
    """What must hold after any life: the newest step is right, everything listed can be read, one commit a
    step.
    """
    store = LocalStore(root)
    attempt, writer = start(store, "third")
    restored = restore_newest(store, attempt_number=attempt.number, report=lambda _: None)
    assert restored is not None
    assert restored.skipped == []
    assert restored.commit.step >= max([20, *done])
    for name, array in state(restored.commit.step).items():
        assert restored.arrays[name].dtype == array.dtype
        assert np.array_equal(restored.arrays[name], array)
    rows = [row for row in list_commits(store) if row.in_line]
    assert len(rows) >= 2
    assert len({row.step for row in rows}) == len(rows)
    assert [problem for row in rows for problem in verify_commit(store, row.name)] == []
    assert writer.save(60, state(60), wait=True)


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: flushing costs nothing there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


STRIDES = [pytest.param(1, marks=pytest.mark.long), 7]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("error", [StoreUnreachable, StorageError])
def test_a_failure_at_every_operation_costs_at_most_a_save(
    memory_folder: Path,
    save_steps: Callable[[Store, Sequence[int]], None],
    start: Start,
    state: Callable[[int], State],
    error: type[StorageError],
    for_good: bool,
    after_effect: bool,
    stride: int,
) -> None:
    template = memory_folder / "template"
    save_steps(LocalStore(template), [10, 20])
    fail_at, cases, fired = 1, 0, True
    while fired:
        root = memory_folder / f"case-{fail_at}"
        shutil.copytree(template, root)
        store = FaultStore(root, fail_at=fail_at, for_good=for_good, after_effect=after_effect, error=error)
        done = live(store, start, state)
        fired = store.fired
        if error is StoreUnreachable and not for_good:
            assert done == [30, 40, 50], f"one lost answer (operation {fail_at}) must cost nothing"
        check_whole(root, start, state, done)
        shutil.rmtree(root)
        fail_at += stride
        cases += 1
    assert cases * stride > 100
