"""The promise that a resume prints, held against the bits: where it says bit-identical they are."""

import shutil
from pathlib import Path

import pytest

from outlast.run.checkpoints import digest_run
from support.command import Command
from support.datasets import TINY

SETTINGS = (*TINY, "training.total_steps=12", "checkpoint.interval_steps=6", "checkpoint.keep_newest=9")
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "the same": {},
    "another number of threads": {"NPROC": "1"},
    "64 bits": {"JAX_ENABLE_X64": "1"},
    "one thread for products": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    "fast math": {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"},
    "older instructions": {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
    "a log of compilations": {"JAX_LOG_COMPILES": "1"},
}


@pytest.fixture(scope="module")
def runs(
    compilation_cache: Path, manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, object]]:
    """A run that was stopped at half its steps, and the digest of one that was not."""
    folder = tmp_path_factory.mktemp("promise")
    command = Command(compilation_cache)
    command.environment["NPROC"] = "2"
    command.train(manifest, folder / "whole", *SETTINGS)
    shutil.copytree(folder / "whole", folder / "half")
    for path in (folder / "half").glob("commits/*12-*"):
        path.unlink()
    for path in (folder / "half" / "data").glob("*12"):
        shutil.rmtree(path)
    command.run("checkpoint", "recover", folder / "half", "--go-on-from", "6")
    return folder / "half", digest_run(str(folder / "whole"))


@pytest.mark.long
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_promise_is_true(
    name: str,
    runs: tuple[Path, dict[str, object]],
    compilation_cache: Path,
    manifest: Path,
    tmp_path: Path,
) -> None:
    half, whole = runs
    shutil.copytree(half, tmp_path / "run")
    command = Command(compilation_cache)
    command.environment |= {"NPROC": "2", **ENVIRONMENTS[name]}
    output = command.train(manifest, tmp_path / "run", *SETTINGS)
    assert "resuming from step 6 of 12" in output
    is_promised = "bit-identical" in output
    assert is_promised == (name in ("the same", "a log of compilations")), output
    if is_promised:
        assert digest_run(str(tmp_path / "run")) == whole
