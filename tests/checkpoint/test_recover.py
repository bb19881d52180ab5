"""A run whose commits are lost stops, says what is left, and gets back what the data allow."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.lineage import CommitKey, heartbeat_name
from outlast.checkpoint.recover import recover_run
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.cli.main import main
from outlast.errors import CheckpointError
from outlast.run.checkpoints import digest_run
from outlast.storage import LocalStore, Store
from outlast.storage.checksummed_json import seal, unseal
from support.lives import arrays_of, check_arrays, live

Start = Callable[[Store, str], tuple[Attempt, CheckpointWriter]]
SaveSteps = Callable[[Store, Sequence[int]], None]


@pytest.fixture
def store(tmp_path: Path, save_steps: SaveSteps) -> LocalStore:
    """A run of two lives, the newest checkpoint that of step 60."""
    store = LocalStore(tmp_path / "run")
    save_steps(store, [10, 20])
    live(store, [40, 60])
    return store


def lose(store: LocalStore, *steps: int) -> None:
    """Lose the commits of these steps; of all where none is named."""
    for path in store.local_path("commits").iterdir():
        if not steps or int(path.name.split("-")[0]) in steps:
            path.unlink()


def data_left(store: LocalStore) -> set[str]:
    return {info.name for info in store.list("data/")}


def test_an_owner_stops_where_the_newest_known_commit_is_gone(store: LocalStore, start: Start) -> None:
    before = data_left(store)
    lose(store)
    for _ in range(2):  # the attempt that stopped makes nothing better or worse
        with pytest.raises(CheckpointError) as caught:
            start(store, "third")
        text = str(caught.value)
        assert "step 60 of attempt 2" in text
        assert "the checkpoints of no step, and data of" in text
        assert "step 40 of attempt 2 (" in text
        assert "outlast checkpoint recover" in text
        assert "another --run-dir" in text
    assert data_left(store) == before


def test_one_life_is_enough(tmp_path: Path, save_steps: SaveSteps, start: Start) -> None:
    store = LocalStore(tmp_path)
    save_steps(store, [10, 20])
    lose(store, 20)
    with pytest.raises(CheckpointError, match=r"step 20 of attempt 1.*the checkpoints of step 10") as caught:
        start(store, "second")
    assert f"outlast checkpoint recover {store.url} --go-on-from 10" in str(caught.value)


def test_a_life_that_died_without_a_word_is_known_by_its_heartbeat(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path)
    _, writer = start(store, "first")
    writer.save(10, arrays_of(10), wait=True)  # no close, no further heartbeat
    lose(store)
    with pytest.raises(CheckpointError, match="step 10 of attempt 1"):
        start(store, "second")


def test_what_retention_removed_is_not_missed(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path)
    for host, first in (("first", 10), ("second", 40), ("third", 70)):
        assert live(store, [first, first + 10, first + 20], host)
    attempt, _ = start(store, "fourth")
    assert attempt.restored_step == 90


def test_a_heartbeat_of_an_older_version_names_none(store: LocalStore, start: Start) -> None:
    heartbeat = unseal(store.read(heartbeat_name(2)), where="")
    del heartbeat["committed"], heartbeat["sha256"]
    store.replace(heartbeat_name(2), [seal(heartbeat)])
    lose(store, 60)
    attempt, _ = start(store, "third")
    assert attempt.restored_step == 40


def test_recovery_makes_the_commits_again(store: LocalStore, start: Start) -> None:
    commits = {path.name: path.read_bytes() for path in store.local_path("commits").iterdir()}
    lose(store)
    found = recover_run(str(store.root), report=pytest.fail)
    assert found.lost_step is None
    assert found.rebuilt == found.steps
    assert found.steps[-1] == 60
    assert {path.name: path.read_bytes() for path in store.local_path("commits").iterdir()} == commits
    attempt, _ = start(store, "fifth")
    assert attempt.restored_step == 60


def test_data_that_are_not_whole_make_no_commit_and_the_run_goes_on_from_an_older_one(
    store: LocalStore, start: Start
) -> None:
    part = next(store.local_path(CommitKey(60, 2).data_prefix).parent.glob("*/part-00000.safetensors"))
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    lose(store)
    told: list[str] = []
    found = recover_run(str(store.root), report=told.append)
    assert (found.lost_step, found.steps[-1]) == (60, 40)
    assert "step 60, attempt 2, are not whole" in told[0]
    with pytest.raises(CheckpointError, match="no checkpoint of step 30"):
        recover_run(str(store.root), go_on_from=30, report=told.append)
    with pytest.raises(CheckpointError, match="step 60 of attempt 2"):
        start(store, "third")
    assert recover_run(str(store.root), go_on_from=40, report=told.append).lost_step is None
    attempt, writer = start(store, "fourth")
    assert attempt.restored_step == 40
    del writer
    restored = restore_newest(store)
    assert restored is not None
    check_arrays(restored.arrays, 40)


def test_the_verb_says_what_is_left_and_how_to_go_on(store: LocalStore) -> None:
    shutil.rmtree(store.local_path(CommitKey(60, 2).data_prefix).parent)
    lose(store)
    line = ["checkpoint", "recover", str(store.root)]
    done = CliRunner().invoke(main, line, standalone_mode=False)
    assert done.return_value == 1
    assert "rebuilt: " in done.output
    assert "Step 60 is still missing" in done.output
    assert f"outlast checkpoint recover {store.root} --go-on-from 40" in done.output
    done = CliRunner().invoke(main, [*line, "--go-on-from", "40", "--json"], standalone_mode=False)
    assert done.return_value == 0
    assert json.loads(done.stdout)["lost_step"] is None


def test_every_verb_says_what_is_lost(store: LocalStore) -> None:
    """The verbs that read a run, as the one that trains it: none says that it was never trained."""
    lose(store)
    line = ["checkpoint", "verify", str(store.root)]
    done = CliRunner().invoke(main, line, standalone_mode=False)
    assert done.return_value == 1
    assert "step 60 of attempt 2" in done.output
    assert "\n  do:       put the folder" in done.output
    assert "\\n" not in done.output
    for read in (lambda: restore_newest(store), lambda: digest_run(str(store.root))):
        with pytest.raises(CheckpointError, match="step 60 of attempt 2"):
            read()


def test_nothing_left_is_said(store: LocalStore) -> None:
    shutil.rmtree(store.local_path("data"))
    lose(store)
    done = CliRunner().invoke(main, ["checkpoint", "recover", str(store.root)], standalone_mode=False)
    assert done.return_value == 1
    assert "start anew with another --run-dir" in done.output
