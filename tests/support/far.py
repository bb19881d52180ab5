"""Data sets far away: on any of the stores that are here, behind a proxy that can have bad days.

In: the name of a store and a folder. Out: the URL of the folder's files there, and the proxy.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from outlast.storage import LocalStore, open_store
from support.faults import FaultyProxy
from support.files import serving_folder, serving_ranges
from support.gcs import GcsServer, gcs_variables
from support.nginx import serving_by_nginx
from support.s3 import S3Server, s3_variables

_SERVERS = {"http": serving_ranges, "nginx": serving_by_nginx, "plain": serving_folder}
PutFar = Callable[[str, Path], AbstractContextManager[tuple[str, FaultyProxy]]]
"""From ``s3``, ``gcs``, ``http``, ``nginx`` or ``plain`` (no ranges), and a folder, to its URL and proxy."""


@pytest.fixture
def put_far(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PutFar:
    """Files of a folder behind a proxy, on any of the stores."""

    @contextmanager
    def put(kind: str, folder: Path) -> Generator[tuple[str, FaultyProxy]]:
        if kind in _SERVERS:
            with (
                _SERVERS[kind](folder) as url,
                FaultyProxy("127.0.0.1", int(url.rpartition(":")[2])) as proxy,
            ):
                yield proxy.url, proxy
            return
        server: S3Server | GcsServer = request.getfixturevalue(f"{kind}_server")
        with FaultyProxy("127.0.0.1", server.port) as proxy:
            for name, value in (
                s3_variables(proxy.url)
                if isinstance(server, S3Server)
                else gcs_variables(proxy.url, tmp_path)
            ).items():
                monkeypatch.setenv(name, value)
            url = f"{server.new_bucket()}/data"
            local, store = LocalStore(folder), open_store(url)
            for info in local.list():
                store.create(info.name, [local.read(info.name)])
            yield url, proxy

    return put
