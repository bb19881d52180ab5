"""Who may use a file of a cache folder: locks between processes, and what threads of one process share.

In: paths in the folder. Out: an unfinished file to the one process that may write it, and what may be
deleted. A lock is on the open file, not on its name, so after locking it is checked that the name still is
this file's.
"""

import fcntl
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from outlast.storage.system_calls import mark_used

PAUSE_SECONDS = 0.01
PART = ".part"


def part_of(path: Path) -> Path:
    """Return where a shard is written until it has its name."""
    return path.with_name(path.name + PART)


@contextmanager
def owned(path: Path) -> Generator[BinaryIO | None]:
    """Open an unfinished file for the one process that may write it.

    Yields None, after a pause, where another one writes it or has just finished. A file that was not renamed
    is deleted.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as part:
        try:
            # Not waited for in the kernel: once the file has its name, those who use it share this very lock.
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_SECONDS)
            yield None
            return
        if not is_at(part, path):
            yield None
            return
        try:
            yield part
        finally:
            if is_at(part, path):
                path.unlink(missing_ok=True)
            fcntl.flock(part, fcntl.LOCK_UN)  # of a forked child's copy, too


def open_used(path: Path) -> BinaryIO | None:
    """Open a finished file with the lock of one who uses it, None where there is none of that name."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    with suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_SH)
    if is_at(file, path):
        mark_used(file.fileno())
        return file
    file.close()
    return None


def delete_unused(path: Path) -> bool:
    """Delete a file of which nobody holds a lock; return whether it is gone."""
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(file, path):
                path.unlink(missing_ok=True)
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True


def is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


class HandingOver:
    """Shards whose file a thread holds and has not yet put where it can be given up."""

    def __init__(self) -> None:
        self._threads: dict[int, int] = {}
        self._changes = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._changes += 1
            self._threads.setdefault(threading.get_ident(), self._changes)

    def end(self) -> None:
        with self._lock:
            self._threads.pop(threading.get_ident(), None)
            self._changes += 1

    def under_way(self) -> set[tuple[int, int]]:
        """Return an object for each shard that is being handed over, a new one each time."""
        with self._lock:
            return set(self._threads.items())

    def quiet(self) -> int | None:
        """Return a number that changes with every shard that is handed over; None while one is."""
        with self._lock:
            return None if self._threads else self._changes
