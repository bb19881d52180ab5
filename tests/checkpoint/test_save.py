"""Saving: in the background, in the face of full disks, zombies and kills."""

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from outlast.checkpoint.attempts import Attempt, claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.format import ArraySlice
from outlast.checkpoint.lineage import CommitKey
from outlast.checkpoint.recover import recover_run
from outlast.checkpoint.restore import list_commits, restore_newest
from outlast.checkpoint.retain import GRACE_SECONDS
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import CheckpointError, DamagedCheckpoint, Fenced, StorageError
from outlast.storage import Chunks, LocalStore, Store
from support.lives import CONFIG

State = dict[str, NDArray[np.generic]]
Start = Callable[[Store, str], tuple[Attempt, CheckpointWriter]]


def steps_in_line(store: Store) -> list[int]:
    return [row.step for row in list_commits(store) if row.in_line]


def save(writer: CheckpointWriter, step: int, arrays: State, *, wait: bool = True) -> bool:
    return writer.save(step, arrays, wait=wait)


def test_arrays_come_back_bit_for_bit_and_open_elsewhere(
    tmp_path: Path, start: Start, state: Callable[[int], State]
) -> None:
    store = LocalStore(tmp_path)
    _, writer = start(store, "first")
    save(writer, 10, state(10))
    restored = restore_newest(store)
    assert restored is not None
    assert list(restored.arrays.keys() ^ state(10).keys()) == []
    for name, array in state(10).items():
        assert restored.arrays[name].dtype == array.dtype
        assert restored.arrays[name].tobytes() == array.tobytes()
    assert restored.commit.identity == {"seed": 1}
    read: State = {}
    for path in sorted(tmp_path.rglob("*.safetensors")):
        read |= load_file(path)
    assert np.array_equal(read["params/bias"], state(10)["params/bias"])
    pieces = [read[f"params/embedding[{first}:{min(first + 18, 40)},0:8]"] for first in (0, 18, 36)]
    assert np.array_equal(np.concatenate(pieces), state(10)["params/embedding"])


def test_slices_of_several_owners_are_joined(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path)
    _, writer = start(store, "first")
    whole = np.arange(48, dtype=np.float32).reshape(6, 8)
    boxes = [(0, 0), (0, 4), (3, 0), (3, 4)]
    slices = [
        ArraySlice(
            name="x", global_shape=(6, 8), start=box, array=whole[box[0] : box[0] + 3, box[1] : box[1] + 4]
        )
        for box in boxes
    ]
    writer.save(1, slices, wait=True)
    restored = restore_newest(store)
    assert restored is not None
    assert np.array_equal(restored.arrays["x"], whole)
    with pytest.raises(DamagedCheckpoint, match="cover it exactly once"):
        writer.save(2, slices[:3], wait=True)
    assert steps_in_line(store) == [1]


def test_retention_keeps_the_newest_the_best_and_every_so_many(
    tmp_path: Path, start: Start, state: Callable[[int], State], config: CheckpointConfig
) -> None:
    store = LocalStore(tmp_path)
    attempt, _ = start(store, "first")
    config = CheckpointConfig(part_bytes=600, keep_every_steps=25)
    writer = CheckpointWriter(store, config, attempt, {}, {})
    for step in range(10, 100, 10):
        save(writer, step, state(step))
        if step == 40:
            writer.rank([step])
    assert steps_in_line(store) == [30, 40, 50, 80, 90]
    folders = sorted(int(path.name) for path in (tmp_path / "data").iterdir())
    assert folders == [30, 40, 50, 80, 90]


