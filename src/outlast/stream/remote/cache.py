"""A folder of verified shards, bounded in bytes, shared by the processes of a host.

In: the entry of a remote shard. Out: a local file whose sha256 has been checked. A file's name is its digest,
so a stale file can never be taken for another shard, and one that has changed is checked again, then fetched
anew; it appears whole, by rename. Until then it is
``<sha256>.part``, and whoever holds the lock of that very file writes it: the others wait, a lock that nobody
holds is a dead process's, and nothing but shards stays behind. Who uses a shard holds a shared lock of it:
only what nobody uses is deleted to make room, the least recently used first. Locks end with their process.
"""

import errno
import fcntl
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, NamedTuple

from outlast.errors import ObjectNotFound, ShardError, StorageError, StoreUnreachable
from outlast.logs import log
from outlast.shards.manifest import FileEntry
from outlast.shards.opened import FileIdentity, identify
from outlast.storage import Store
from outlast.storage.cache_files import (
    PART,
    PAUSE_SECONDS,
    HandingOver,
    delete_unused,
    is_at,
    owned,
    part_of,
)
from outlast.storage.system_calls import mark_used
from outlast.stream.remote.cancel import Cancellation
from outlast.stream.remote.ranges import InFlight, copy_object

_ATTEMPTS = 3
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DIGEST_LENGTH = 64

Keep = Callable[["CachedShard"], None]


def _leave(_: "CachedShard") -> None:
    """Do nothing: for a caller that keeps the shard it is given."""


class _Wish(NamedTuple):
    """A shard that somebody wants; ``release_one`` None: not yet, and only where there is room."""

    store: Store
    entry: FileEntry
    release_one: Callable[[], bool] | None
    keep: Keep
    cancellation: Cancellation


class CachedShard:
    """A shard in the folder. It stays there until this is released or gone, or its process has ended.

    Attributes:
        path: of the file.
        identity: of the file when its bytes were checked.
    """

    def __init__(self, path: Path, file: BinaryIO, identity: FileIdentity) -> None:
        self.path = path
        self.identity = identity
        self._file = file
        self.release = weakref.finalize(self, file.close)


