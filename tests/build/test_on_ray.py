"""``outlast prepare --ray`` on a real Ray of two workers: the same bytes, whoever dies."""

import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from outlast.storage import open_store
from support.builds import CLEANED, PAIRED, PLAIN, objects_in, write_lines, write_recipe
from support.command import Command, kill
from support.s3 import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed"),
]

TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Of this session's clusters alone; without one Ray makes a token in the home folder."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lines(tmp_path_factory.mktemp("corpus") / "a.jsonl", 3000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray of two cores, started as a user would; its address. It ends with the tests."""
    port = free_port()
    # Its sockets have names of at most 107 bytes.
    folder = f"/tmp/outlast-ray-{os.getpid()}"
    options = ["--head", "--block", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    places = [f"--port={port}", f"--temp-dir={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *places],
        env={**os.environ, **TOKEN},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            subprocess.run(["rm", "-rf", folder], check=True)


@pytest.fixture(scope="module")
def command(compilation_cache: Path) -> Command:
    command = Command(compilation_cache)
    command.environment |= TOKEN
    return command


def test_the_bytes_are_those_of_one_machine(
    cluster: str, command: Command, lines: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml", str(lines), CLEANED | PAIRED)
    command.run("prepare", recipe, "--out", tmp_path / "whole")
    output = command.run("prepare", recipe, "--out", tmp_path / "out", "--ray", cluster)
    assert "2 cores of 1 machines on Ray" in output
    assert re.search(r"shards: \S+ documents, \S+ \S+ tokens", output)
    assert objects_in(open_store(tmp_path / "out")) == objects_in(open_store(tmp_path / "whole"))


def test_a_ray_of_its_own(command: Command, lines: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml", str(lines), PLAIN)
    command.run("prepare", recipe, "--out", tmp_path / "whole")
    command.run("prepare", recipe, "--out", tmp_path / "out", "--ray", "local")
    assert objects_in(open_store(tmp_path / "out")) == objects_in(open_store(tmp_path / "whole"))


def test_a_failed_portion_is_named_and_only_it_is_built_again(
    cluster: str, command: Command, lines: Path, tmp_path: Path
) -> None:
    corpus, content = tmp_path / "a.jsonl", lines.read_bytes()
    corpus.write_bytes(content)
    recipe = write_recipe(tmp_path / "recipe.toml", str(corpus), PLAIN)
    command.run("prepare", recipe, "--out", tmp_path / "whole")
    tokenizer = ["--set", f"tokenizer.path={tmp_path / 'whole' / 'tokenizer'}"]
    line = ["prepare", recipe, "--out", tmp_path / "out", "--ray", cluster, *tokenizer]
    begin = (
        content.index(b"\n", (len(content) - 4096) * 7 // 15 + 4096) + 1
    )  # between two blocks of the digest
    corpus.write_bytes(content[:begin] + b"?" + content[begin + 1 :])
    output = command.run(*line, expect=1)
    assert re.search(r"1 of 6 portions failed \((\d)\), the others are kept[\s\S]*not valid JSON", output)
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("train-*")}
    assert len(shards) == 5
    corpus.write_bytes(content)
    command.run(*line)
    assert {path for path, built in shards.items() if path.stat().st_mtime_ns != built} == set()
    for path in (tmp_path / "whole").glob("*.safetensors"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_killed_workers_and_a_killed_command_change_nothing(
    cluster: str, command: Command, lines: Path, tmp_path: Path
) -> None:
    settings = PLAIN | {"shards.num_shards": 24}
    recipe = write_recipe(tmp_path / "recipe.toml", str(lines), settings)
    command.run("prepare", recipe, "--out", tmp_path / "whole")
    line = ["prepare", recipe, "--out", tmp_path / "out", "--ray", cluster]
    rng = random.Random(4)
    process = command.start(*line)
    killed = 0
    for enough in (2, 9):
        wait_for_portions(process, tmp_path / "out", enough)
        killed += kill_a_worker(rng)
    assert killed, "no worker was alive"
    wait_for_portions(process, tmp_path / "out", 14)
    assert process.poll() is None, "the command ended before its kill"
    kill(process)
    assert not (tmp_path / "out" / "manifest.json").exists()
    command.run(*line)
    assert objects_in(open_store(tmp_path / "out")) == objects_in(open_store(tmp_path / "whole"))


def wait_for_portions(process: subprocess.Popen[str], out: Path, number: int) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and len(list((out / "done").glob("*.json"))) < number:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def kill_a_worker(rng: random.Random) -> int:
    """Kill one of the processes in which Ray builds a portion; return whether there was one."""
    workers: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if name.startswith(b"ray::") and b"_build_there" in name:
            workers.append(int(folder.name))
    if workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
    return len(workers) > 0


def test_where_no_cluster_is(command: Command, lines: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml", str(lines), PLAIN)
    line = ["prepare", recipe, "--out", tmp_path / "out", "--ray", f"127.0.0.1:{free_port()}"]
    output = command.run(*line, expect=2)
    assert "There is no Ray cluster at" in output
    assert "Traceback" not in output
