"""A small data set made by the real command, and the digest of a run that nobody disturbed."""

import sysconfig
from pathlib import Path

import pytest

from support.command import RECIPE, Command
from support.datasets import compilation_cache as compilation_cache
from support.s3 import s3_environment as s3_environment
from support.s3 import s3_server as s3_server


@pytest.fixture(scope="session")
def command(compilation_cache: Path) -> Command:
    return Command(compilation_cache)


@pytest.fixture(scope="session")
def manifest(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set made by the real command from the source of a standard library package."""
    text = Path(sysconfig.get_path("stdlib"), "email")
    out = tmp_path_factory.mktemp("data")
    command.run(
        "prepare", RECIPE, "--out", out, "--set", f"corpus.path={text}", "--set", "corpus.include=**/*.py"
    )
    return out / "manifest.json"


@pytest.fixture(scope="session")
def unbroken(command: Command, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Step and digest of a run that nobody disturbed. It also warms the compilation cache."""
    run_dir = tmp_path_factory.mktemp("runs") / "unbroken"
    command.train(manifest, run_dir)
    return command.digest(run_dir)
