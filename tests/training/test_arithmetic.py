"""The printed promise is true: whatever changes bits takes the word "bit-identical" away."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.training import arithmetic as module
from outlast.training.arithmetic import arithmetic, describe_promise, environment, kept_arithmetic
from outlast.training.config import TrainingConfig

CHANGES: dict[str, dict[str, str]] = {
    "num_threads 2 -> 1": {"NPROC": "1"},
    "settings.jax_enable_x64": {"JAX_ENABLE_X64": "1"},
    "settings.jax_default_matmul_precision": {"JAX_DEFAULT_MATMUL_PRECISION": "bfloat16"},
    "settings.jax_threefry_partitionable": {"JAX_THREEFRY_PARTITIONABLE": "0"},
    "xla_flags with --xla_cpu_multi_thread_eigen=false": {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    "xla_flags with --xla_cpu_enable_fast_math=true": {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"},
    "instructions without": {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
}
NO_CHANGES: dict[str, dict[str, str]] = {
    "dumps": {"XLA_FLAGS": "--xla_dump_to=DUMP"},
    "logs": {"JAX_LOG_COMPILES": "1"},
    "caches": {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
}

PROGRAM = """
import json, os
import jax
from outlast.training.arithmetic import environment
json.dump(environment(), __import__("sys").stdout)
"""


def environment_under(variables: dict[str, str], folder: Path) -> dict[str, Any]:
    """Return the environment as a process with other variables sees it, two threads unless these say more."""
    variables = {name: value.replace("DUMP", str(folder)) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "NPROC": "2", **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(done.stdout)


def mark_long(number: int, name: str) -> Any:
    """Each is a process of its own: the first two stand for all in a short run."""
    return pytest.param(name, marks=pytest.mark.long if number >= 2 else [])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return environment_under({}, tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("told", [mark_long(number, name) for number, name in enumerate(CHANGES)])
def test_what_changes_bits_takes_the_promise_away(told: str, plain: dict[str, Any], tmp_path: Path) -> None:
    promise = describe_promise(plain, environment_under(CHANGES[told], tmp_path))
    assert "bit-identical" not in promise
    assert told in promise


def test_flags_in_a_file_count_as_what_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XLA takes what begins with no dash for the name of a file."""
    (tmp_path / "flags").write_text("--xla_cpu_enable_fast_math=false\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    assert environment()["xla_flags"] == ["--xla_cpu_enable_fast_math=false"]


@pytest.mark.parametrize("name", [mark_long(number, name) for number, name in enumerate(NO_CHANGES)])
def test_what_changes_no_bit_leaves_the_promise(name: str, plain: dict[str, Any], tmp_path: Path) -> None:
    assert "bit-identical" in describe_promise(plain, environment_under(NO_CHANGES[name], tmp_path))


def test_the_environment_is_plain_and_knows_the_processor() -> None:
    now = environment()
    assert json.loads(json.dumps(now)) == now
    assert now["instructions"], "the compiled program of this jaxlib tells its instructions in another form"
    assert now["num_threads"] >= 1
    assert "bit-identical" in describe_promise(now, now)


def test_a_checkpoint_that_noted_less_promises_nothing() -> None:
    older = {"jaxlib": environment()["jaxlib"], "processor": "Xeon", "num_cores": 2}
    assert "a version that noted less" in describe_promise(older, environment())


def test_a_run_that_once_ran_elsewhere_is_promised_nothing_more() -> None:
    here = environment()
    elsewhere = {**here, "num_threads": 96}
    assert kept_arithmetic(here, None) == kept_arithmetic(here, here) == here
    went_elsewhere = kept_arithmetic(elsewhere, kept_arithmetic(here, None))
    came_back = kept_arithmetic(here, went_elsewhere)
    told = describe_promise(came_back, here)
    assert "bit-identical" not in told
    assert "an earlier part of the run ran elsewhere" in told
    assert "an earlier part" in describe_promise(kept_arithmetic(here, came_back), here)


def test_other_code_of_ours_is_a_change() -> None:
    now = environment()
    told = describe_promise({**now, "arithmetic_version": 0}, now)
    assert f"arithmetic_version 0 -> {module.ARITHMETIC_VERSION}" in told
    assert "bit-identical" not in told


def test_another_attention_kernel_is_named_where_there_are_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, fused = (TrainingConfig(attention_kernel=kernel) for kernel in ("plain", "fused"))
    assert arithmetic(plain) == arithmetic(fused)
    monkeypatch.setattr(module, "environment", lambda: {"platform": "gpu", "settings": {}})
    assert "attention_kernel plain -> fused" in describe_promise(arithmetic(plain), arithmetic(fused))