class PausingStore(LocalStore):
    """Stops before it creates a commit, until it may go on: a process frozen at the worst moment."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.frozen = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def create(self, name: str, content: Chunks) -> None:
        if name.startswith("commits/") and not self.go_on.is_set():
            self.frozen.set()
            assert self.go_on.wait(60)
        super().create(name, content)


def test_the_late_commit_of_a_replaced_writer_is_ignored(
    tmp_path: Path, start: Start, state: Callable[[int], State]
) -> None:
    store = PausingStore(tmp_path)
    _, zombie = start(store, "first")
    save(zombie, 10, state(10))
    store.go_on.clear()
    save(zombie, 20, state(20), wait=False)
    assert store.frozen.wait(60)
    live = LocalStore(tmp_path)
    successor, writer = start(live, "second")
    assert successor.restored_step == 10
    store.go_on.set()
    zombie.close()
    with pytest.raises(Fenced):
        zombie.raise_if_fenced()
    with pytest.raises(Fenced):
        save(zombie, 30, state(30))
    assert (tmp_path / CommitKey(20, 1).name).exists()
    save(writer, 15, state(15))
    restored = restore_newest(live)
    assert restored is not None
    assert restored.commit.key == CommitKey(15, 2)
    assert not (tmp_path / CommitKey(20, 1).name).exists(), "its successor takes it away"
    assert steps_in_line(live) == [10, 15]


def test_two_live_writers_do_not_mix(tmp_path: Path, start: Start, state: Callable[[int], State]) -> None:
    """The first does not know that it was replaced; both save the same steps at the same time."""
    store = LocalStore(tmp_path)
    _, first = start(store, "first")
    save(first, 10, state(10))
    _, second = start(store, "second")

    def work(writer: CheckpointWriter, offset: int) -> None:
        for step in (20, 30, 40):
            try:
                save(writer, step, state(step + offset))
            except Fenced:
                return

    threads = [threading.Thread(target=work, args=pair) for pair in ((first, 1000), (second, 2000))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    restored = restore_newest(store)
    assert restored is not None
    assert restored.commit.key == CommitKey(40, 2)
    assert all(np.array_equal(restored.arrays[name], array) for name, array in state(2040).items())


class RottingStore(LocalStore):
    """Flips a bit of every part it writes, or of the list beside them."""

    rotten = False
    what = ".safetensors"

    def create(self, name: str, content: Chunks) -> None:
        if self.rotten and name.startswith("data/") and name.endswith(self.what):
            changed = bytearray(b"".join(content))
            changed[-1] ^= 1
            content = [changed]
        super().create(name, content)


def test_a_checkpoint_that_is_damaged_at_once_is_taken_away(
    tmp_path: Path, start: Start, state: Callable[[int], State]
) -> None:
    store = RottingStore(tmp_path)
    _, writer = start(store, "first")
    save(writer, 10, state(10))
    store.rotten = True
    with pytest.raises(DamagedCheckpoint, match="as soon as it was written"):
        save(writer, 20, state(20))
    assert [row.step for row in list_commits(store)] == [10]
    store.rotten = False
    with pytest.raises(CheckpointError, match="cannot commit that step again"):
        save(writer, 20, state(20))
    save(writer, 30, state(30))
    assert steps_in_line(store) == [10, 30]


def test_a_list_that_is_damaged_at_once_costs_that_save(
    tmp_path: Path, start: Start, state: Callable[[int], State]
) -> None:
    store = RottingStore(tmp_path)
    store.what = "commit.json"
    attempt, writer = start(store, "first")
    store.rotten = True
    with pytest.raises(
        DamagedCheckpoint, match=r"damaged as soon as it was written(?s:.*)data/000000000010/1-"
    ):
        save(writer, 10, state(10))
    assert not store.list("data/")
    store.rotten = False
    save(writer, 10, state(10))
    save(writer, 20, state(20))
    attempt.close()
    for info in store.list("commits/"):
        store.delete(info.name)
    assert recover_run(store.url, report=pytest.fail).rebuilt == [10, 20]


def test_a_save_while_one_is_running_is_left_out(
    tmp_path: Path, start: Start, state: Callable[[int], State]
) -> None:
    store = PausingStore(tmp_path)
    _, writer = start(store, "first")
    store.go_on.clear()
    assert save(writer, 10, state(10), wait=False)
    assert store.frozen.wait(60)
    assert not save(writer, 20, state(20), wait=False)
    assert not writer.due(20, 1e9)
    store.go_on.set()
    assert save(writer, 30, state(30))
    assert steps_in_line(store) == [10, 30]


def test_saving_before_the_start_is_recorded_is_refused(
    tmp_path: Path,
    claim: Callable[[Store, str], Attempt],
    config: CheckpointConfig,
    state: Callable[[int], State],
) -> None:
    store = LocalStore(tmp_path)
    writer = CheckpointWriter(store, config, claim(store, "first"), {}, {})
    with pytest.raises(CheckpointError, match="record_restored"):
        save(writer, 10, state(10))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"interval_steps": 10}, [10, 20, 30]),
        ({"interval_seconds": 12.0}, [12, 24]),
        ({"interval_steps": 25, "interval_seconds": 20.0}, [20, 25]),
        ({}, []),
    ],
)
def test_due_by_steps_and_by_seconds(
    tmp_path: Path, start: Start, settings: dict[str, float], expected: list[int]
) -> None:
    """One step a second for 35 seconds; by Young's rule the first save would come after a minute."""
    store = LocalStore(tmp_path)
    attempt, _ = start(store, "first")
    writer = CheckpointWriter(store, CheckpointConfig(**settings), attempt, {}, {})  # pyright: ignore[reportArgumentType]
    done: list[int] = []
    for step in range(36):
        if writer.due(step, 100.0 + step):
            done.append(step)
            writer.save(step, {"x": np.zeros(1)}, wait=True)
    assert done == expected


