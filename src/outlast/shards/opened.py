"""An open file of a data set: every byte that is read of it is one whose digest was checked.

In: a local path and the entry that describes the file. Out: bytes, and arrays that stay on the disk until
rows of them are asked for. After every reading the file is still the one that was checked, by its size, inode
and times of modification and of change in nanoseconds; where these differ its digest is taken again before
anything is handed on. A file that shrinks is a ShardError: no process reads mapped memory itself
(``storage/system_calls.py``).
"""

import hashlib
import os
import threading
import time
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError
from outlast.shards.manifest import FileEntry
from outlast.shards.token_format import SHARD_REMEDY
from outlast.storage.regular import open_regular
from outlast.storage.system_calls import Scratch, map_for_copying, scratch, unmap

_CLOCK_NS = 20_000_000
"""Two changes may bear the same time where they lie closer together than a tick of the kernel."""


class FileIdentity(NamedTuple):
    """What changes whenever the bytes of a file change, and costs nothing to look at."""

    size_bytes: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int


def identify(descriptor: int, *, in_cache: bool = False) -> FileIdentity:
    """Return the identity of an open file.

    Args:
        in_cache: without the time of change, which no copying tool can set back: whoever uses a file of the
            cache marks it as used, and that counts as a change.
    """
    status = os.fstat(descriptor)
    changed_ns = 0 if in_cache else status.st_ctime_ns
    return FileIdentity(status.st_size, status.st_mtime_ns, changed_ns, status.st_ino, status.st_dev)


def is_settled(identity: FileIdentity) -> bool:
    """Whether a change from now on would show in the identity."""
    now = time.time_ns()
    return not any(0 <= now - then < _CLOCK_NS for then in (identity.modified_ns, identity.changed_ns))


