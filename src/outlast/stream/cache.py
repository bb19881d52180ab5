"""A folder of verified shards, bounded in bytes, shared by the processes of a host.

In: the entry of a remote shard. Out: the path of a local file whose sha256 has been checked. A file's name is
its digest, so a stale file can never be taken for another shard; it appears whole, by rename. Until then it
is ``<sha256>.part``, and whoever holds the lock of that very file writes it: the others wait, a lock that
nobody holds is a dead process's, and nothing but shards stays behind. The least recently used files go first.
On POSIX a deleted file stays readable to whoever has mapped it, so a shard is not locked while in use.
"""

import fcntl
import hashlib
import os
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from outlast.errors import ObjectNotFound, ShardError, StorageError, StoreUnreachable
from outlast.shards.manifest import FileEntry
from outlast.storage import Store

_RANGE_BYTES = 4 * 2**20
_RANGES_IN_FLIGHT = 16
_ATTEMPTS = 3
_PART = ".part"
_DIGEST_LENGTH = 64


class ShardCache:
    """The cache folder.

    Args:
        folder: made where it is missing.
        limit_bytes: the most that the folder may hold; a single shard may exceed it.
        verify: check the sha256 of a file that is already there before it is handed out.
    """

    def __init__(self, folder: Path, limit_bytes: int, *, verify: bool = True) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.verify = verify
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failed("make", error) from None

    def fetch(self, store: Store, entry: FileEntry) -> Path:
        """Return the local path of a shard, downloading and verifying it where it is not there yet.

        Another process may make room at any moment: who opens the file and finds it gone fetches it again.

        Raises:
            ShardError: the shard is missing or cut short; or the store's bytes fail the manifest's digest,
                again and again.
            StoreUnreachable: the store did not answer for its ``retry_seconds``.
            StorageError: the folder cannot be written.
        """
        path = self.folder / entry.sha256
        try:
            while not self._holds(path, entry):
                with _owned(_part_of(path)) as part:
                    if part is not None and not path.exists():
                        self._download(store, entry, part, path)
                        break
        except OSError as error:
            raise self._failed("write to", error) from error
        with suppress(OSError):
            os.utime(path)
        return path

    def _holds(self, path: Path, entry: FileEntry) -> bool:
        """Whether the shard is there and whole; what a crash of the machine has left in its place goes."""
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size == entry.size_bytes and (
                    not self.verify or hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
                ):
                    return True
        except FileNotFoundError:
            return False
        path.unlink(missing_ok=True)
        return False

    def _download(self, store: Store, entry: FileEntry, part: BinaryIO, path: Path) -> None:
        # The file takes its size first: everybody who makes room counts it.
        part.truncate(entry.size_bytes)
        self._make_room(path)
        for _ in range(_ATTEMPTS):
            part.seek(0)
            if _copy(store, entry, part) == entry.sha256:
                part.flush()
                os.fsync(part.fileno())
                _part_of(path).replace(path)
                return
        raise ShardError(
            "The shard's bytes fail the manifest's sha256.",
            where=f"{store.url}/{entry.name}",
            expected=entry.sha256,
            remedy="restore the shard, or prepare the data again",
        )

    def _make_room(self, wanted: Path) -> None:
        """Delete what dead processes left behind, then the least recently used shards, down to the limit."""
        files: list[tuple[float, int, Path]] = []
        total = 0
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if path.suffix == _PART and path.stem != wanted.name:
                    _delete_abandoned(path)
                if path.suffix == _PART or len(path.name) == _DIGEST_LENGTH:
                    status = path.stat()
                    total += status.st_size
                    if path.suffix != _PART:
                        files.append((status.st_mtime, status.st_size, path))
        for _, size, path in sorted(files):
            if total <= self.limit_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _failed(self, action: str, error: OSError) -> StorageError:
        return StorageError(
            f"Cannot {action} the cache folder: {error.strerror or error}.",
            where=str(self.folder),
            remedy="set stream.cache_dir to a folder with room that can be written, or lower "
            "stream.cache_bytes",
        )


def default_cache_folder() -> Path:
    """Return the user's cache folder for shards."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "outlast" / "shards"


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + _PART)


@contextmanager
def _owned(path: Path) -> Generator[BinaryIO | None]:
    """Open an unfinished file for the one process that may write it, waiting for another that does.

    Yields None where the other one has finished or given up meanwhile. A file that was not renamed is
    deleted.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        if not _is_at(part, path):
            yield None
            return
        try:
            yield part
        finally:
            if _is_at(part, path):
                path.unlink(missing_ok=True)


def _delete_abandoned(path: Path) -> None:
    """Delete an unfinished file that no living process writes."""
    with suppress(OSError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(file, path):
            path.unlink(missing_ok=True)


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _copy(store: Store, entry: FileEntry, part: BinaryIO) -> str:
    """Copy a shard by parallel range reads, in order; return its sha256."""
    digest = hashlib.sha256()
    starts = range(0, entry.size_bytes, _RANGE_BYTES)

    def read(start: int) -> bytes:
        length = min(_RANGE_BYTES, entry.size_bytes - start)
        return store.retry(lambda: store.read_range(entry.name, start, length))

    with ThreadPoolExecutor(_RANGES_IN_FLIGHT) as readers:
        try:
            # In slices, so that no more than the ranges in flight are held in memory.
            for first in range(0, len(starts), _RANGES_IN_FLIGHT):
                for content in readers.map(read, starts[first : first + _RANGES_IN_FLIGHT]):
                    digest.update(content)
                    part.write(content)
        except StorageError as error:
            raise _explain(store, entry, error) from None
    return digest.hexdigest()


def _explain(store: Store, entry: FileEntry, error: StorageError) -> ShardError | StorageError:
    """Return what a failed read says about the shard: one that is absent or cut short is damaged."""
    if isinstance(error, StoreUnreachable):
        return error
    try:
        size = None if isinstance(error, ObjectNotFound) else store.size_bytes(entry.name)
    except ObjectNotFound:
        size = None
    except StorageError:
        return error
    if size == entry.size_bytes:
        return error
    return ShardError(
        "The shard is missing." if size is None else f"The shard has {size} bytes.",
        where=f"{store.url}/{entry.name}",
        expected=f"{entry.size_bytes} bytes by the manifest",
        remedy="restore the shard, or prepare the data again",
    )
