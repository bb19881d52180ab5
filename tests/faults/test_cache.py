"""The cache of remote shards: whatever the store or another process does, right bytes or an error."""

import hashlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ShardError, StoreUnreachable
from outlast.shards.manifest import Manifest, ShardEntry, read_manifest
from outlast.storage import LocalStore, Store, open_store
from outlast.storage.http import HttpStore
from outlast.storage.remote import ObjectStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.stream.remote import ranges
from outlast.stream.remote.cache import CachedShard, ShardCache
from support.datasets import write_counting_data
from support.far import PutFar
from support.faults import TRANSIENT, Fault, FaultyProxy
from support.gcs import GcsServer, gcs_variables

LENGTHS = [[300, 70], [500], [33, 410], [260]]


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several range requests for each of the small shards, and no waiting."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 256)
    monkeypatch.setattr(Store, "retry_seconds", 20.0)
    monkeypatch.setattr(Store, "first_pause_seconds", 0.01)
    monkeypatch.setattr(ObjectStore, "silence_seconds", 0.5)
    monkeypatch.setattr(HttpStore, "silence_seconds", 0.5)


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Manifest]:
    folder = tmp_path / "data"
    return folder, write_counting_data(LocalStore(folder), LENGTHS)


@pytest.fixture(params=["s3", "gcs", "http"])
def remote(
    request: pytest.FixtureRequest, data: tuple[Path, Manifest], put_far: PutFar
) -> Iterator[tuple[str, FaultyProxy]]:
    """The data set on a store behind a proxy: the URL of its folder."""
    with put_far(request.param, data[0]) as far:
        yield far


