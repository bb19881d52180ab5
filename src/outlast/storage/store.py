"""What every store can do, and what to do when the answer did not arrive.

In: names and bytes. Out: the operations each store brings, and three built on them that hold for all:
``retry`` waits for a store that does not answer, ``create_or_confirm`` makes creating safe to repeat, and
``open`` reads what is too large for memory.
"""

import io
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, TypeVarTuple

from outlast.errors import ObjectExists, ObjectNotFound, StorageError, StoreUnreachable
from outlast.storage.reader import RangeReader
from outlast.storage.regular import MOST_BYTES

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Chunks = Sequence[bytes | bytearray | memoryview]
"""The content of an object, in order; joined only where a store needs it."""

Pause = Callable[[float], object]
"""Waits for so many seconds; what it raises ends the repeating."""

_log = logging.getLogger(__name__)
_TOLD_FROM_SECONDS = 1.0
"""A pause as long as this is not passed in silence: a store has not answered for a second or two by then."""
_COMPARE_BYTES = 16 * 1024 * 1024
_BUFFER_BYTES = 2**16
_CHUNK_BYTES = 8 * 2**20


class ObjectInfo(NamedTuple):
    """An object as a listing tells it; ``modified`` in seconds since 1970 by the store's own clock."""

    name: str
    size_bytes: int
    modified: float


class Store(ABC):
    """Objects under one URL. Names use ``/`` and never leave the URL."""

    url: str

    anchor: str | None = None
    """An object without which nothing more is written: a folder that was renamed is not made again. Object
    stores cannot be renamed and do not ask."""

    retry_seconds: float = 180.0
    """How long ``retry`` waits for a store that does not answer: one that is down for a minute delays a run.
    """

    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 10.0

    @abstractmethod
    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        """Return the whole object. Raises StorageError where it has more bytes, of which few are fetched."""

    @abstractmethod
    def read_range(self, name: str, start: int, length: int) -> bytes:
        """Return exactly ``length`` bytes from ``start``. Raises StorageError where the object is shorter.

        Callers put a ``retry`` around it: a store that does not answer may be given up soon.
        """

    @abstractmethod
    def create(self, name: str, content: Chunks) -> None:
        """Write an object that must not exist. Raises ObjectExists where it does."""

    @abstractmethod
    def replace(self, name: str, content: Chunks) -> None:
        """Write an object, whether or not it exists."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return all objects whose name starts with the prefix (a folder: ``data/``), sorted by name."""

    @abstractmethod
    def size_bytes(self, name: str) -> int:
        """Return the object's size. Raises ObjectNotFound."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete an object; one that is absent is no error."""

    def local_path(self, name: str) -> Path | None:
        """Return the path of a local object, or None where the store is remote."""
        return None

    def list_leftovers(self, prefix: str = "", *, recursive: bool = True) -> Sequence[str]:
        """Return the names of unfinished files that killed writers left below the prefix; ``delete`` takes
        them.

        Args:
            recursive: look into the folders below, too.
        """
        return []

    def open(self, name: str) -> io.BufferedIOBase:
        """Return the object as a stream that can be read from anywhere, with few MiB of it in memory.

        Reading raises StorageError, StoreUnreachable only after ``retry_seconds``. Raises ObjectNotFound.
        """
        size = self.retry(self.size_bytes, name)

        def read_range(start: int, length: int) -> bytes:
            return self.retry(self.read_range, name, start, length)

        return io.BufferedReader(RangeReader(read_range, size), _BUFFER_BYTES)

    def too_large(self, name: str, most_bytes: int) -> StorageError:
        """Return the error of an object that is not read whole."""
        return StorageError(
            f"The object has more than {most_bytes} bytes, the most that is read whole.",
            where=self.url_of(name),
            expected="a manifest, a vocabulary or another small file",
        )

    def url_of(self, name: str) -> str:
        """Return where an object lies, for messages."""
        return f"{self.url}/{name}"

    def gives_ranges(self, name: str) -> bool:
        """Whether a part of an object costs no more than its bytes."""
        return True

    def download(self, name: str, take: Callable[[int, bytes], object]) -> None:
        """Give a whole object in order, in chunks of some MiB: where each begins and its bytes.

        It begins again at 0 where it was interrupted and cannot go on. Raises ObjectNotFound, StorageError.
        """
        size = self.retry(self.size_bytes, name)
        for start in range(0, size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size - start)
            take(start, self.retry(self.read_range, name, start, length))

    def exists(self, name: str) -> bool:
        try:
            self.size_bytes(name)
        except ObjectNotFound:
            return False
        return True

    def retry(self, action: Callable[[*Ts], T], *arguments: *Ts, pause: Pause = time.sleep) -> T:
        """Return what an action gives for its arguments, repeating it while the store does not answer.

        Args:
            pause: waits before the next attempt; for a caller who may lose interest, one that raises then.

        Raises:
            StoreUnreachable: it did not answer for ``retry_seconds``.
        """
        deadline = time.monotonic() + self.retry_seconds
        seconds = self.first_pause_seconds
        while True:
            try:
                return action(*arguments)
            except StoreUnreachable as error:
                left = deadline - time.monotonic()
                if seconds > left:
                    raise
                if seconds >= _TOLD_FROM_SECONDS:
                    where = error.where or self.url
                    _log.warning(
                        "%s %s is asked again in %.0f s, for %.0f s more", error.message, where, seconds, left
                    )
            pause(seconds)
            seconds = min(2 * seconds, self.longest_pause_seconds)

    def create_or_confirm(self, name: str, content: Chunks) -> None:
        """Create an object whose content only this caller writes. Where the response is lost, the content
        tells whether it was created.

        Where the name exists, or the outcome of the write is unknown, the object is read back. Equal bytes:
        the write took place. So content must be unique to the writer (a claim carries a random id) unless
        sharing is harmless.

        Raises:
            ObjectExists: the name is taken by other bytes.
            StoreUnreachable: no answer for ``retry_seconds``. The object may exist or not.
        """

        def attempt() -> None:
            try:
                self.create(name, content)
            except ObjectExists:
                if not self._holds(name, content):
                    raise
            except StoreUnreachable:
                try:
                    if self._holds(name, content):
                        return
                except ObjectNotFound:
                    pass  # the write did not take place, or will land later and be found by the next attempt
                raise

        self.retry(attempt)

    def _holds(self, name: str, content: Chunks) -> bool:
        """Compare an object with what it should hold, a chunk at a time. Raises ObjectNotFound."""
        views = [memoryview(chunk).cast("B") for chunk in content if len(chunk)]
        if self.size_bytes(name) != sum(len(view) for view in views):
            return False
        start = 0
        for view in views:
            for begin in range(0, len(view), _COMPARE_BYTES):
                chunk = view[begin : begin + _COMPARE_BYTES]
                if memoryview(self.read_range(name, start, len(chunk))) != chunk:
                    return False
                start += len(chunk)
        return True
