"""Opening the files of a data set: local ones where they lie, remote ones by way of the cache.

In: the entries of a manifest. Out: what each file holds, mapped. No file is opened before its bytes have
passed their digest once, unless the run says not to verify.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from outlast.errors import ShardError
from outlast.shards.manifest import FileEntry
from outlast.shards.token_format import SHARD_REMEDY
from outlast.storage import Store
from outlast.stream.cache import ShardCache, default_cache_folder
from outlast.stream.config import StreamConfig

T = TypeVar("T")

_MOST_OPEN = 448
"""Files of one kind. A stream of pairs opens two kinds, and most systems allow a process 1024."""


class OpenFiles(Generic[T]):
    """The files of a data set that have been opened: mapped, each verified once.

    Args:
        open_file: opens the local copy of a file, by its index and path.
    """

    def __init__(
        self,
        store: Store,
        entries: Sequence[FileEntry],
        config: StreamConfig,
        open_file: Callable[[int, Path], T],
    ) -> None:
        self._entries = entries
        self._store = store
        self._config = config
        self._open_file = open_file
        self._held: dict[int, T] = {}
        self._verified: set[int] = set()
        self._locks = [threading.Lock() for _ in entries]

    def get(self, index: int) -> T:
        """Return what a file holds: for a shard its flat tokens, uint16 or uint32, mapped.

        A mapped file holds a descriptor, so only so many stay open; the oldest goes, and is not verified
        again.
        """
        held = self._held.get(index)
        if held is None:
            with self._locks[index]:
                held = self._held.get(index)
                if held is None:
                    held = self._open(index)
                    self._held[index] = held
                    if len(self._held) > _MOST_OPEN:
                        with suppress(StopIteration, KeyError, RuntimeError):  # another thread was as quick
                            del self._held[next(iter(self._held))]
        return held

    def _open(self, index: int) -> T:
        entry = self._entries[index]
        path = self._store.local_path(entry.name)
        if path is not None:
            if self._config.verify and index not in self._verified:
                _verify_file(path, entry)
                self._verified.add(index)
            return self._open_file(index, path)
        folder = (
            Path(self._config.cache_dir).expanduser() if self._config.cache_dir else default_cache_folder()
        )
        cache = ShardCache(folder, self._config.cache_bytes, verify=self._config.verify)
        while True:
            path = cache.fetch(self._store, entry)
            try:
                return self._open_file(index, path)
            except FileNotFoundError:
                continue  # another process made room between the two lines


def _verify_file(path: Path, entry: FileEntry) -> None:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ShardError("The shard is missing.", where=str(path), remedy=SHARD_REMEDY) from None
    if digest != entry.sha256:
        raise ShardError(
            f"The shard fails the manifest's sha256 ({path.stat().st_size} of {entry.size_bytes} bytes).",
            where=str(path),
            expected=entry.sha256,
            remedy=SHARD_REMEDY,
        )