class ShardCache:
    """The cache folder.

    Args:
        folder: made where it is missing, at every fetch.
        limit_bytes: the most that the folder may hold. What is in use at the same time may exceed it: the
            file of a shard that is mapped takes its room on the disk whether it has a name or not.
        verify: check the sha256 of a file that is already there before it is handed out: the first time, and
            whenever it has changed.
    """

    def __init__(self, folder: Path, limit_bytes: int, *, verify: bool = True) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.verify = verify
        self.in_flight = InFlight()
        self._verified: dict[str, FileIdentity] = {}
        self._has_warned = False
        self._handing = HandingOver()
        self._alone = threading.Lock()
        self._make_folder()

    def fetch(
        self,
        store: Store,
        entry: FileEntry,
        release_one: Callable[[], bool] | None = None,
        keep: Keep = _leave,
        cancellation: Cancellation | None = None,
    ) -> CachedShard:
        """Return a shard, downloading and verifying it where it is not there yet.

        Args:
            store: the one that has the shard.
            entry: what the manifest says of it.
            release_one: gives up one of the caller's shards, False where it has none to spare; called while
                there is no room.
            keep: puts the shard where the caller's ``release_one`` finds it. Whoever needs room at this
                moment waits for it: a shard that nobody could give up would count as one in use.
            cancellation: asked between requests, and while this waits.

        Raises:
            Cancelled: the shard is wanted no longer.
            ShardError: the shard is missing or cut short; or the store's bytes fail the manifest's digest,
                again and again.
            StoreUnreachable: the store did not answer for its ``retry_seconds``.
            StorageError: the folder cannot be written.
        """
        cancellation = cancellation or Cancellation()
        shard = self._fetch(_Wish(store, entry, release_one or (lambda: False), keep, cancellation))
        assert shard is not None, "only what is fetched ahead may find no room"
        return shard

    def fetch_ahead(
        self, store: Store, entry: FileEntry, cancellation: Cancellation, keep: Keep = _leave
    ) -> CachedShard | None:
        """Return a shard that is needed later, as ``fetch``; None where there is no room that nobody uses."""
        return self._fetch(_Wish(store, entry, None, keep, cancellation))

    def _fetch(self, wish: _Wish) -> CachedShard | None:
        self._make_folder()  # again: somebody may clear the cache while a run goes on
        while True:
            try:
                return self._fetch_until_there(wish)
            except OSError as error:
                if error.errno not in _FULL:
                    raise self._failed("write to", error) from error
            finally:
                self._handing.end()
            # A disk that is smaller than the limit is treated as the limit.
            if wish.release_one is not None:
                return self._fetch_alone(wish, wish.release_one)
            if not self._evict(0):
                return None

    def _fetch_alone(self, wish: _Wish, release_one: Callable[[], bool]) -> CachedShard | None:
        """Fetch a shard that is needed now onto a disk that was full: what nobody uses goes, and all is tried
        again. One at a time, and after those who were under way: they would fill the disk for each other.
        """
        for_nothing = 0
        with self._alone:
            while True:
                under_way = self._handing.under_way()
                while under_way & self._handing.under_way():
                    wish.cancellation.pause(PAUSE_SECONDS)
                has_freed = self._evict(0)
                if not has_freed and release_one():
                    has_freed = True
                    self._evict(0)
                for_nothing = 0 if has_freed else for_nothing + 1
                try:
                    return self._fetch_until_there(wish)
                except OSError as error:
                    if error.errno not in _FULL or for_nothing == _ATTEMPTS:
                        raise self._failed("write to", error) from error
                finally:
                    self._handing.end()

    def _fetch_until_there(self, wish: _Wish) -> CachedShard | None:
        path = self.folder / wish.entry.sha256
        while True:
            wish.cancellation.check()
            self._handing.begin()
            shard = self._use(path, wish.entry)
            if shard is not None:
                wish.keep(shard)
                return shard
            self._handing.end()
            with owned(part_of(path)) as part:
                if part is not None and not path.exists():
                    if not self._make_room(part, wish):
                        return None
                    self._download(wish, part, path)

    def _use(self, path: Path, entry: FileEntry) -> CachedShard | None:
        """Return a shard that is there and whole; what a crash of the machine has left in its place goes."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_SH)
            if is_at(file, path):
                mark_used(file.fileno())
                identity = identify(file.fileno(), in_cache=True)
                if self._is_whole(file, identity, entry):
                    kept, file = CachedShard(path, file, identity), None
                    return kept
                path.unlink(missing_ok=True)
            return None
        finally:
            if file is not None:
                file.close()

    def _is_whole(self, file: BufferedReader, identity: FileIdentity, entry: FileEntry) -> bool:
        if identity.size_bytes != entry.size_bytes:
            return False
        if self.verify and self._verified.get(entry.sha256) != identity:
            if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                return False
            self._verified[entry.sha256] = identity
        return True

    def _download(self, wish: _Wish, part: BinaryIO, path: Path) -> None:
        entry = wish.entry
        for _ in range(_ATTEMPTS):
            part.seek(0)
            if self._copy(wish, part) == entry.sha256:
                part.flush()
                os.fsync(part.fileno())
                # Every change from now on shows, however soon: the clock of files ticks slowly.
                now = time.time_ns()
                os.utime(part.fileno(), ns=(now, now - 10**9))
                self._verified[entry.sha256] = identify(part.fileno(), in_cache=True)
                part_of(path).replace(path)
                return
        raise ShardError(
            "The shard's bytes fail the manifest's sha256.",
            where=wish.store.url_of(entry.name),
            expected=entry.sha256,
            remedy="restore the shard, or prepare the data again",
        )

    def _copy(self, wish: _Wish, part: BinaryIO) -> str:
        """Copy a shard in order, from its beginning; return its sha256."""
        digest = hashlib.sha256()

        def take(start: int, content: bytes) -> None:
            nonlocal digest
            if start == 0:  # again, where a whole object was interrupted
                digest = hashlib.sha256()
                part.seek(0)
            digest.update(content)
            part.write(content)

        wanted = Cancellation(wish.cancellation.is_cancelled)
        try:
            copy_object(wish.store, wish.entry.name, wish.entry.size_bytes, take, self.in_flight, wanted)
        except StorageError as error:
            raise _explain(wish, error) from None
        return digest.hexdigest()

    def _make_room(self, part: BinaryIO, wish: _Wish) -> bool:
        """Make room for a shard and let its file take its size, so that everybody who makes room counts it.

        Return whether there was room: a shard that is needed now gets it, whatever others use.
        """
        while not self._take_room(part, wish.entry.size_bytes, wish.release_one):
            if wish.release_one is None:
                return False
            wish.cancellation.pause(PAUSE_SECONDS)
        return True

    def _take_room(self, part: BinaryIO, size_bytes: int, release_one: Callable[[], bool] | None) -> bool:
        # The bound holds for all processes together because whoever makes room holds the folder's lock,
        # counts the unfinished files too, and gives its own file its full size before it lets the lock go:
        # two that look at the same time cannot both count on the same gap. The folder itself is locked, so
        # that no lock file stays behind. The bound gives way in one case: where all that is there is in use
        # and needed now, a step that waits for room would wait forever, so the limit is exceeded and that is
        # said, once.
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            for path in self.folder.glob("*" + PART):
                if not is_at(part, path):
                    delete_unused(path)  # a dead process's
            limit = self.limit_bytes - size_bytes
            self._evict(limit)
            while self._total_bytes() > max(limit, 0):
                if release_one is None:
                    return False
                quiet = self._handing.quiet()
                has_released = release_one()
                if not self._evict(limit) and not has_released:
                    if quiet is None or self._handing.quiet() != quiet:
                        return False  # what is being fetched can be given up when it is kept
                    self._warn_of_use()
                    break
            part.truncate(size_bytes)
            self._handing.begin()
            return True
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)  # of a forked child's copy, too
            os.close(folder)

    def _warn_of_use(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the shards in use at the same time take more than stream.cache_bytes, %d: the cache folder "
                "%s exceeds it",
                self.limit_bytes,
                self.folder,
            )

    def _evict(self, limit_bytes: int) -> bool:
        """Delete what nobody uses, least recently used first, down to a limit; return whether any went."""
        files: list[tuple[float, int, Path]] = []
        for path in self._files():
            with suppress(FileNotFoundError):
                status = path.stat()
                files.append((status.st_atime, status.st_size, path))
        total = sum(size for _, size, _ in files)
        has_deleted = False
        for _, size, path in sorted(files):
            if total <= limit_bytes:
                break
            if path.suffix != PART and delete_unused(path):
                total -= size
                has_deleted = True
        return has_deleted

    def _total_bytes(self) -> int:
        total = 0
        for path in self._files():
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _files(self) -> list[Path]:
        """Return the shards in the folder, finished or not."""
        return [
            path for path in self.folder.iterdir() if path.suffix == PART or len(path.name) == _DIGEST_LENGTH
        ]

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._failed("make", error) from None

    def _failed(self, action: str, error: OSError) -> StorageError:
        return StorageError(
            f"Cannot {action} the cache folder: {error.strerror or error}.",
            where=str(self.folder),
            remedy="set stream.cache_dir to a folder with room that can be written, or lower "
            "stream.cache_bytes",
        )


@lru_cache(maxsize=8)
def shared_cache(folder: Path, limit_bytes: int, verify: bool) -> ShardCache:
    """Return this process's one cache in a folder: it knows what has been verified and what is under way."""
    return ShardCache(folder, limit_bytes, verify=verify)


os.register_at_fork(after_in_child=shared_cache.cache_clear)  # what is under way is the parent's


def default_cache_folder() -> Path:
    """Return the user's cache folder for shards."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "outlast" / "shards"


def _explain(wish: _Wish, error: StorageError) -> ShardError | StorageError:
    """Return what a failed read says about the shard: one that is absent or cut short is damaged."""
    store, entry = wish.store, wish.entry
    if isinstance(error, StoreUnreachable):
        return error
    try:
        is_absent = isinstance(error, ObjectNotFound)
        pause = wish.cancellation.pause
        size = None if is_absent else store.retry(store.size_bytes, entry.name, pause=pause)
    except ObjectNotFound:
        size = None
    except StorageError:
        return error
    if size == entry.size_bytes:
        return error
    return ShardError(
        "The shard is missing." if size is None else f"The shard has {size} bytes.",
        where=store.url_of(entry.name),
        expected=f"{entry.size_bytes} bytes by the manifest",
        remedy="restore the shard, or prepare the data again",
    )
