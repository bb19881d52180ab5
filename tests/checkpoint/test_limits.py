"""Too few descriptors, too little memory: real limits, of a process of its own.

In: a limit that rises from what the process has to what it needs. Every life under it, with a state of some
MiB, ends well or in a typed error, and the newest acknowledged checkpoint is there once the limit is lifted.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import OutlastError
from outlast.storage import LocalStore, Store
from support.lives import CONFIG, arrays_of, check_arrays

LIVES = """
import json, resource, sys
from pathlib import Path

import numpy as np

from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.cli.main import run_command_line
from outlast.errors import OutlastError
from outlast.storage import LocalStore

sys.path.insert(0, sys.argv[1])
from support.lives import FakeClock

kind = getattr(resource, sys.argv[2])
root, first, last, stride = sys.argv[3], *map(int, sys.argv[4:])
store, clock, config = LocalStore(Path(root)), FakeClock(), CheckpointConfig(part_bytes=2**20)


def arrays_of(step):
    return {f"params/{name}": np.full(2**18, step * 10 + name, np.float32) for name in range(6)}


def restore(attempt=None):
    restored = restore_newest(store, attempt_number=attempt and attempt.number, report=print)
    if restored:
        expected = arrays_of(restored.commit.step)
        assert all(np.array_equal(restored.arrays[name], expected[name]) for name in expected)
    return restored


def live(step):
    clock.seconds += 1000  # an attempt that could not even end is dead by now
    attempt = claim_attempt(store, config=config, clock=clock)
    try:
        restored = restore(attempt)
        attempt.record_restored(*(restored.commit.step, restored.commit.name) if restored else (0,))
        CheckpointWriter(store, config, attempt, {}, {}).save(step, arrays_of(step), wait=True)
    finally:
        attempt.close()


live(1)
assert run_command_line(["checkpoint", "verify", root]) == 0  # all that is needed is imported now
acknowledged, told = 1, []
for step, more in enumerate(range(first, last, stride), start=2):
    before = resource.getrlimit(kind)
    pages = int(Path("/proc/self/statm").read_text().split()[0])  # ended threads leave some behind
    used = pages * resource.getpagesize() if sys.argv[2] == "RLIMIT_AS" else 0
    resource.setrlimit(kind, (used + more, before[1]))
    error = None
    try:
        live(step)
        acknowledged = step
    except OutlastError as raised:
        error = str(raised)
    code = run_command_line(["checkpoint", "verify", root])
    resource.setrlimit(kind, before)
    assert restore().commit.step >= acknowledged
    told.append([more, error, code])
print(json.dumps(told))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("limit", "first", "last", "stride"),
    [("RLIMIT_NOFILE", 0, 20, 1), ("RLIMIT_AS", 0, 110 * 2**20, 10 * 2**20)],
)
def test_a_life_under_a_limit_ends_well_or_in_words(
    tmp_path: Path, limit: str, first: int, last: int, stride: int
) -> None:
    tests = Path(__file__).parents[1]
    line = [sys.executable, "-c", LIVES, tests, limit, tmp_path, first, last, stride]
    ended = subprocess.run(list(map(str, line)), capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout.splitlines()[-1])
    assert {code for *_, code in told} <= {0, 1}
    assert "unexpected" not in ended.stderr
    assert told[0][1], "the lowest limit leaves room for nothing"
    assert told[-1][1:] == [None, 0], "the highest is enough"


@pytest.fixture
def no_threads() -> Iterator[Callable[[], int]]:
    """Once called, no thread can be started: none has room for its stack."""
    yield lambda: threading.stack_size(2**46)
    threading.stack_size(0)


def test_a_restore_needs_no_thread(
    tmp_path: Path,
    save_steps: Callable[[Store, Sequence[int]], None],
    no_threads: Callable[[], int],
) -> None:
    store = LocalStore(tmp_path)
    save_steps(store, [10, 20])
    no_threads()
    restored = restore_newest(store)
    assert restored
    check_arrays(restored.arrays, 20)


def test_a_claim_and_a_save_without_a_thread_say_so(
    tmp_path: Path,
    start: Callable[[Store, str], tuple[Attempt, CheckpointWriter]],
    no_threads: Callable[[], int],
) -> None:
    store = LocalStore(tmp_path / "a")
    _, writer = start(store, "first")
    no_threads()
    for _ in range(2):
        with pytest.raises(OutlastError, match=r"(?s)starts no further thread.*ulimit -u"):
            writer.save(10, arrays_of(10), wait=True)
    writer.save(10, arrays_of(10))
    assert "starts no further thread" in str(writer.last_error), "training goes on"
    other = LocalStore(tmp_path / "b")
    for _ in range(2):  # an attempt that could not begin does not keep the next one out
        with pytest.raises(OutlastError, match=r"starts no further thread"):
            claim_attempt(other, config=CONFIG)
    threading.stack_size(0)
    assert writer.save(10, arrays_of(10), wait=True)
    claim_attempt(other, config=CONFIG).close()