class OpenedFile:
    """A local file, open.

    Args:
        path: of the file.
        entry: what a manifest says of it.
        verify: whether bytes are to be those of the digest; without, only a file that shrinks is noticed.
        known: the identity that it had when its digest was checked before.
        in_cache: whether it lies in the cache of shards.

    Attributes:
        identity: of the file when its digest was right.

    Raises:
        FileNotFoundError: there is no such file.
        ShardError: the file fails its digest.
    """

    def __init__(
        self,
        path: Path,
        entry: FileEntry,
        *,
        verify: bool = True,
        known: FileIdentity | None = None,
        in_cache: bool = False,
    ) -> None:
        self.path = path
        self._entry = entry
        self._verify = verify
        self._in_cache = in_cache
        with open_regular(path) as file:
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._lock = threading.Lock()
        self._address: int | None = None
        self.identity = identify(self._descriptor, in_cache=self._in_cache)
        self._is_settled = is_settled(self.identity)
        if verify and known != self.identity:
            self._check_digest("The shard")

    @property
    def size_bytes(self) -> int:
        return self.identity.size_bytes

    def check(self) -> None:
        """Look whether the file has changed since its digest was checked. Raises ShardError."""
        found = identify(self._descriptor, in_cache=self._in_cache)
        if found == self.identity and self._is_settled:
            return
        with self._lock:
            found = identify(self._descriptor, in_cache=self._in_cache)
            if found == self.identity and self._is_settled:
                return
            if self._verify:
                was_changed = found != self.identity
                self.identity, self._is_settled = found, is_settled(found)
                self._check_digest(
                    "The shard was changed while it was read: it" if was_changed else "The shard"
                )
            elif found.size_bytes < self.identity.size_bytes:
                raise self._failed("The shard has shrunk while it was read: it fails", found.size_bytes)

    def read(self, begin: int, length: int) -> bytes:
        """Return bytes of the file. Raises ShardError where it has changed."""
        parts: list[bytes] = []
        while length and (part := os.pread(self._descriptor, length, begin)):
            parts.append(part)
            begin, length = begin + len(part), length - len(part)
        self.check()
        if length:
            raise self._failed(
                "The shard ends early: it fails",
                identify(self._descriptor, in_cache=self._in_cache).size_bytes,
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def array(self, dtype: np.dtype[Any], count: int, begin: int) -> NDArray[Any]:
        """Return numbers of the file, read into memory: of shape (count,), read-only."""
        return np.frombuffer(self.read(begin, count * dtype.itemsize), dtype, count)

    def rows(self, dtype: np.dtype[Any], shape: tuple[int, ...], begin: int) -> "Rows":
        """Return an array of the file that stays on the disk; it lies within the file."""
        if self._address is None:
            self._address = map_for_copying(self._descriptor, self.size_bytes)
            weakref.finalize(self, unmap, self._address, self.size_bytes).atexit = False
        return Rows(self, dtype, shape, begin, self._address + begin)

    def _check_digest(self, subject: str) -> None:
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        with os.fdopen(self._descriptor, "rb", closefd=False) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self._entry.sha256:
            self._is_settled = False  # whoever asks next hears the same
            raise self._failed(f"{subject} fails", os.fstat(self._descriptor).st_size)

    def _failed(self, message: str, size_bytes: int) -> ShardError:
        return ShardError(
            f"{message} the manifest's sha256 ({size_bytes} of {self._entry.size_bytes} bytes).",
            where=str(self.path),
            expected=self._entry.sha256,
            remedy=SHARD_REMEDY,
        )


class Rows:
    """An array of a file, its rows along the first axis. It is no array of NumPy, which would read the mapped
    memory itself.

    Attributes:
        file: whose array it is.
        dtype, shape: of the array.
        begin: the place of its first byte in the file.
        address: the same in mapped memory.
    """

    def __init__(
        self, file: OpenedFile, dtype: np.dtype[Any], shape: tuple[int, ...], begin: int, address: int
    ) -> None:
        self.file = file
        self.dtype = dtype
        self.shape = shape
        self.begin = begin
        self.address = address

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, records: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return rows by their numbers, as ``array[records]`` of NumPy. The thread's next reading of anything
        overwrites them. Raises IndexError, and ShardError where the file has changed.
        """
        row = self.shape[1:]
        length = int(np.prod(row, dtype=np.int64))
        flat = Rows(self.file, self.dtype, (len(self) * length,), self.begin, self.address)
        return flat.runs(np.asarray(records, np.int64) * length, length).reshape(-1, *row)

    def runs(self, begins: NDArray[np.int64], length: int) -> NDArray[Any]:
        """Return runs of a flat array, each ``length`` long: (runs, length). As ``take``."""
        found = scratch().array((len(begins), length), self.dtype)
        copy([self.file], self.addresses(begins, length), length * self.dtype.itemsize, scratch())
        return found

    def addresses(self, begins: NDArray[np.int64], lengths: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the addresses of runs of a flat array. Raises IndexError where one lies outside of it."""
        if len(begins) and (begins.min() < 0 or (begins + lengths).max() > len(self)):
            raise IndexError(f"a run lies outside of the {len(self)} elements of {self.file.path}")
        return self.address + begins * self.dtype.itemsize

    def read(self, begin: int, stop: int) -> NDArray[Any]:
        """Return elements ``begin .. stop`` of a flat array, in memory of their own. Raises ShardError."""
        return self.file.array(self.dtype, stop - begin, self.begin + begin * self.dtype.itemsize)


def copy(
    files: Collection[OpenedFile],
    addresses: NDArray[np.int64],
    lengths: NDArray[np.int64] | int,
    target: Scratch,
) -> None:
    """Copy runs of files' mapped memory, as ``Scratch.write``, and look whether the files are what they were.

    Raises:
        ShardError: one has changed, or cannot be read.
    """
    failure: OSError | None = None
    try:
        target.write(addresses, lengths)
    except OSError as error:
        failure = error
    for file in files:
        file.check()
    if failure is not None:
        places = ", ".join(str(file.path) for file in files)
        raise ShardError(f"Cannot read the shard: {failure.strerror}.", where=places, remedy=SHARD_REMEDY)
