"""Shards that are fetched before they are needed: in time, within the bounds, and nothing left behind."""

import errno
import fcntl
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ShardError, StorageError, StoreUnreachable
from outlast.shards.manifest import Manifest
from outlast.storage import LocalStore, Store
from outlast.storage.http import HttpStore
from outlast.stream import loader
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.stream.remote import ranges
from outlast.stream.remote.ranges import copy_in_order
from support.datasets import write_counting_data
from support.faults import FaultyProxy
from support.files import serving_ranges

NUM_SHARDS = 12
SHARD_EXAMPLES = 10
LENGTH = 32
BATCH = 4


@pytest.fixture(autouse=True)
def small_and_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 256)
    monkeypatch.setattr(loader, "_GATHERED_STEPS", 1)
    monkeypatch.setattr(Store, "retry_seconds", 20.0)
    monkeypatch.setattr(Store, "first_pause_seconds", 0.01)
    monkeypatch.setattr(HttpStore, "silence_seconds", 5.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("data")
    lengths = [[SHARD_EXAMPLES * LENGTH - 1]] * NUM_SHARDS
    return folder, write_counting_data(LocalStore(folder), lengths)


@pytest.fixture
def far(data: tuple[Path, Manifest]) -> Iterator[FaultyProxy]:
    with serving_ranges(data[0]) as url, FaultyProxy("127.0.0.1", int(url.rpartition(":")[2])) as proxy:
        yield proxy


def make_stream(url: str, cache: Path, **options: Any) -> TokenStream:
    """A stream of one lane whose windows are two to three shards."""
    fields: dict[str, Any] = {"global_batch_size": BATCH, "sequence_length": LENGTH, "special_tokens": False}
    fields |= {"num_lanes": 1, "window_examples": 2 * SHARD_EXAMPLES, "prefetch_batches": 1}
    config = StreamConfig(manifest=f"{url}/manifest.json", cache_dir=str(cache), **{**fields, **options})
    return TokenStream(config, seed=0)


def take(batches: Iterator[Any], count: int) -> list[bytes]:
    return [batch["input_ids"].tobytes() for batch in itertools.islice(batches, count)]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def finished(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if len(path.name) == 64} if cache.exists() else set()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("outlast-")]


def digests(manifest: Manifest, stream: TokenStream, first_step: int, last_step: int) -> set[str]:
    """The shards that the steps touch."""
    entries = manifest.splits["train"]
    steps = range(first_step, last_step + 1)
    return {entries[shard].sha256 for step in steps for shard in stream.order.rows(step).shards.tolist()}


def test_the_next_windows_are_there_before_a_batch_asks_for_them(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path
) -> None:
    """Nobody reads on after the first batch, and the shards of the third window come all the same."""
    stream = make_stream(far.url, tmp_path)
    batches = stream.batches_from(0)
    next(batches)
    wait_until(lambda: digests(data[1], stream, 0, 14) <= finished(tmp_path))
    far.go_down()
    assert take(batches, 13) == take(make_stream(str(data[0]), tmp_path).batches_from(1), 13)
    batches.close()