def tokens_of(url: str, cache: Path, **options: object) -> list[np.ndarray]:
    """Return an epoch of batches of a data set on a store."""
    fields = {"manifest": f"{url}/manifest.json", "global_batch_size": 4, "sequence_length": 32}
    config = StreamConfig(**fields, cache_dir=str(cache), **options)  # pyright: ignore[reportArgumentType]
    stream = TokenStream(config, seed=0)
    return [stream.batch(step)["input_ids"] for step in range(stream.num_examples // 4)]


def equal(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def entries(manifest: Manifest) -> tuple[ShardEntry, ...]:
    return manifest.splits["train"]


@pytest.mark.parametrize("fault", [*TRANSIENT, "stall"])
def test_a_store_that_fails_for_a_while_gives_the_same_bytes(
    remote: tuple[str, FaultyProxy], data: tuple[Path, Manifest], tmp_path: Path, fault: Fault
) -> None:
    url, proxy = remote
    expected = tokens_of(str(data[0]), tmp_path / "unused")
    proxy.inject(lambda number: fault if number % 3 == 1 and number < 12 else None)
    assert equal(tokens_of(url, tmp_path / "cache"), expected)
    assert len(proxy.injected) >= 3
    assert names_in(tmp_path / "cache") == {entry.sha256 for entry in entries(data[1])}


@pytest.mark.parametrize("fault", ["503", "reset", "short"])
def test_a_store_that_stays_away_is_a_named_error_within_the_deadline(
    remote: tuple[str, FaultyProxy],
    data: tuple[Path, Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
) -> None:
    url, proxy = remote
    monkeypatch.setattr(Store, "retry_seconds", 0.5)
    manifest, store = read_manifest(f"{url}/manifest.json")
    proxy.inject(lambda _: fault)
    with pytest.raises(StoreUnreachable) as caught:
        ShardCache(tmp_path / "cache", 2**30).fetch(store, entries(manifest)[0])
    assert entries(manifest)[0].name in str(caught.value)
    assert names_in(tmp_path / "cache") == set()


def test_wrong_bytes_are_fetched_again(
    remote: tuple[str, FaultyProxy], data: tuple[Path, Manifest], tmp_path: Path
) -> None:
    url, proxy = remote
    manifest, store = read_manifest(f"{url}/manifest.json")
    entry = entries(manifest)[0]
    proxy.inject(["wrong"])
    path = ShardCache(tmp_path / "cache", 2**30).fetch(store, entry).path
    assert path.read_bytes() == (data[0] / entry.name).read_bytes()
    assert proxy.injected == ["wrong"]


def test_bytes_that_stay_wrong_are_never_handed_on(
    remote: tuple[str, FaultyProxy], data: tuple[Path, Manifest], tmp_path: Path
) -> None:
    url, proxy = remote
    manifest, store = read_manifest(f"{url}/manifest.json")
    entry = entries(manifest)[0]
    proxy.inject(lambda number: "wrong" if number % 2 else None)
    with pytest.raises(ShardError, match="fail the manifest's sha256") as caught:
        ShardCache(tmp_path / "cache", 2**30).fetch(store, entry)
    assert entry.name in str(caught.value)
    assert names_in(tmp_path / "cache") == set()


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_shard_that_is_not_there_or_cut_short_is_named(
    remote: tuple[str, FaultyProxy], data: tuple[Path, Manifest], tmp_path: Path, damage: str
) -> None:
    url, _ = remote
    manifest, store = read_manifest(f"{url}/manifest.json")
    entry = entries(manifest)[1]
    target = LocalStore(data[0]) if url.startswith("http") else store
    content = target.read(entry.name)
    target.delete(entry.name)
    if damage == "cut":
        target.create(entry.name, [content[:700]])
    with pytest.raises(ShardError, match="missing" if damage == "missing" else "has 700 bytes") as caught:
        ShardCache(tmp_path / "cache", 2**30).fetch(store, entry)
    assert entry.name in str(caught.value)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


SHARING = """
import sys
from pathlib import Path
from outlast.stream.remote import cache, ranges
from outlast.shards.manifest import read_manifest
ranges.RANGE_BYTES = 256
manifest, store = read_manifest(sys.argv[1])
shards = manifest.splits["train"]
folder = cache.ShardCache(Path(sys.argv[2]), int(sys.argv[3]))
print("ready", flush=True)
sys.stdin.readline()
import hashlib
for turn in range(int(sys.argv[4])):
    for entry in shards:
        while True:
            try:
                content = folder.fetch(store, entry).path.read_bytes()
                break
            except FileNotFoundError:
                continue
        assert hashlib.sha256(content).hexdigest() == entry.sha256
"""


def share(url: str, folder: Path, limit: int, turns: int, processes: int = 2) -> None:
    """Let processes fetch all shards at the same time; each checks every byte it gets."""
    command = [sys.executable, "-c", SHARING, f"{url}/manifest.json", str(folder), str(limit), str(turns)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.communicate("go\n", timeout=120)
        assert process.returncode == 0


def test_two_processes_share_the_folder(
    data: tuple[Path, Manifest], gcs_server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard comes over the network once; with no room for all of them, more often, and still right."""
    local = LocalStore(data[0])
    for name, value in gcs_variables(gcs_server.url, tmp_path).items():
        monkeypatch.setenv(name, value)
    url = f"{gcs_server.new_bucket()}/data"
    store = open_store(url)
    for info in local.list():
        store.create(info.name, [local.read(info.name)])
    gcs_server.requests.clear()
    share(url, tmp_path / "cache", 2**30, turns=3)
    asked = [path for method, path in gcs_server.requests if method == "GET" and "safetensors" in path]
    assert len(asked) == sum(-(-entry.size_bytes // 256) for entry in entries(data[1]))
    share(url, tmp_path / "tight", max(entry.size_bytes for entry in entries(data[1])), turns=4)
    assert all(len(name) == 64 for name in names_in(tmp_path / "tight"))


def test_killed_in_the_middle_of_a_download_nothing_needs_cleaning(
    data: tuple[Path, Manifest], gcs_server: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, shards = LocalStore(data[0]), entries(data[1])
    with FaultyProxy("127.0.0.1", gcs_server.port) as proxy:
        for name, value in gcs_variables(proxy.url, tmp_path).items():
            monkeypatch.setenv(name, value)
        url = f"{gcs_server.new_bucket()}/data"
        store = open_store(url)
        for info in local.list():
            store.create(info.name, [local.read(info.name)])
        proxy.inject(lambda number: "stall" if number > 1 else None, matching=is_shard)
        command = [sys.executable, "-c", SHARING, f"{url}/manifest.json", str(tmp_path / "cache"), "1", "1"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        wait_until(lambda: "stall" in proxy.injected)
        process.kill()
        process.communicate()
        proxy.inject(())
        assert {name.partition(".")[2] for name in names_in(tmp_path / "cache")} == {"part"}
        for entry in shards:
            assert digest(ShardCache(tmp_path / "cache", 2**30).fetch(store, entry).path) == entry.sha256
        assert names_in(tmp_path / "cache") == {entry.sha256 for entry in shards}


def is_shard(method: str, path: str) -> bool:
    return method == "GET" and "safetensors" in path


def wait_until(condition: object, limit_seconds: float = 60) -> None:
    assert callable(condition)
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_shard_evicted_before_it_is_opened_is_fetched_again(
    remote: tuple[str, FaultyProxy],
    data: tuple[Path, Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, _ = remote
    expected = tokens_of(str(data[0]), tmp_path / "unused")
    fetch = ShardCache.fetch
    evicted: list[str] = []

    def fetch_and_lose(self: ShardCache, store: Store, entry: ShardEntry, *options: Any) -> CachedShard:
        shard = fetch(self, store, entry, *options)
        if evicted.count(shard.path.name) < 2:
            evicted.append(shard.path.name)
            shard.path.unlink()
        return shard

    monkeypatch.setattr(ShardCache, "fetch", fetch_and_lose)
    assert equal(tokens_of(url, tmp_path / "cache"), expected)
    assert len(evicted) == 2 * len(LENGTHS)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
