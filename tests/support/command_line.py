"""The command line in this process, a small data set, and a run of three steps made by the real command."""

import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from outlast.cli.main import run_command_line
from outlast.logs import log
from support.command import RECIPE, Command

TINY = (
    "training.total_steps=3",
    "training.evaluation_examples=8",
    "stream.sequence_length=16",
    "stream.global_batch_size=4",
    "model.num_layers=1",
    "model.hidden_size=16",
    "model.num_heads=2",
    "model.intermediate_size=16",
)
DATA = (
    f"corpus.path={Path(sysconfig.get_path('stdlib'), 'email')}",
    "corpus.include=**/*.py",
    "shards.num_shards=3",
    "shards.num_processes=1",
    "tokenizer.vocab_size=500",
)


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    def refused(self, code: int, *parts: str) -> None:
        """Check the exit code and that the message holds every part, without a traceback or a result."""
        assert self.code == code, self
        assert self.err.splitlines()[-1].startswith(("outlast: ", "  ", "Error: ")), self.err
        assert [part for part in parts if part not in self.err] == [], self.err
        assert "Traceback" not in self.err
        assert "unexpected" not in self.err
        assert self.out == ""


Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def data(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    command.run("prepare", RECIPE, "--out", out, *settings(*DATA))
    return out


@pytest.fixture(scope="session")
def finished_run(command: Command, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "finished"
    command.train(data / "manifest.json", run_dir, *TINY)
    return run_dir


@pytest.fixture(scope="session")
def model(command: Command, finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    command.run("export", finished_run, folder)
    return folder


@pytest.fixture
def outlast(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """The command line in this process. What it changes for the whole process is put back."""
    former = log.handlers[:], log.level, log.propagate

    def run(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        code = run_command_line([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    yield run
    log.handlers[:], log.propagate = former[0], former[2]
    log.setLevel(former[1])
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture
def train(outlast: Run, command: Command, data: Path, tmp_path: Path) -> Run:
    """Train in this process: on the small data set and into a new run directory, unless told otherwise."""

    def run(
        *overrides: str,
        manifest: Path = data / "manifest.json",
        run_dir: Path = tmp_path / "run",
        options: tuple[str, ...] = (),
    ) -> Outcome:
        return outlast(*command.training(manifest, run_dir, *TINY, *overrides), *options)

    return run


def settings(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]
