"""The promise itself: the real command, killed with SIGKILL at any moment, ends with the same bits."""

import random
import time
from pathlib import Path

import pytest

from support.command import Command, kill, kill_when

KILLS_PER_RUN = (4, 3, 3)


@pytest.mark.parametrize("run", range(len(KILLS_PER_RUN)))
def test_killed_at_random_moments_a_run_ends_with_the_same_bits(
    command: Command, manifest: Path, unbroken: tuple[int, str], tmp_path: Path, run: int
) -> None:
    rng = random.Random(run)
    run_dir = tmp_path / "run"
    for _ in range(KILLS_PER_RUN[run]):
        process = command.start_training(manifest, run_dir)
        time.sleep(rng.uniform(0.5, 6.0))
        kill(process)
    command.train(manifest, run_dir)
    assert command.digest(run_dir) == unbroken
    assert "as it was written" in command.run("checkpoint", "verify", run_dir)


@pytest.mark.parametrize("moment", ["data before commit", "commit before the end"])
def test_killed_inside_a_save_a_run_ends_with_the_same_bits(
    command: Command, manifest: Path, unbroken: tuple[int, str], tmp_path: Path, moment: str
) -> None:
    run_dir = tmp_path / "run"

    def saves(kind: str) -> set[str]:
        return {path.name[:12] for path in (run_dir / kind).glob("0*")}

    def reached() -> bool:
        if moment == "data before commit":
            return len(saves("data") - saves("commits")) > 0 and len(saves("commits")) > 0
        return len(saves("commits")) >= 3

    assert kill_when(command.start_training(manifest, run_dir), reached)
    output = command.train(manifest, run_dir)
    assert "resuming from step" in output
    assert "bit-identical" in output
    assert command.digest(run_dir) == unbroken


def test_another_seed_gives_another_digest(
    command: Command, manifest: Path, unbroken: tuple[int, str], tmp_path: Path
) -> None:
    """The tests above could fail: the digest does depend on what was trained."""
    command.train(manifest, tmp_path / "run", "training.seed=1", "training.total_steps=100")
    assert command.digest(tmp_path / "run") != unbroken
