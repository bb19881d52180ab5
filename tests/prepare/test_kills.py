"""``outlast prepare`` killed with SIGKILL at random moments: the same line again ends with the same bytes.

All kinds of builds, into a folder and into a bucket, by one command and by tasks side by side, of which
one or all are killed. Nothing is cleaned up by hand, and nothing is left over.
"""

import random
from pathlib import Path

import pytest

from outlast.storage import open_store
from support.builds import CLEANED, PAIRED, PLAIN, Build, objects_in, write_lines, write_recipe
from support.command import Command
from support.datasets import CloudCommand
from support.s3 import S3Server, s3_variables

CASES: dict[str, tuple[dict[str, object], str, int]] = {
    "plain, folder": (PLAIN, "folder", 0),
    "plain by tasks, folder": (PLAIN, "folder", 3),
    "cleaned and paired, folder": (CLEANED | PAIRED | {"shards.num_processes": 2}, "folder", 0),
    "cleaned by tasks, folder": (CLEANED, "folder", 3),
    "paired, S3": (PAIRED | {"shards.num_processes": 2}, "S3", 0),
    "cleaned and paired by tasks, S3": (CLEANED | PAIRED, "S3", 3),
}
KILLS_OF_A_CASE = 17
"""That found a process alive: a hundred and two of all six."""
KILLS_OF_A_BUILD = 4


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("corpus") / "a.jsonl")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("case", "num_kills"),
    [
        ("plain by tasks, folder", 2),
        ("cleaned and paired by tasks, S3", 2),
        *(pytest.param(case, KILLS_OF_A_CASE, marks=pytest.mark.long) for case in CASES),
    ],
)
def test_a_killed_build_ends_with_the_same_bytes(
    lines: Path,
    tmp_path: Path,
    compilation_cache: Path,
    s3_server: S3Server,
    s3_environment: pytest.MonkeyPatch,
    case: str,
    num_kills: int,
) -> None:
    settings, place, num_tasks = CASES[case]
    recipe = write_recipe(tmp_path / "recipe.toml", str(lines), settings)
    Command(compilation_cache).run("prepare", recipe, "--out", tmp_path / "unbroken")
    expected = objects_in(open_store(tmp_path / "unbroken"))
    command = CloudCommand(compilation_cache, s3_variables(s3_server.url))
    rng = random.Random(case)
    found = 0
    while found < num_kills:
        out = s3_server.new_bucket() if place == "S3" else str(tmp_path / f"out-{found}")
        build = Build(command, ["prepare", recipe, "--out", out], out, num_tasks, len(expected), rng)
        for _ in range(KILLS_OF_A_BUILD):
            build.start()
            if not build.kill_at_random() or found + build.num_kills >= num_kills:
                break
        found += build.num_kills
        build.end()
        left = objects_in(open_store(out))
        assert left.keys() == expected.keys()
        assert [name for name in expected if left[name] != expected[name]] == []
