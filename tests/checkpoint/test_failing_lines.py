"""No memory, descriptor or thread, at every line that a save, a restore or a claim runs: the error that
reaches the user is typed, the next one works, no thread dies in silence.
"""

import errno
import gc
import linecache
import os
import shutil
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import outlast
from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.inspect import describe_commits, verify_run
from outlast.checkpoint.restore import restore_newest
from outlast.errors import OutlastError
from outlast.storage import LocalStore, Store
from support.lives import CONFIG, FakeClock, arrays_of, begin, check_arrays, process_on

_ROOMS = tuple(f"{Path(outlast.__file__).parent}/{room}/" for room in ("checkpoint", "storage"))
_ERRORS: dict[str, Callable[[], Exception]] = {
    "no memory": MemoryError,
    "no descriptor": lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "no descriptor on the machine": lambda: OSError(errno.ENFILE, os.strerror(errno.ENFILE)),
    "no memory for the system": lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    "no thread": lambda: RuntimeError("can't start new thread"),
}
_OUTERMOST = ("save", "_run", "_fail", "_keep_beating", "key", "name")
"""Where a failure is caught and told: what fails inside of these fails in what they call; and properties that
the caller reads."""

_STRIDE = 16
LINES = [pytest.param(first, _STRIDE, marks=pytest.mark.long) for first in range(1, 1 + _STRIDE)]
"""The first line that fails, and the lines until the next one."""


class Lines:
    """Counts the lines of checkpoint/ and storage/ that run, and fails at one."""

    def __init__(self, failing: int, error: Callable[[], Exception]) -> None:
        self.count = 0
        self.at = ""
        self._failing = failing
        self._error = error

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_ROOMS):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and line != "try:" and frame.f_code.co_name not in _OUTERMOST:
            self.count += 1
            if self.count == self._failing:
                self.at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise self._error()
        return self.trace

    @contextmanager
    def everywhere(self) -> Generator[None]:
        """Watch this thread and those that it starts."""
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file between open and with
@pytest.mark.parametrize(("first", "stride"), [(1, 401), *LINES])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("what", _ERRORS)
def test_a_failure_at_any_line_of_a_save_is_told_and_costs_at_most_that_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, wait: bool, first: int, stride: int
) -> None:
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    store = LocalStore(tmp_path)
    _, writer = begin(store, "first")
    writer.save(1, arrays_of(1), wait=True)
    step, failing, lines = 1, first, Lines(0, _ERRORS[what])
    while failing == first or lines.at:
        step += 1
        lines = Lines(failing, _ERRORS[what])
        told = None
        try:
            with lines.everywhere():
                writer.save(step, arrays_of(step), wait=wait)
            writer.close()
        except OutlastError as error:
            told = error
        assert died == [], lines.at
        saved = writer.last_step == step
        assert saved or (told if wait else writer.last_error), f"{lines.at}: not saved, and nothing said"
        step += 1
        assert writer.save(step, arrays_of(step), wait=True), lines.at
        assert writer.last_step == step
        restored = restore_newest(store)
        assert restored is not None
        assert restored.commit.step == step
        check_arrays(restored.arrays, step)
        failing += stride
    gc.collect()  # what a failure between opening a file and using it has left
    assert failing > 800


def _start_again(store: LocalStore, host: str) -> None:
    """Claim, restore and record, with the thread of the heartbeat, then end."""
    attempt = claim_attempt(
        store, config=CONFIG, clock=FakeClock(), process=process_on(host), report=lambda _: None
    )
    try:
        restored = restore_newest(store, attempt_number=attempt.number, report=pytest.fail)
        assert restored
        check_arrays(restored.arrays, restored.commit.step)
        attempt.record_restored(restored.commit.step, restored.commit.name)
        attempt.check_owned()
        assert attempt.history()
    finally:
        attempt.close()


def _look(store: LocalStore, _: str) -> None:
    """What the verbs read."""
    assert verify_run(store.url) == []
    assert [row["state"] for row in describe_commits(store.url)] == ["committed", "committed"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("first", "stride"), [(1, 401), *LINES])
@pytest.mark.parametrize("act", [_start_again, _look])
@pytest.mark.parametrize("what", _ERRORS)
def test_a_failure_at_any_line_of_a_start_is_told_and_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    save_steps: Callable[[Store, Sequence[int]], None],
    what: str,
    act: Callable[[LocalStore, str], None],
    first: int,
    stride: int,
) -> None:
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    save_steps(LocalStore(tmp_path / "template"), [1, 2])
    failing, lines = first, Lines(0, _ERRORS[what])
    while failing == first or lines.at:
        root = tmp_path / str(failing)
        shutil.copytree(tmp_path / "template", root)
        lines = Lines(failing, _ERRORS[what])
        store = LocalStore(root)
        with suppress(OutlastError), lines.everywhere():
            act(store, "second")
        assert died == [], lines.at
        act(LocalStore(root), "third")
        shutil.rmtree(root)
        failing += stride
    gc.collect()
    assert failing > 400
