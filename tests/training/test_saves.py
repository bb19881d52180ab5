"""What is not saved has a bound: a disk that is full stops training, and ends it with an error of its own."""

from contextlib import suppress
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import EXIT_FAILURE, RunError, StorageError
from outlast.storage import LocalStore
from outlast.training.saves import Saves
from outlast.training.state import TrainState
from support import lives

CONFIG = CheckpointConfig(interval_steps=1, max_failed_saves=3, give_up_seconds=300.0)
FILLER = "filler"


class Time:
    """Seconds that pass while somebody sleeps; at a chosen moment something happens."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.at: dict[float, object] = {}

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for moment in [moment for moment in self.at if moment <= self.seconds]:
            action = self.at.pop(moment)
            assert callable(action)
            action()


def state_of(step: int) -> TrainState:
    weights = {"weight": jnp.full((40, 1000), step, jnp.float32)}
    return TrainState(step=jnp.asarray(step), params=weights, model_state={}, opt_state={})


def begin(folder: Path) -> tuple[Attempt, CheckpointWriter]:
    store = LocalStore(folder)
    attempt = lives.claim(store, "host")
    attempt.record_restored(0)
    return attempt, CheckpointWriter(store, CONFIG, attempt, identity={"seed": 1}, mesh={})


def fill(disk: Path) -> None:
    """Leave no room for a checkpoint, but some for a heartbeat."""
    with (disk / FILLER).open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(file.tell() - 16384)


def steps(saves: Saves, first: int, last: int) -> None:
    """Train, as far as saving goes."""
    for step in range(first, last + 1):
        saves.check()
        if saves.due(step):
            saves.save(step, state_of(step))
            saves.wait()


def test_training_stands_still_until_there_is_room(tiny_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    attempt, writer = begin(tiny_disk)
    time = Time()
    saves = Saves(writer, attempt, CONFIG, restored_step=None, now=time.now, sleep=time.sleep)
    steps(saves, 1, 2)
    fill(tiny_disk)
    time.at[60.0] = (tiny_disk / FILLER).unlink
    steps(saves, 3, 6)  # three saves fail, the fourth stands still
    assert 60 <= time.seconds < 200
    assert "TRAINING IS PAUSED at step 6" in caplog.text
    assert "step 6 is saved, training goes on" in caplog.text or writer.last_step == 6
    steps(saves, 7, 7)
    restored = restore_newest(LocalStore(tiny_disk))
    assert restored is not None
    assert restored.commit.step == 7
    assert np.all(restored.arrays["params/weight"] == 7)


def test_a_disk_that_stays_full_ends_the_run_with_a_failure(tiny_disk: Path) -> None:
    attempt, writer = begin(tiny_disk)
    time = Time()
    saves = Saves(writer, attempt, CONFIG, restored_step=None, now=time.now, sleep=time.sleep)
    steps(saves, 1, 2)
    fill(tiny_disk)
    with pytest.raises(RunError) as caught:
        steps(saves, 3, 99)
    assert "the run ends at step 6. The newest checkpoint is of step 2" in str(caught.value)
    assert "give the same line again" in str(caught.value)
    assert caught.value.exit_code == EXIT_FAILURE
    assert 300 <= time.seconds < 400
    (tiny_disk / FILLER).unlink()
    restored = restore_newest(LocalStore(tiny_disk))
    assert restored is not None
    assert restored.commit.step == 2


def test_a_notice_ends_the_pause_and_the_last_save_says_what_is_wrong(tiny_disk: Path) -> None:
    attempt, writer = begin(tiny_disk)
    time, stopped = Time(), []
    saves = Saves(
        writer,
        attempt,
        CONFIG,
        restored_step=None,
        stop=lambda: bool(stopped),
        now=time.now,
        sleep=time.sleep,
    )
    fill(tiny_disk)
    time.at[20.0] = lambda: stopped.append(True)
    steps(saves, 1, 4)
    assert time.seconds < 60
    with pytest.raises(StorageError) as caught:
        saves.save(4, state_of(4), wait=True)
    assert caught.value.exit_code == EXIT_FAILURE


def test_time_counts_as_saves_do(tiny_disk: Path) -> None:
    attempt, writer = begin(tiny_disk)
    time = Time()
    config = CheckpointConfig(
        interval_steps=1, max_failed_saves=99, max_unsaved_seconds=50, give_up_seconds=9
    )
    saves = Saves(writer, attempt, config, restored_step=None, now=time.now, sleep=time.sleep)
    steps(saves, 1, 1)
    time.sleep(100)
    steps(saves, 2, 2)
    fill(tiny_disk)
    steps(saves, 3, 5)
    time.sleep(100)
    with pytest.raises(RunError):
        steps(saves, 6, 6)
