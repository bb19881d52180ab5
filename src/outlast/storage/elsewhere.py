"""A store some of whose objects lie elsewhere, for a data set whose files are not all beside its manifest.

In: a store, and for names in it the URLs of the objects that they stand for. Out: a store that reads those
where they lie. The URLs come from data, so they lead to stores alone, never to this machine: to buckets, and
to http(s) servers of public addresses, the store's own server or one that ``OUTLAST_PRIVATE_HOSTS`` names
(docs/design/remote_shards.md).
"""

import io
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from outlast.errors import ObjectNotFound, StorageError
from outlast.storage import open_store, split_url
from outlast.storage.addresses import CONSENT
from outlast.storage.http import HttpStore
from outlast.storage.regular import MOST_BYTES
from outlast.storage.store import Chunks, ObjectInfo, Pause, Store

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_URL = re.compile(r"(?:gs|s3|az|https?)://[^\s@?#\\\\]+/[^\s@?#\\\\/]+")


def is_url(url: str) -> bool:
    """Whether a text is the URL of an object in a store, without user, query or fragment."""
    return bool(_URL.fullmatch(url)) and ".." not in url.split("/")


def open_elsewhere(own: Store, urls: Mapping[str, str]) -> Store:
    """Return a store that holds what ``own`` holds, and under each of the names the object of its URL.

    Raises:
        ConfigError: a host of a private address that nobody has consented to.
    """
    if not urls:
        return own
    stores: dict[str, Store] = {}
    for url in urls.values():
        folder, _ = split_url(url)
        if folder not in stores:
            stores[folder] = _open(folder, own.url)
    places = {name: (stores[split_url(url)[0]], split_url(url)[1]) for name, url in urls.items()}
    return _SpreadStore(own, places)


def _open(folder: str, own: str) -> Store:
    if not folder.startswith(("http://", "https://")):
        return open_store(folder)
    server = "/".join(folder.split("/")[:3])
    is_own = f"{own}/".startswith(f"{server}/")
    host = server.partition("://")[2]
    allowed = [name.strip() for name in os.environ.get(CONSENT, "").split(",")]
    return HttpStore(folder, public_only=not is_own and not {host, host.rpartition(":")[0]} & set(allowed))


class _SpreadStore(Store):
    """A store in which some names stand for objects of other stores."""

    def __init__(self, own: Store, places: Mapping[str, tuple[Store, str]]) -> None:
        self.url = own.url
        self._own = own
        self._places = places
        stores = [own, *(store for store, _ in places.values())]
        # One that repeats requests by itself has to know that somebody else does.
        self._retrying = next((store for store in stores if type(store).retry is not Store.retry), own)

    def _at(self, name: str) -> tuple[Store, str]:
        return self._places.get(name, (self._own, name))

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        store, name = self._at(name)
        return store.read(name, most_bytes)

    def read_range(self, name: str, start: int, length: int) -> bytes:
        store, name = self._at(name)
        return store.read_range(name, start, length)

    def size_bytes(self, name: str) -> int:
        store, name = self._at(name)
        return store.size_bytes(name)

    def local_path(self, name: str) -> Path | None:
        store, name = self._at(name)
        return store.local_path(name)

    def open(self, name: str) -> io.BufferedIOBase:
        store, name = self._at(name)
        return store.open(name)

    def url_of(self, name: str) -> str:
        store, name = self._at(name)
        return store.url_of(name)

    def gives_ranges(self, name: str) -> bool:
        store, name = self._at(name)
        return store.gives_ranges(name)

    def download(self, name: str, take: Callable[[int, bytes], object]) -> None:
        store, name = self._at(name)
        store.download(name, take)

    def retry(self, action: Callable[[*Ts], T], *arguments: *Ts, pause: Pause = time.sleep) -> T:
        return self._retrying.retry(action, *arguments, pause=pause)

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        found = {info.name: info for info in self._own.list(prefix)}
        for name in self._places:
            if name.startswith(prefix):
                with suppress(ObjectNotFound):
                    found[name] = ObjectInfo(name, self.size_bytes(name), 0.0)  # when is not asked for
        return sorted(found.values())

    def create(self, name: str, content: Chunks) -> None:
        self._own_alone(name).create(name, content)

    def replace(self, name: str, content: Chunks) -> None:
        self._own_alone(name).replace(name, content)

    def delete(self, name: str) -> None:
        self._own_alone(name).delete(name)

    def _own_alone(self, name: str) -> Store:
        if name in self._places:
            raise StorageError("The object lies elsewhere and is only read.", where=self.url_of(name))
        return self._own
