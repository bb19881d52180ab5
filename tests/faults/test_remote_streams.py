"""Streams of a store: whatever it, the disk or another process does, the local batches or an error."""

import itertools
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlast.errors import ShardError, StorageError
from outlast.images.config import ImagesConfig, ImageStreamConfig
from outlast.images.stream import ImageStream
from outlast.storage import LocalStore, Store
from outlast.storage.http import HttpStore
from outlast.storage.remote import ObjectStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.stream.remote import ranges
from support.datasets import write_counting_data
from support.far import PutFar
from support.faults import TRANSIENT, Fault, FaultyProxy
from support.images import write_images

NUM_STEPS = 18
FAULTS: list[Fault] = [*TRANSIENT, "stall", "wrong"]


class FarSet(NamedTuple):
    """A data set on this disk and behind a proxy."""

    kind: str
    folder: Path
    url: str
    proxy: FaultyProxy


@pytest.fixture(autouse=True)
def impatient(data: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Several requests for each shard, and no waiting."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", 512 if data[0] == "text" else 4096)
    monkeypatch.setattr(Store, "retry_seconds", 30.0)
    monkeypatch.setattr(Store, "first_pause_seconds", 0.01)
    monkeypatch.setattr(ObjectStore, "silence_seconds", 1.0)
    monkeypatch.setattr(HttpStore, "silence_seconds", 1.0)


@pytest.fixture(scope="module", params=["text", "images"])
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "images":
        write_images(folder, [9] * 6 + [4])
    else:
        write_counting_data(LocalStore(folder), [[319]] * 6)
    return request.param, folder


@pytest.fixture(params=["s3", "gcs", "nginx", "plain"])
def far_set(request: pytest.FixtureRequest, data: tuple[str, Path], put_far: PutFar) -> Iterator[FarSet]:
    with put_far(request.param, data[1]) as (url, proxy):
        yield FarSet(*data, url, proxy)


def make_stream(kind: str, url: str, cache: Path, **options: Any) -> TokenStream | ImageStream:
    """A stream whose windows are a third of the set."""
    fields: dict[str, Any] = {"manifest": f"{url}/manifest.json", "cache_dir": str(cache), "num_lanes": 1}
    if kind == "images":
        images = ImagesConfig(image_size=16)
        fields |= {"packing": "images", "global_batch_size": 6, "window_examples": 18, "images": images}
        return ImageStream(ImageStreamConfig(**{**fields, **options}), seed=0)
    fields |= {"sequence_length": 32, "global_batch_size": 6, "window_examples": 22}
    return TokenStream(StreamConfig(**{**fields, **options}), seed=0)


def take(stream: TokenStream | ImageStream, start: int = 0, stop: int = NUM_STEPS) -> list[bytes]:
    batches = itertools.islice(stream.batches_from(start), stop - start)
    return [b"".join(array.tobytes() for array in batch.values()) for batch in batches]


def is_shard(method: str, path: str) -> bool:
    return method == "GET" and "manifest" not in path


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_day_changes_no_batch(far_set: FarSet, tmp_path: Path, fault: Fault) -> None:
    """Every second request of a shard fails at first. Wrong bytes are seen, and never handed on.

    Wrong ones come twice: a shard that is wrong three times in a row is given up, and rightly.
    """
    expected = take(make_stream(far_set.kind, str(far_set.folder), tmp_path / "unused"))
    failing = range(1, 7, 5) if fault == "wrong" else range(1, 22, 2)
    far_set.proxy.inject(lambda number: fault if number in failing else None, matching=is_shard)
    cache = tmp_path / "cache"
    assert take(make_stream(far_set.kind, far_set.url, cache)) == expected
    assert len(far_set.proxy.injected) >= min(3, len(failing))
    assert all(len(path.name) == 64 for path in cache.iterdir())
    # A life that resumes in the same cache, with other threads, sees the same tail.
    far_set.proxy.inject((), matching=is_shard)
    resumed = make_stream(far_set.kind, far_set.url, cache, reader_threads=1, prefetch_batches=7)
    assert take(resumed, 7) == expected[7:]
    assert far_set.proxy.seen == []


