"""The examples of docs/guides/many_machines.md, run as they stand: places and counts of cores alone are ours.

All tasks of an array or a job run side by side, as on a cluster; a scheduler is not here. The manifest was
valid under the schema of Kubernetes 1.33 (``kubernetes-validate``, strict) when it was written; here its
fields are checked.
"""

import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.storage import open_store
from support.builds import CLEANED, PLAIN, objects_in, write_lines, write_recipe
from support.command import Command
from support.datasets import CloudCommand
from support.s3 import S3Server, s3_variables

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "many_machines.md"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("corpus") / "a.jsonl")


def block(language: str) -> str:
    """Return the page's first block in a language."""
    found = re.search(
        rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found
    return found[1]


def built_at_once(command: Command, recipe: Path, out: Path) -> dict[str, bytes]:
    command.run("prepare", recipe, "--out", out)
    return objects_in(open_store(out))


class Array:
    """A Slurm array of the page's script: its tasks as processes, each with the variables that Slurm sets."""

    def __init__(self, folder: Path, recipe: Path, out: Path) -> None:
        self.script = folder / "prepare.sh"
        text = block("bash")
        for place, ours in (("/shared/RUN.toml", recipe), ("/shared/data", out)):
            assert place in text
            text = text.replace(place, str(ours))
        self.script.write_text(text)
        self.bin = folder / "bin"
        self.bin.mkdir()
        command = self.bin / "outlast"
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m outlast "$@"\n')
        command.chmod(0o755)

    def start(self, command: Command, task: int, count: int) -> subprocess.Popen[str]:
        variables = {"ARRAY_TASK_ID": task, "ARRAY_TASK_COUNT": count, "CPUS_PER_TASK": 1}
        environment = {
            **command.environment,
            **{f"SLURM_{name}": str(value) for name, value in variables.items()},
            "PATH": f"{self.bin}:{command.environment['PATH']}",
        }
        return subprocess.Popen(
            ["bash", str(self.script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: Command, tasks: range | list[int], count: int) -> list[tuple[int, str]]:
        processes = [self.start(command, task, count) for task in tasks]
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


def test_a_slurm_array(lines: Path, tmp_path: Path, compilation_cache: Path) -> None:
    command = Command(compilation_cache)
    recipe = write_recipe(tmp_path / "recipe.toml", str(lines), CLEANED)
    expected = built_at_once(command, recipe, tmp_path / "whole")
    array = Array(tmp_path, recipe, tmp_path / "out")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", array.script.read_text(), re.MULTILINE))
    assert options["array"] == "0-7"
    assert options.keys() >= {"requeue", "cpus-per-task", "mem", "time"}
    assert len(options) == array.script.read_text().count("#SBATCH")
    results = array.run(command, range(4), 4)
    assert [code for code, _ in results] == [0] * 4, results
    assert objects_in(open_store(tmp_path / "out")) == expected


def test_a_slurm_array_that_lost_tasks_is_taken_up_by_a_smaller_one(
    lines: Path, tmp_path: Path, compilation_cache: Path
) -> None:
    command = Command(compilation_cache)
    recipe = write_recipe(tmp_path / "recipe.toml", str(lines), PLAIN)
    expected = built_at_once(command, recipe, tmp_path / "whole")
    array = Array(tmp_path, recipe, tmp_path / "out")
    assert [code for code, _ in array.run(command, [0], 4)] == [0]  # of four, one ever ran
    [(code, output)] = array.run(command, [3], 2)
    assert (code, "I from 0 to N-1" in output) == (2, True), "the page says so"
    assert [code for code, _ in array.run(command, range(2), 2)] == [0, 0]
    assert objects_in(open_store(tmp_path / "out")) == expected


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from strings_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_in(inner)
    else:
        yield str(value)


def test_a_kubernetes_job(
    lines: Path,
    tmp_path: Path,
    compilation_cache: Path,
    s3_server: S3Server,
    s3_environment: pytest.MonkeyPatch,
) -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(block("yaml"))
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    spec, [container] = job["spec"], job["spec"]["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed"
    assert spec["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy needs it"
    assert [rule["onExitCodes"]["containerName"] for rule in spec["podFailurePolicy"]["rules"][:1]] == [
        container["name"]
    ]
    volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert all(text.isascii() for text in strings_in(job))

    bucket = s3_server.new_bucket()
    open_store(f"{bucket}/corpus").replace(lines.name, [lines.read_bytes()])
    write_recipe(tmp_path / "RUN.toml", "replaced by the job", PLAIN)
    command = CloudCommand(compilation_cache, s3_variables(s3_server.url))
    places = {"/recipe/": f"{tmp_path}/", "s3://bucket": bucket, "num_processes=15": "num_processes=1"}

    def words(index: int) -> list[str]:
        line = [*container["command"], *container["args"]]
        assert line[0] == "outlast"
        text = "\0".join(line[1:]).replace("$(JOB_COMPLETION_INDEX)", str(index))
        for place, ours in places.items():
            assert place in text
            text = text.replace(place, ours)
        return text.split("\0")

    pods = list(range(spec["completions"]))
    random.Random(1).shuffle(pods)
    processes = [command.start(*words(index)) for index in pods]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, outputs
    expected = built_at_once(
        command, write_recipe(tmp_path / "whole.toml", str(lines), PLAIN), tmp_path / "whole"
    )
    assert objects_in(open_store(f"{bucket}/data")) == expected