def test_each_shard_comes_once_and_is_hashed_once(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    hashed: list[object] = []
    digest_of = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: hashed.append(given) or digest_of(*given))
    far.inject((), matching=lambda _, path: "safetensors" in path)
    stream = make_stream(far.url, tmp_path)
    num_steps = 3 * stream.num_examples // BATCH
    batches = stream.batches_from(0)
    assert len(take(batches, num_steps)) == num_steps
    batches.close()
    sizes = [entry.size_bytes for entry in data[1].splits["train"]]
    assert len(far.seen) == 1 + sum(-(-size // 256) for size in sizes), "one asks for ranges"
    assert not hashed, "what this process has written is verified as it comes"
    assert take(make_stream(far.url, tmp_path).batches_from(0), 3)


def test_all_that_the_first_batch_needs_comes_at_the_same_time(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of several shards is asked for, and no answer comes before all of them have been asked for."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 2**20)
    stream = make_stream(far.url, tmp_path, global_batch_size=6, window_examples=10**6)
    num_shards = len(set(stream.order.rows(0).shards.tolist()))
    assert num_shards >= 4
    together = threading.Barrier(num_shards)
    read_range = HttpStore.read_range

    def meet(self: HttpStore, name: str, start: int, length: int) -> bytes:
        together.wait(60)  # broken, and an error, where fewer come
        return read_range(self, name, start, length)

    monkeypatch.setattr(HttpStore, "read_range", meet)
    stream.batch(0)


def test_an_iterator_that_is_dropped_leaves_no_thread_and_nothing_half_written(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path
) -> None:
    wait_until(lambda: not threads())
    far.inject(lambda number: "delayed" if number > 20 else None, matching=lambda _, path: "train" in path)
    stream = make_stream(far.url, tmp_path)
    batches = stream.batches_from(0)
    next(batches)
    wait_until(lambda: "delayed" in far.injected)
    assert threads()
    del batches
    wait_until(lambda: not threads())
    assert all(len(path.name) == 64 for path in tmp_path.iterdir())
    far.come_up()
    assert take(stream.batches_from(0), 9) == take(make_stream(str(data[0]), tmp_path).batches_from(0), 9)


def test_an_error_is_raised_when_its_shard_is_needed_and_not_before(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "retry_seconds", 0.3)
    local = make_stream(str(data[0]), tmp_path)
    placed = local.order.rows(0, num_steps=30).shards
    far_shard = int(placed[-1])
    first = int(np.flatnonzero(placed == far_shard)[0]) // BATCH
    name = data[1].splits["train"][far_shard].name
    far.inject(lambda _: "503", matching=lambda _, path: name in path)
    stream = make_stream(far.url, tmp_path)
    batches = stream.batches_from(0)
    early = take(batches, 2)
    wait_until(lambda: far.injected)
    early += take(batches, first - 2)
    assert early == take(local.batches_from(0), first)
    with pytest.raises(StoreUnreachable, match=name):
        next(batches)
    far.come_up()
    assert take(stream.batches_from(first), 2) == take(local.batches_from(first), 2)


def test_a_shard_that_vanishes_is_a_damaged_data_set(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path
) -> None:
    stream = make_stream(far.url, tmp_path / "cache")
    lost = data[0] / data[1].splits["train"][int(stream.order.rows(29).shards[0])].name
    content = lost.read_bytes()
    lost.unlink()
    try:
        with pytest.raises(ShardError, match="missing") as caught:
            take(stream.batches_from(0), 30)
        assert lost.name in str(caught.value)
    finally:
        lost.write_bytes(content)


@pytest.mark.parametrize("num_shards", [1, 4, 7])
def test_the_cache_keeps_to_its_bound_and_says_once_that_it_is_too_small(
    far: FaultyProxy,
    data: tuple[Path, Manifest],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    num_shards: int,
) -> None:
    limit = num_shards * max(entry.size_bytes for entry in data[1].splits["train"])
    stream = make_stream(far.url, tmp_path / "cache", cache_bytes=limit, reader_threads=1)
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, size_of(tmp_path / "cache"))
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        batches = stream.batches_from(0)
        found = take(batches, 10 if num_shards == 1 else 2 * stream.num_examples // BATCH)
        batches.close()
    finally:
        done.set()
        watcher.join()
    assert found == take(make_stream(str(data[0]), tmp_path).batches_from(0), len(found))
    assert 0 < most <= limit
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in warnings if "stream.cache_bytes" in text]) == (1 if num_shards == 1 else 0)


class SmallDisk:
    """A disk that is full when the files of a folder, and what is being written there, have so many bytes."""

    def __init__(self, folder: Path, room_bytes: int) -> None:
        self._folder, self._room = folder, room_bytes
        self._written: dict[object, int] = {}
        self._lock = threading.Lock()

    def _finished_bytes(self) -> int:
        total = 0
        for path in self._folder.iterdir():
            with suppress(FileNotFoundError):  # evicted meanwhile
                total += 0 if path.suffix else path.stat().st_size
        return total

    def copy_in_order(
        self, read: Any, size: int, sink: Callable[[bytes], object], in_flight: Any, cancellation: Any
    ) -> None:
        def write(content: bytes) -> None:
            with self._lock:
                if self._finished_bytes() + sum(self._written.values()) + len(content) > self._room:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._written[mine] += len(content)
            sink(content)

        mine = object()
        self._written[mine] = 0
        try:
            copy_in_order(read, size, write, in_flight, cancellation)
        finally:
            del self._written[mine]


@pytest.mark.parametrize("num_shards", [1.5, 4.5])
@pytest.mark.parametrize("reads_ahead", [True, False])
def test_a_disk_that_is_smaller_than_the_limit_is_a_limit(
    far: FaultyProxy,
    data: tuple[Path, Manifest],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_shards: float,
    reads_ahead: bool,
) -> None:
    cache = tmp_path / "cache"
    disk = SmallDisk(cache, int(num_shards * data[1].splits["train"][0].size_bytes))
    monkeypatch.setattr("outlast.stream.remote.ranges.copy_in_order", disk.copy_in_order)
    stream = make_stream(far.url, cache)
    batches = stream.batches_from(0) if reads_ahead else map(stream.batch, itertools.count())
    assert take(batches, 24) == take(make_stream(str(data[0]), tmp_path).batches_from(0), 24)


def test_a_disk_without_room_for_a_shard_is_an_error_of_every_reader(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are many, and none waits for another one that gets no further either."""
    disk = SmallDisk(tmp_path / "cache", 300)
    monkeypatch.setattr("outlast.stream.remote.ranges.copy_in_order", disk.copy_in_order)
    stream = make_stream(far.url, tmp_path / "cache", global_batch_size=NUM_SHARDS * SHARD_EXAMPLES)
    with pytest.raises(StorageError, match="No space left"):
        stream.batch(0)
    with pytest.raises(StorageError, match="No space left"):
        next(stream.batches_from(0))


def test_one_shard_that_cannot_be_had_gives_the_others_up(
    far: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is refused for good, the others would be asked for again and again; two come at a time."""
    monkeypatch.setattr("outlast.stream.files._AT_ONCE", 2)
    stream = make_stream(far.url, tmp_path, global_batch_size=NUM_SHARDS * SHARD_EXAMPLES)
    far.inject(lambda number: "403" if far.seen[number][1] == far.seen[0][1] else "503", matching=is_shard)
    with pytest.raises(StorageError, match="status 403"):
        stream.batch(0)
    assert len({path for _, path in far.seen}) <= 3


def is_shard(method: str, path: str) -> bool:
    return "safetensors" in path


def size_of(folder: Path) -> int:
    """Return the bytes in a cache folder: nothing takes room meanwhile, and what is renamed counts once."""
    if not folder.exists():
        return 0
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        sizes: dict[int, int] = {}
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                status = path.stat()
                sizes[status.st_ino] = status.st_size
        return sum(sizes.values())
    finally:
        os.close(descriptor)


def test_what_one_reader_uses_another_does_not_evict(
    far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path
) -> None:
    limit = 4 * max(entry.size_bytes for entry in data[1].splits["train"])
    first = make_stream(far.url, tmp_path, cache_bytes=limit, window_examples=SHARD_EXAMPLES)
    batches = first.batches_from(0)
    next(batches)
    used = digests(data[1], first, 0, 1)
    other = make_stream(far.url, tmp_path, cache_bytes=limit, window_examples=SHARD_EXAMPLES)
    assert len(take(other.batches_from(40), 20)) == 20
    assert used <= finished(tmp_path)
    batches.close()


def test_evaluation_reads_ahead_too(far: FaultyProxy, data: tuple[Path, Manifest], tmp_path: Path) -> None:
    stream = make_stream(far.url, tmp_path)
    batches = stream.evaluation_batches()
    first = next(batches)
    wait_until(lambda: len(finished(tmp_path)) == NUM_SHARDS)
    far.go_down()
    found = [first, *batches]
    expected = list(make_stream(str(data[0]), tmp_path).evaluation_batches())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in other)
    wait_until(lambda: not threads())


def test_a_local_set_has_no_thread_for_it(data: tuple[Path, Manifest], tmp_path: Path) -> None:
    batches = make_stream(str(data[0]), tmp_path / "cache").batches_from(0)
    next(batches)
    assert "outlast-ahead" not in threads()
    assert not (tmp_path / "cache").exists()
    batches.close()
