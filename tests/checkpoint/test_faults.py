"""Every storage operation of a life fails once, or for good: with its effect, without, late, twice, on a full
disk.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest

from outlast.errors import OutlastError, StorageError, StoreUnreachable
from outlast.storage import Chunks, LocalStore, ObjectInfo, Store, local
from outlast.storage.regular import MOST_BYTES
from support.lives import check_whole, live

T = TypeVar("T")

Landing = Literal["soon", "after the end", "in the next life"]
_SOON = 4

_FAR_AHEAD = 10**9


class FaultyStore(Store):
    """A real folder on which some operations fail. ``failing(n)`` says whether the n-th does."""

    first_pause_seconds = 0.001

    def __init__(self, root: Path, failing: Callable[[int], bool]) -> None:
        # Asked until it answers again, however slow the machine is; a store that never does costs little.
        self.retry_seconds = 0.02 if failing(_FAR_AHEAD) else 60.0
        self.inner = LocalStore(root)
        self.url = self.inner.url
        self.count = 0
        self.fired = 0
        self._failing = failing

    def fails_now(self) -> bool:
        self.count += 1
        failing = self._failing(self.count)
        self.fired += failing
        return failing

    def ask(self, action: Callable[[], T]) -> T:
        return action()

    def change(self, action: Callable[[], None]) -> None:
        self.ask(action)

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        return self.ask(lambda: self.inner.read(name, most_bytes))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        return self.ask(lambda: self.inner.read_range(name, start, length))

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return self.ask(lambda: self.inner.list(prefix))

    def size_bytes(self, name: str) -> int:
        return self.ask(lambda: self.inner.size_bytes(name))

    def create(self, name: str, content: Chunks) -> None:
        copied = [bytes(chunk) for chunk in content]
        self.change(lambda: self.inner.create(name, copied))

    def replace(self, name: str, content: Chunks) -> None:
        copied = [bytes(chunk) for chunk in content]
        self.change(lambda: self.inner.replace(name, copied))

    def delete(self, name: str) -> None:
        self.change(lambda: self.inner.delete(name))


class BrokenStore(FaultyStore):
    """Any operation fails, before its effect or after it."""

    def __init__(
        self, root: Path, failing: Callable[[int], bool], *, after_effect: bool, error: type[StorageError]
    ) -> None:
        super().__init__(root, failing)
        self._after_effect = after_effect
        self._error = error

    def ask(self, action: Callable[[], T]) -> T:
        failing = self.fails_now()
        if failing and not self._after_effect:
            raise self._error("injected, before the effect")
        result = action()
        if failing:
            raise self._error("injected, after the effect")
        return result


class LateStore(FaultyStore):
    """A failing write gets no answer and takes effect later; or it takes effect and does so again, later."""

    def __init__(self, root: Path, failing: Callable[[int], bool], *, twice: bool, landing: Landing) -> None:
        super().__init__(root, failing)
        self._twice = twice
        self._landing = landing
        self._held: list[tuple[int, Callable[[], None]]] = []
        self._asked = 0

    def ask(self, action: Callable[[], T]) -> T:
        self._asked += 1
        if self._landing == "soon":
            self.land(before=self._asked - _SOON)
        return action()

    def change(self, action: Callable[[], None]) -> None:
        if not self.fails_now():
            return self.ask(action)
        self.ask(lambda: None)
        self._held.append((self._asked, action))
        if not self._twice:
            raise StoreUnreachable("injected, the effect comes later")
        return action()

    def land(self, *, before: int | None = None) -> None:
        """Apply what is under way, or only what was sent before a moment."""
        due = [action for sent, action in self._held if before is None or sent <= before]
        self._held = self._held[len(due) :]
        for action in due:
            with suppress(OutlastError):
                action()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: flushing costs nothing there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


@pytest.fixture
def template(folder: Path, save_steps: Callable[[Store, Sequence[int]], None]) -> Path:
    """A run of one earlier life, with two checkpoints."""
    save_steps(LocalStore(folder / "template"), [10, 20])
    return folder / "template"


def moments(*, for_good: bool, first: int) -> Callable[[int], bool]:
    return (lambda number: number >= first) if for_good else (lambda number: number == first)


STRIDES = [pytest.param(1, marks=pytest.mark.long), 7]
FINE_STRIDES = [pytest.param(1, marks=pytest.mark.long), 5]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("error", [StoreUnreachable, StorageError])
def test_a_failure_at_every_operation_costs_at_most_a_save(
    template: Path, error: type[StorageError], for_good: bool, after_effect: bool, stride: int
) -> None:
    first, cases, fired = 1, 0, 1
    while fired:
        root = template.with_name(f"case-{first}")
        shutil.copytree(template, root)
        failing = moments(for_good=for_good, first=first)
        store = BrokenStore(root, failing, after_effect=after_effect, error=error)
        done = live(store)
        fired = store.fired
        if error is StoreUnreachable and not for_good:
            assert done == [30, 40, 50], f"one lost answer (operation {first}) must cost nothing"
        check_whole(LocalStore(root), max([20, *done]))
        shutil.rmtree(root)
        first += stride
        cases += 1
    assert cases * stride > 100


@pytest.mark.parametrize("stride", FINE_STRIDES)
@pytest.mark.parametrize("landing", ["soon", "after the end", "in the next life"])
@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_a_late_or_doubled_write_changes_nothing_that_counts(
    template: Path, twice: bool, for_good: bool, landing: Landing, stride: int
) -> None:
    """Every write and deletion of a life, while its sender has given up and gone on, or is long dead."""
    first, cases, fired = 1, 0, 1
    while fired:
        root = template.with_name(f"case-{first}")
        shutil.copytree(template, root)
        store = LateStore(root, moments(for_good=for_good, first=first), twice=twice, landing=landing)
        done = live(store)
        fired = store.fired
        if twice:
            assert done == [30, 40, 50]
        if landing == "in the next life":
            check_whole(LocalStore(root), max([20, *done]), meanwhile=store.land)
        else:
            store.land()
            check_whole(LocalStore(root), max([20, *done]))
        shutil.rmtree(root)
        first += stride
        cases += 1
    assert cases * stride > 15


@pytest.mark.parametrize("for_good", [False, True])
def test_no_space_at_every_write_costs_at_most_a_save(
    template: Path, monkeypatch: pytest.MonkeyPatch, for_good: bool
) -> None:
    """The system's own error at every flush of a file or folder in a life."""
    flush = os.fsync
    count, first, fired = 0, 1, 1

    def no_space(descriptor: int, *arguments: Any) -> None:
        nonlocal count, fired
        count += 1
        if moments(for_good=for_good, first=first)(count):
            fired += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor, *arguments)

    while fired:
        root = template.with_name(f"case-{first}")
        shutil.copytree(template, root)
        count = fired = 0
        with monkeypatch.context() as patch:
            patch.setattr(local.os, "fsync", no_space)
            done = live(LocalStore(root))
        if not for_good:
            assert len(done) >= 2 or done == [], "one refused write costs one save, or the attempt's start"
        check_whole(LocalStore(root), max([20, *done]))
        shutil.rmtree(root)
        first += 1
    assert first > 40