def test_a_full_disk_costs_one_save(tiny_disk: Path, start: Start, state: Callable[[int], State]) -> None:
    store = LocalStore(tiny_disk)
    attempt, _ = start(store, "first")
    writer = CheckpointWriter(store, CheckpointConfig(), attempt, {}, {}, report=lambda _: None)
    save(writer, 10, state(10))
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"x" * 700_000)
    large = {**state(20), "params/large": np.ones(100_000, dtype=np.float32)}
    save(writer, 20, large, wait=False)
    writer.close()
    writer.raise_if_fenced()
    assert isinstance(writer.last_error, StorageError)
    assert "no space left" in str(writer.last_error)
    assert writer.num_failed == 1
    assert list((tiny_disk / "data").glob("*20/*/*")) == [], "its data are taken away"
    ballast.unlink()
    save(writer, 30, large)
    assert writer.last_error is None
    assert steps_in_line(store) == [10, 30]


def test_what_dead_attempts_left_is_cleaned_up(
    tmp_path: Path,
    save_steps: Callable[[Store, Sequence[int]], None],
    start: Start,
    state: Callable[[int], State],
) -> None:
    store = LocalStore(tmp_path)
    save_steps(store, [10])
    store.create("data/000000000020/1-dead/part-00000.safetensors", [b"never committed"])
    (tmp_path / f"data/000000000020/1-dead/.tmp-{'a' * 32}").write_bytes(b"half")
    dead = tmp_path / "data/000000000020/1-dead/part-00000.safetensors"
    told: list[str] = []
    attempt, _ = start(store, "second")
    writer = CheckpointWriter(store, CONFIG, attempt, {"seed": 1}, {}, report=told.append)
    save(writer, 20, state(20))
    assert sorted(path.name for path in dead.parent.iterdir()) == [dead.name], "kept for a day"
    assert told == [
        "15 bytes of unfinished saves of earlier attempts are kept for a day: step 20 of attempt 1"
    ]
    attempt.close()
    a_day_ago = dead.stat().st_mtime - GRACE_SECONDS
    os.utime(dead, (a_day_ago, a_day_ago))
    attempt, writer = start(store, "third")
    save(writer, 30, state(30))
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "data/000000000020").iterdir()) == ["2"]
    attempt.close()


def test_the_heartbeat_beats_until_the_end(tmp_path: Path) -> None:

    store = LocalStore(tmp_path)
    config = CheckpointConfig(heartbeat_seconds=0.01, heartbeat_limit_seconds=5.0)
    attempt = claim_attempt(store, config=config)
    attempt.record_restored(0)
    first = store.read("attempts/1.heartbeat")
    while store.read("attempts/1.heartbeat") == first:
        time.sleep(0.01)
    attempt.close()
    assert b'"closed":true' in store.read("attempts/1.heartbeat")


def test_a_writer_whose_data_its_successor_takes_away_learns_that_it_was_replaced(
    tmp_path: Path, start: Start, state: Callable[[int], State]
) -> None:
    """Not that a file is missing, which would be tried again and again."""

    class Cleared(LocalStore):
        def create(self, name: str, content: Chunks) -> None:
            if name.startswith("data/000000000020/1-"):
                start(LocalStore(tmp_path), "second")
                raise StorageError("The folder is gone.")
            super().create(name, content)

    _, writer = start(Cleared(tmp_path), "first")
    save(writer, 10, state(10))
    with pytest.raises(Fenced):
        save(writer, 20, state(20))
