"""Work that nobody wants any more ends: when an iterator is closed, and when the process ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.storage import LocalStore
from outlast.stream.remote.cancel import Cancellation, Cancelled
from outlast.stream.remote.ranges import InFlight, copy_in_order
from support.datasets import write_counting_data
from support.faults import Fault, FaultyProxy
from support.files import serving_folder


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FaultyProxy]:
    write_counting_data(LocalStore(tmp_path / "data"), [[319]] * 12)
    with (
        serving_folder(tmp_path / "data") as url,
        FaultyProxy("127.0.0.1", int(url.rpartition(":")[2])) as proxy,
    ):
        yield proxy


READER = """
import sys, threading
from outlast.stream.remote import ranges
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
ranges.RANGE_BYTES = 256
config = StreamConfig(manifest=sys.argv[1] + "/manifest.json", cache_dir=sys.argv[2], num_lanes=1,
    global_batch_size=int(sys.argv[4]), sequence_length=32, special_tokens=False, window_examples=120)
batches = TokenStream(config, seed=0).batches_from(0)
if sys.argv[3] == "open":
    threading.Thread(target=next, args=(batches,), daemon=True).start()
    sys.stdin.readline()
else:
    print("ready", flush=True)
    next(batches)
"""


@pytest.mark.parametrize(
    ("left", "fault", "batch_size"),
    [("open", "delayed", 2), ("open", "503", 120), ("interrupted", "503", 120)],
)
def test_a_process_ends_while_its_shards_are_on_their_way(
    far: FaultyProxy, tmp_path: Path, left: str, fault: Fault, batch_size: int
) -> None:
    """By its own end, with the iterator left open, or by Ctrl-C; the store is away, or slow."""
    far.inject(lambda _: fault, matching=lambda _, path: "safetensors" in path)
    line = [sys.executable, "-c", READER, far.url, str(tmp_path / "cache"), left, str(batch_size)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            while len(far.injected) < 6:
                assert process.poll() is None
            if left == "interrupted":
                process.send_signal(signal.SIGINT)
            # Long before the store would have been given up.
            _, messages = process.communicate("leave\n", timeout=60)
        finally:
            process.kill()
    assert "Fatal" not in messages
    assert process.returncode == (0 if left == "open" else -signal.SIGINT)


def test_a_part_is_cancelled_with_its_whole_and_not_the_whole_with_a_part() -> None:
    whole = Cancellation()
    part = Cancellation(whole.is_cancelled)
    other = Cancellation(whole.is_cancelled)
    part.cancel()
    assert part.is_cancelled()
    assert not other.is_cancelled()

    def wait() -> None:
        with pytest.raises(Cancelled):
            other.pause(3600)

    waiting = threading.Thread(target=wait)
    waiting.start()
    whole.cancel()
    waiting.join(60)
    assert not waiting.is_alive()
    whole = Cancellation()
    whole.pause(0.0)


def test_one_range_that_fails_ends_the_pauses_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlast.stream.remote.ranges.RANGE_BYTES", 64)
    cancellation, pausing = Cancellation(), threading.Barrier(2)

    def read(start: int, length: int) -> bytes:
        pausing.wait(60)
        if start:
            cancellation.pause(3600)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        copy_in_order(read, 128, lambda _: None, InFlight(), cancellation)
