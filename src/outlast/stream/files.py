"""Opening the files of a data set: local ones where they lie, remote ones by way of the cache.

In: the entries of a manifest. Out: what each file holds. No byte is read but of files that have passed their
digest and are still what they were then, unless the run says not to verify (``shards/opened.py``). A remote
file that is held here stays in the cache folder until it is released.
"""

import threading
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from outlast.errors import OutlastError, ShardError
from outlast.shards.manifest import FileEntry
from outlast.shards.opened import FileIdentity, OpenedFile
from outlast.shards.token_format import SHARD_REMEDY
from outlast.storage import Store
from outlast.stream.config import StreamConfig
from outlast.stream.remote.cache import CachedShard, ShardCache, default_cache_folder, shared_cache
from outlast.stream.remote.cancel import Cancellation, current_cancellation, work_for

T = TypeVar("T")

_MOST_OPEN = 448
"""Files of one kind. A stream of pairs opens two kinds, and most systems allow a process 1024."""
_MOST_OPEN_REMOTE = 192
"""A remote one takes two descriptors: of the mapping, and of the lock that keeps it in the cache folder."""
_AT_ONCE = 16
"""Remote files that are fetched side by side where all of them are needed now."""


def cache_folder(config: StreamConfig) -> Path:
    """Return the folder for shards of remote data sets."""
    return Path(config.cache_dir).expanduser() if config.cache_dir else default_cache_folder()


class Shards(Protocol):
    """The files of one kind of a split by the numbers of its shards, opened when they are first asked for."""

    @property
    def is_remote(self) -> bool:
        """Whether any of them is."""
        ...

    def get(self, index: int, /) -> Any: ...

    def is_here(self, index: int, /) -> bool:
        """Whether a file is local, or has been fetched and is kept in the cache folder."""
        ...

    def size_bytes(self, index: int, /) -> int: ...

    def fetch_ahead(self, index: int, closing: Cancellation, /) -> bool:
        """Fetch a remote file that is needed later; False where the cache has no room for it."""
        ...

    def release(self, kept: Container[int], /) -> None:
        """Let the cache delete all files but those."""
        ...


class OpenFiles(Generic[T]):
    """The files of a data set that have been opened, each verified when it is first and when it has changed.

    Args:
        open_file: says what a file holds, by its index.
    """

    def __init__(
        self,
        store: Store,
        entries: Sequence[FileEntry],
        config: StreamConfig,
        open_file: Callable[[int, OpenedFile], T],
    ) -> None:
        self._entries = entries
        self._store = store
        self._config = config
        self._open_file = open_file
        self._held: dict[int, T] = {}
        self._cached: dict[int, CachedShard] = {}
        self._failures: dict[int, OutlastError] = {}
        self._verified: dict[int, FileIdentity] = {}
        self._locks = [threading.Lock() for _ in entries]
        self._giving_up = threading.RLock()
        self._is_local = [store.local_path(entry.name) is not None for entry in entries]
        self.is_remote = not all(self._is_local)
        self._most_open = _MOST_OPEN_REMOTE if self.is_remote else _MOST_OPEN

    def get(self, index: int) -> T:
        """Return what a file holds: for a shard its flat tokens.

        An open file holds a descriptor, so only so many stay open; the oldest goes, and is not verified
        again unless it has changed meanwhile.
        """
        held = self._held.get(index)
        if held is None:
            failure = self._failures.get(index)
            with self._locks[index]:
                held = self._held.get(index)
                if held is None:
                    latest = self._failures.get(index)
                    if latest is not None and latest is not failure:
                        raise latest  # reading ahead has failed while this waited for it
                    held = self._open(index)
                    self._held[index] = held
                    if len(self._held) > self._most_open:
                        with suppress(StopIteration, RuntimeError):  # another thread was as quick
                            self._drop(next(iter(self._held)))
        return held

    def is_here(self, index: int) -> bool:
        return self._is_local[index] or index in self._cached

    def size_bytes(self, index: int) -> int:
        return self._entries[index].size_bytes

    def fetch_ahead(self, index: int, closing: Cancellation) -> bool:
        if self._is_local[index]:
            return True
        self._cache.in_flight.wait_for_spare(closing)
        with self._locks[index]:
            if index in self._cached:
                return True
            try:
                entry = self._entries[index]
                shard = self._cache.fetch_ahead(self._store, entry, closing, self._keep(index))
            except OutlastError as error:
                self._failures[index] = error
                raise
            if closing.is_cancelled():
                self._drop(index)  # nobody will ask for its release any more
                return False
            return shard is not None

    def release(self, kept: Container[int]) -> None:
        for index in list(self._cached):
            if index not in kept:
                self._drop(index)

    def _keep(self, index: int) -> Callable[[CachedShard], None]:
        return partial(self._cached.__setitem__, index)

    def _drop(self, index: int) -> None:
        with self._giving_up:
            self._held.pop(index, None)
            shard = self._cached.pop(index, None)
            if shard is not None:
                shard.release()

    def _release_one(self, wanted: int) -> bool:
        """Give up what was fetched last and is not in use yet, or what was opened first.

        Where this finds nothing, what others have been giving up is released, not only on its way.
        """
        with self._giving_up:
            not_held = [index for index in reversed(list(self._cached)) if index not in self._held]
            for index in [*not_held, *list(self._held)]:
                if index != wanted:
                    self._drop(index)
                    return True
        return False

    @property
    def _cache(self) -> ShardCache:
        config = self._config
        return shared_cache(cache_folder(config), config.cache_bytes, config.verify)

    def _open(self, index: int) -> T:
        entry = self._entries[index]
        path = self._store.local_path(entry.name)
        if path is not None:
            try:
                known = self._verified.get(index)
                file = OpenedFile(path, entry, verify=self._config.verify, known=known)
            except FileNotFoundError:
                raise ShardError("The shard is missing.", where=str(path), remedy=SHARD_REMEDY) from None
            self._verified[index] = file.identity
            return self._open_file(index, file)
        while True:
            shard = self._cached.get(index)
            if shard is None:
                release_one = partial(self._release_one, index)
                wanted = current_cancellation()
                shard = self._cache.fetch(self._store, entry, release_one, self._keep(index), wanted)
            try:
                verify = self._config.verify
                file = OpenedFile(shard.path, entry, verify=verify, known=shard.identity, in_cache=True)
            except (FileNotFoundError, ShardError):
                self._drop(index)  # somebody has cleared the folder, or changed the file: it is fetched again
                continue
            return self._open_file(index, file)


