"""The promise on an object store: killed with SIGKILL again and again, a run on S3 ends with the same bits as
one on a local folder that nobody disturbed.
"""

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.storage import open_store
from support.command import kill
from support.datasets import TINY, CloudCommand
from support.s3 import S3Server, s3_variables

NUM_RUNS = 25
KILLS_PER_RUN = 4
LIFE_SECONDS = (0.4, 4.5)


@pytest.mark.parametrize(
    "run", [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, NUM_RUNS))]
)
def test_killed_again_and_again_on_s3_a_run_ends_with_the_same_bits(
    s3_server: S3Server,
    s3_environment: pytest.MonkeyPatch,
    compilation_cache: Path,
    local_manifest: str,
    unbroken: tuple[int, str],
    record_property: Callable[[str, object], None],
    run: int,
) -> None:
    rng = random.Random(run)
    command = CloudCommand(compilation_cache, s3_variables(s3_server.url))
    run_dir = f"{s3_server.new_bucket()}/run"
    phases: list[str] = []
    for _ in range(KILLS_PER_RUN):
        process = command.start_training(local_manifest, run_dir, *TINY)
        time.sleep(rng.uniform(*LIFE_SECONDS))
        ended = process.poll() is not None
        said = kill(process)
        phases.append("ended by itself" if ended else phase_of(run_dir, said))
    command.train(local_manifest, run_dir, *TINY)
    record_property("phases", phases)
    assert command.digest(run_dir) == unbroken
    assert "as it was written" in command.run("checkpoint", "verify", run_dir)


def phase_of(run_dir: str, said: str) -> str:
    """Return how far a life came: what it had said, and whether it left data without a commit."""
    store = open_store(run_dir)
    prefixes = {match[0] for info in store.list("data/") if (match := re.match(r"data/\d+/\d+", info.name))}
    committed = {
        f"data/{step}/{attempt}"
        for info in store.list("commits/")
        for step, attempt in re.findall(r"(\d+)-(\d+)\.json", info.name)
    }
    if prefixes - committed:
        return "inside a save"
    if "resuming from" in said or "new run" in said:
        return "compiling or training"
    return "starting" if not said else "claiming or restoring"
