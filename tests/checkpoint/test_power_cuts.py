"""Power cuts at any call of two lives on a local folder, with any of what was not flushed lost or torn: no
step that was acknowledged is lost.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.lineage import parse_commit_name
from outlast.checkpoint.restore import list_commits, restore_newest, verify_commit
from outlast.errors import OutlastError
from outlast.storage import LocalStore
from support.lives import arrays_of, begin, check_arrays
from support.mutants import Edit, mutated
from support.power import Mark, Recorder, recording

BLOCKS = 10
CUTS_IN_BLOCK = 100


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: flushing costs nothing there."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as name:
        yield Path(name)


def record(folder: Path) -> Recorder:
    """Record two lives: each restores, saves some steps with retention, and dies without a word."""
    root = folder / "run"
    root.mkdir()
    with recording(root) as recorder:
        for host, steps in (("first", (10, 20, 30, 40)), ("second", (50, 60, 70, 80))):
            attempt, writer = begin(LocalStore(root), host)
            _mark_acknowledged(attempt, recorder)
            for step in steps:
                writer.save(step, arrays_of(step), wait=True)
                writer.rank([steps[0]])
    return recorder


def _mark_acknowledged(attempt: Attempt, recorder: Recorder) -> None:
    acknowledge = attempt.acknowledge

    def marked(commit_name: str) -> None:
        key = parse_commit_name(commit_name)
        assert key
        recorder.calls.append(Mark(key.step))
        acknowledge(commit_name)

    attempt.acknowledge = marked


def cut(recorder: Recorder, seed: int, folder: Path) -> None:
    """Cut the power at a moment of a seed's choice, and begin one more life on what is left."""
    rng = random.Random(seed)
    moment = rng.randint(1, len(recorder.calls))
    acknowledged = max((call.step for call in recorder.calls[:moment] if isinstance(call, Mark)), default=0)
    image = folder / f"image-{seed}"
    recorder.image(moment, rng, image)
    store = LocalStore(image)
    attempt, writer = begin(store, "third")
    restored_step = attempt.restored_step or 0
    assert restored_step >= acknowledged, f"seed {seed}: step {acknowledged} was acknowledged"
    writer.save(90, arrays_of(90), wait=True)
    restored = restore_newest(store)
    assert restored is not None
    assert restored.commit.step == 90
    check_arrays(restored.arrays, 90)
    rows = [row for row in list_commits(store) if row.in_line and row.step >= restored_step]
    assert [problem for row in rows for problem in verify_commit(store, row.name)] == []
    shutil.rmtree(image)


def test_no_power_cut_loses_an_acknowledged_step(folder: Path) -> None:
    recorder = record(folder)
    assert sum(isinstance(call, Mark) for call in recorder.calls) == 8
    for seed in range(60):
        cut(recorder, seed, folder)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_none_of_many_power_cuts_loses_an_acknowledged_step(folder: Path, block: int) -> None:
    recorder = record(folder)
    for seed in range(CUTS_IN_BLOCK):
        cut(recorder, 1000 * (block + 1) + seed, folder)


MUTANTS = {
    "files are not flushed": Edit("storage.local:_write_flushed", "os.fsync(file.fileno())", "pass"),
    "folders are not flushed": Edit("storage.local:_put", "_flush_folder(path.parent)", "pass"),
    "new folders are not flushed": Edit("storage.local:_make_folders", "_flush_folder(made.parent)", "pass"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(folder: Path, name: str) -> None:
    with mutated([MUTANTS[name]]):
        recorder = record(folder)

    def cut_often() -> None:
        for seed in range(300):
            cut(recorder, seed, folder)

    with pytest.raises((AssertionError, OutlastError)):
        cut_often()