class JoinedFiles:
    """The files of several data sets, numbered one after the other.

    Args:
        parts: the data sets.
        counts: shards of each.
    """

    def __init__(self, parts: Sequence[Shards], counts: Sequence[int]) -> None:
        self._parts = parts
        self._first = [0, *accumulate(counts)]
        self.is_remote = any(part.is_remote for part in parts)

    def get(self, index: int) -> Any:
        part, own = self._place(index)
        return part.get(own)

    def is_here(self, index: int) -> bool:
        part, own = self._place(index)
        return part.is_here(own)

    def size_bytes(self, index: int) -> int:
        part, own = self._place(index)
        return part.size_bytes(own)

    def fetch_ahead(self, index: int, closing: Cancellation) -> bool:
        part, own = self._place(index)
        return part.fetch_ahead(own, closing)

    def release(self, kept: Container[int]) -> None:
        for part, first in zip(self._parts, self._first, strict=False):
            part.release(_Shifted(kept, first))

    def _place(self, index: int) -> tuple[Shards, int]:
        part = bisect_right(self._first, index) - 1
        return self._parts[part], index - self._first[part]


class _Shifted(Container[int]):
    """Numbers less their first one."""

    def __init__(self, numbers: Container[int], first: int) -> None:
        self._numbers, self._first = numbers, first

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number + self._first in self._numbers


def fetch_together(
    shards: Shards, wanted: Iterable[int], open_one: Callable[[int], object], limit_bytes: int
) -> None:
    """Open files side by side where more than one of them is yet to be fetched.

    Args:
        shards: the files.
        wanted: by their numbers, in the order in which they are needed.
        open_one: opens a file and what belongs to it.
        limit_bytes: of the cache; what is more than it holds is left for later.

    Raises:
        OutlastError: of the first one that cannot be had; the others are given up.
    """
    missing: list[int] = []
    for index in wanted:
        if not shards.is_here(index):
            limit_bytes -= shards.size_bytes(index)
            if limit_bytes < 0:
                break
            missing.append(index)
    if len(missing) > 1:
        cancellation = Cancellation(current_cancellation().is_cancelled)
        threads = min(_AT_ONCE, len(missing))
        with ThreadPoolExecutor(threads, "outlast-fetch", work_for, (cancellation,)) as pool:
            try:
                for opened in as_completed([pool.submit(open_one, index) for index in missing]):
                    opened.result()
            except BaseException:
                cancellation.cancel()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
