"""A saver killed at any moment loses nothing that it has acknowledged."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from outlast.checkpoint.restore import restore_newest
from outlast.storage import LocalStore

SAVER = """
import sys
from pathlib import Path
import numpy as np
from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.restore import restore_newest
from outlast.checkpoint.retain import GRACE_SECONDS
from outlast.checkpoint.save import CheckpointWriter
from outlast.storage import LocalStore

store, config = LocalStore(Path(sys.argv[1])), CheckpointConfig(part_bytes=200_000)
attempt = claim_attempt(store, config=config)
restored = restore_newest(store, attempt_number=attempt.number)
step = restored.commit.step if restored else 0
attempt.record_restored(step, restored.commit.name if restored else None)
writer = CheckpointWriter(store, config, attempt, {}, {})
print("ready", step, flush=True)
while True:
    step += 1
    arrays = {f"params/{n}": np.full((50, 1000), step * 10 + n, dtype=np.float32) for n in range(8)}
    writer.save(step, arrays, wait=True)
    print("saved", step, flush=True)
"""


def kill_and_restore(folder: Path, rng: random.Random, *, num_kills: int) -> int:
    """Start the saver, kill it at a random moment, look; return how many kills left an unfinished save
    behind.
    """
    reached, unfinished = 0, 0
    for _ in range(num_kills):
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == f"ready {reached}\n", (
                "it goes on where the last one was seen to be"
            )
            time.sleep(rng.uniform(0.0, 0.15))
            process.kill()
            lines = process.stdout.read().splitlines()
        acknowledged = max([reached, *(int(line.split()[1]) for line in lines)])
        restored = restore_newest(LocalStore(folder), report=lambda _: None)
        reached = restored.commit.step if restored else 0
        assert acknowledged <= reached <= acknowledged + 1
        if restored:
            assert restored.skipped == []
            for number in range(8):
                assert np.all(restored.arrays[f"params/{number}"] == reached * 10 + number)
        steps = {path.parent.parent.name for path in folder.glob("data/*/*/*")}
        unfinished += len(steps) > len(list(folder.glob("commits/*.json")))
    return unfinished


def test_a_saver_killed_at_any_moment_loses_nothing(tmp_path: Path) -> None:
    kill_and_restore(tmp_path / "run", random.Random(1), num_kills=6)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_saver_killed_a_hundred_times_loses_nothing(tmp_path: Path) -> None:
    assert kill_and_restore(tmp_path / "run", random.Random(2), num_kills=100) > 10
