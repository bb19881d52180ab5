"""A process that was held up while others went on with its run, and wakes up again."""

import signal
from pathlib import Path

from outlast.run.directory import read_recipe_tables
from outlast.storage import LocalStore
from support.command import Command

HELD = "held before it writes the description"
HELD_BEFORE_THE_DESCRIPTION = f"""
import os, signal
from outlast.storage.local import LocalStore
write = LocalStore._write
def held(self, name, *rest, **more):
    if name.endswith("run.json"):
        print({HELD!r}, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    write(self, name, *rest, **more)
LocalStore._write = held
from outlast.__main__ import main
main()
"""


def test_a_process_that_wakes_up_late_does_not_change_what_the_run_is(
    command: Command, manifest: Path, tmp_path: Path
) -> None:
    """It sleeps between asking whether the run is its own and writing the recipe, while another trains."""
    run_dir = tmp_path / "run"
    beat = ("checkpoint.heartbeat_seconds=0.5", "checkpoint.heartbeat_limit_seconds=1")
    late = Command(tmp_path / "cache")
    late.launcher = ("-c", HELD_BEFORE_THE_DESCRIPTION)
    sleeper = late.start_training(manifest, run_dir, "training.total_steps=10", *beat)
    assert sleeper.stdout is not None
    said = next(line for line in sleeper.stdout if HELD in line)
    command.train(manifest, run_dir, "training.total_steps=20", *beat)
    sleeper.send_signal(signal.SIGCONT)
    rest, _ = sleeper.communicate(timeout=120)
    assert sleeper.returncode == 1, said
    assert "Attempt 2 has claimed the run" in rest
    assert read_recipe_tables(LocalStore(run_dir))["training"]["total_steps"] == 20
    assert command.digest(run_dir)[0] == 20
