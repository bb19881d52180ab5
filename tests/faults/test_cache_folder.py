"""The folder of the cache: bounded, cleaned up after the dead, and clear about what the disk refuses."""

import errno
import fcntl
import hashlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import StorageError
from outlast.shards.manifest import Manifest, ShardEntry
from outlast.storage import LocalStore
from outlast.stream.remote import ranges
from outlast.stream.remote.cache import CachedShard, ShardCache, shared_cache
from outlast.stream.remote.cancel import Cancellation
from support.datasets import write_counting_data

LENGTHS = [[300, 70], [500], [33, 410], [260]]


# Python and jax, where another test has imported it, warn of forks beside threads. These children only wait
# or leave.
IN_THREADS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several range requests for each of the small shards."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 256)


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Manifest]:
    folder = tmp_path / "data"
    return folder, write_counting_data(LocalStore(folder), LENGTHS)


def entries(manifest: Manifest) -> tuple[ShardEntry, ...]:
    return manifest.splits["train"]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class CountingStore(LocalStore):
    """A store that is not local to the package, and counts its reads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads = 0
        self.most = 0
        self.folder: Path | None = None

    def read_range(self, name: str, start: int, length: int) -> bytes:
        self.reads += 1
        if self.folder is not None:
            self.most = max(self.most, size_of(self.folder))
        return super().read_range(name, start, length)


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_folder_stays_within_its_bound(data: tuple[Path, Manifest], tmp_path: Path) -> None:
    store = CountingStore(data[0])
    store.folder = tmp_path / "cache"
    shards = entries(data[1])
    limit = sum(sorted(entry.size_bytes for entry in shards)[-2:])
    cache = ShardCache(store.folder, limit)
    for turn in range(12):
        entry = shards[turn * 3 % len(shards)]
        assert digest(cache.fetch(store, entry).path) == entry.sha256
    assert store.most <= limit, "what is being written counts, too"
    assert len(names_in(store.folder)) >= 2


def test_the_least_recently_used_goes_first(data: tuple[Path, Manifest], tmp_path: Path) -> None:
    store, shards = CountingStore(data[0]), entries(data[1])
    cache = ShardCache(tmp_path / "cache", sum(entry.size_bytes for entry in shards[:3]))
    for age, entry in enumerate(shards[:3]):
        os.utime(cache.fetch(store, entry).path, (age, age))
    cache.fetch(store, shards[0])
    cache.fetch(store, shards[3])
    assert shards[0].sha256 in names_in(tmp_path / "cache")
    assert shards[1].sha256 not in names_in(tmp_path / "cache")


def test_a_single_shard_may_exceed_the_bound(data: tuple[Path, Manifest], tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", 0)
    for entry in entries(data[1]):
        assert digest(cache.fetch(CountingStore(data[0]), entry).path) == entry.sha256
        assert len(names_in(tmp_path / "cache")) == 1


def test_what_dead_processes_left_is_taken_away(data: tuple[Path, Manifest], tmp_path: Path) -> None:
    shards = entries(data[1])
    folder = tmp_path / "cache"
    folder.mkdir()
    for entry in shards[:2]:
        (folder / f"{entry.sha256}.part").write_bytes(b"half")
    ShardCache(folder, 2**30).fetch(CountingStore(data[0]), shards[0])
    assert names_in(folder) == {shards[0].sha256}


def test_what_a_living_process_writes_is_left_alone(data: tuple[Path, Manifest], tmp_path: Path) -> None:
    shards = entries(data[1])
    folder = tmp_path / "cache"
    folder.mkdir()
    with (folder / f"{shards[1].sha256}.part").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of another descriptor: as good as another process or container
        ShardCache(folder, 2**30).fetch(CountingStore(data[0]), shards[0])
        assert names_in(folder) == {shards[0].sha256, f"{shards[1].sha256}.part"}


@pytest.mark.parametrize("left", ["other bytes", "zeros", "short"])
def test_a_damaged_file_in_the_cache_is_fetched_again(
    data: tuple[Path, Manifest], tmp_path: Path, left: str
) -> None:
    """As a power cut or a failing disk leaves it: the right name, the right size, other bytes."""
    entry = entries(data[1])[0]
    folder = tmp_path / "cache"
    folder.mkdir()
    content = (data[0] / entry.name).read_bytes()
    stale = {"other bytes": content[:-1] + b"\0", "zeros": bytes(len(content)), "short": content[:10]}[left]
    (folder / entry.sha256).write_bytes(stale)
    assert digest(ShardCache(folder, 2**30).fetch(CountingStore(data[0]), entry).path) == entry.sha256


def test_threads_share_one_download(data: tuple[Path, Manifest], tmp_path: Path) -> None:
    store, entry = CountingStore(data[0]), entries(data[1])[0]
    paths: list[Path] = []

    def work() -> None:
        paths.append(ShardCache(tmp_path / "cache", 2**30).fetch(store, entry).path)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert store.reads == -(-entry.size_bytes // 256)


def test_a_full_disk_is_said_with_the_way_out(
    data: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = ShardCache(tmp_path / "cache", 2**30)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left") as caught:
        cache.fetch(CountingStore(data[0]), entries(data[1])[0])
    assert "stream.cache_dir" in str(caught.value.remedy)
    assert names_in(tmp_path / "cache") == set()


@pytest.mark.parametrize("was_there", [False, True])
def test_room_waits_for_a_shard_that_nobody_could_give_up_yet(
    data: tuple[Path, Manifest], tmp_path: Path, caplog: pytest.LogCaptureFixture, was_there: bool
) -> None:
    """Between the end of a download, or a look at a file that is there, and the keeping of the shard."""
    store, (first, second, *_) = CountingStore(data[0]), entries(data[1])
    cache = ShardCache(tmp_path / "cache", max(first.size_bytes, second.size_bytes))
    if was_there:
        cache.fetch(store, first).release()
    kept: list[CachedShard] = []
    is_fetched, may_keep, has_waited = threading.Event(), threading.Event(), threading.Event()

    def keep(shard: CachedShard) -> None:
        is_fetched.set()
        assert may_keep.wait(60)
        kept.append(shard)

    def release_one() -> bool:
        if has_waited.is_set():
            may_keep.set()  # asked a second time: the first answer was not the last
        has_waited.set()
        if not kept:
            return False
        kept.pop().release()
        return True

    ahead = threading.Thread(target=cache.fetch_ahead, args=(store, first, Cancellation(), keep))
    ahead.start()
    try:
        assert is_fetched.wait(60)
        cache.fetch(store, second, release_one)
    finally:
        may_keep.set()
        ahead.join()
    assert names_in(cache.folder) == {second.sha256}
    assert not caplog.records


@IN_THREADS
def test_a_child_that_is_forked_meanwhile_holds_nobody_up(
    data: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forked while a shard is on its way, and while room is made; it lives on and knows nothing of it."""
    store, shards = CountingStore(data[0]), entries(data[1])
    cache = shared_cache(tmp_path / "cache", max(entry.size_bytes for entry in shards), True)
    children: list[int] = []
    before_a_range, before_room = iter([1]), iter([1])

    def fork(times: Iterator[int]) -> None:
        for _ in times:
            child = os.fork()
            if not child:
                signal.alarm(120)
                signal.pause()
            children.append(child)

    def read_range(name: str, start: int, length: int) -> bytes:
        fork(before_a_range)
        return LocalStore.read_range(store, name, start, length)

    def release_one() -> bool:
        fork(before_room)
        return False

    def work() -> None:
        monkeypatch.setattr(store, "read_range", read_range)
        kept = cache.fetch(store, shards[0])
        cache.fetch(store, shards[1], release_one)  # finds the first in use
        kept.release()
        cache.fetch(store, shards[2])

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(20)
    is_held_up = worker.is_alive()
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    worker.join()
    assert not is_held_up
    assert len(children) == 2


@IN_THREADS
def test_a_child_has_a_cache_of_its_own(tmp_path: Path) -> None:
    """Its parent's would wait for threads that are not in it."""
    shared_cache(tmp_path, 1, True)
    child = os.fork()
    if not child:
        os._exit(shared_cache.cache_info().currsize)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_said_with_the_way_out(
    data: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A shard that is in it already is handed out all the same."""
    cache, shards = ShardCache(tmp_path / "cache", 2**30), entries(data[1])
    cache.fetch(CountingStore(data[0]), shards[0])

    def refuse(path: Path, *_: object) -> int:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    assert digest(cache.fetch(CountingStore(data[0]), shards[0]).path) == shards[0].sha256
    with pytest.raises(StorageError) as caught:
        cache.fetch(CountingStore(data[0]), shards[1])
    assert os.strerror(number) in caught.value.message
    assert "stream.cache_dir" in str(caught.value.remedy)


def test_a_folder_that_cannot_be_made_is_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        ShardCache(tmp_path / "file" / "cache", 2**30)
    assert "stream.cache_dir" in str(caught.value.remedy)