def test_bytes_that_stay_wrong_end_the_run_and_are_never_handed_on(far_set: FarSet, tmp_path: Path) -> None:
    far_set.proxy.inject(lambda _: "wrong", matching=is_shard)
    with pytest.raises(ShardError, match="fail the manifest's sha256"):
        take(make_stream(far_set.kind, far_set.url, tmp_path / "cache"))
    assert [path for path in (tmp_path / "cache").iterdir() if len(path.name) == 64] == []


READER = """
import sys
sys.path.insert(0, sys.argv[4])
from pathlib import Path
from test_remote_streams import make_stream
from outlast.stream.remote import ranges
ranges.RANGE_BYTES = 512 if sys.argv[1] == 'text' else 4096
stream = make_stream(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
for step, batch in enumerate(stream.batches_from(0)):
    print(step, flush=True)
"""


@pytest.mark.parametrize("far_set", ["gcs"], indirect=True)
def test_a_reader_is_killed_while_others_read_the_same_cache(far_set: FarSet, tmp_path: Path) -> None:
    """It dies in the middle of a download; two others want the same shards, and get on without cleaning."""
    expected = take(make_stream(far_set.kind, str(far_set.folder), tmp_path / "unused"))
    cache = tmp_path / "cache"
    far_set.proxy.inject(lambda number: "delayed" if number % 3 == 0 else None, matching=is_shard)
    line = [sys.executable, "-c", READER, far_set.kind, far_set.url, str(cache), str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed, other = (
        subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)
    )
    with killed, other:
        try:
            while not (cache.exists() and any(path.suffix == ".part" for path in cache.iterdir())):
                assert killed.poll() is None
            killed.send_signal(signal.SIGKILL)
            assert take(make_stream(far_set.kind, far_set.url, cache)) == expected
            assert other.stdout is not None
            while int(other.stdout.readline()) < NUM_STEPS:
                pass
        finally:
            other.kill()
            killed.kill()
    far_set.proxy.come_up()
    assert take(make_stream(far_set.kind, far_set.url, cache)) == expected


@pytest.mark.parametrize("far_set", ["gcs"], indirect=True)
def test_a_disk_that_takes_no_more_is_said_and_nothing_half_written_stays(
    far_set: FarSet, tmp_path: Path
) -> None:
    """The limit on the size of a file stands for the disk: the system itself refuses the write."""
    cache = tmp_path / "cache"
    stream = make_stream(far_set.kind, far_set.url, cache)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
        with pytest.raises(StorageError, match="cache folder") as caught:
            take(stream)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "stream.cache_dir" in str(caught.value.remedy)
    # Requests that were under way when the stream ended come to their own end.
    deadline = time.monotonic() + 60
    while any(path.suffix == ".part" for path in cache.iterdir()):
        assert time.monotonic() < deadline, list(cache.iterdir())
        time.sleep(0.01)
    expected = take(make_stream(far_set.kind, str(far_set.folder), tmp_path / "unused"))
    assert take(make_stream(far_set.kind, far_set.url, cache)) == expected


@pytest.mark.parametrize("far_set", ["gcs"], indirect=True)
def test_a_cache_that_cannot_be_written_gives_what_it_holds(
    far_set: FarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filled by one reader, then read-only, as a disk that other machines share."""
    cache = tmp_path / "cache"
    expected = take(make_stream(far_set.kind, far_set.url, cache))
    for path in [*cache.iterdir(), cache]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        far_set.proxy.inject((), matching=is_shard)
        assert take(make_stream(far_set.kind, far_set.url, cache)) == expected
        assert far_set.proxy.seen == []
    finally:
        cache.chmod(0o755)
