"""A run on several devices: killed, moved to other meshes and back, read by a machine of one device."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlast.run.checkpoints import digest_run
from support.command import Command, kill_when
from support.datasets import TINY

STEPS, SAVED = 12, 4
SETTINGS = (
    *TINY,
    f"training.total_steps={STEPS}",
    f"checkpoint.interval_steps={SAVED}",
    "checkpoint.keep_newest=9",
    f"training.evaluation_interval_steps={STEPS}",
    "training.log_interval_steps=1",
)


class Machine(NamedTuple):
    """So many devices, and what is divided among them; by default rows alone."""

    devices: int
    fsdp: int = 1

    def command(self, cache: Path) -> Command:
        command = Command(cache)
        flags = f"--xla_force_host_platform_device_count={self.devices}" if self.devices > 1 else ""
        # A third of the time to compile.
        command.environment["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {flags}"
        return command

    def line(self, cache: Path, manifest: Path, run_dir: Path) -> list[str]:
        return self.command(cache).training(manifest, run_dir, *SETTINGS, f"mesh.fsdp={self.fsdp}")

    def train(self, cache: Path, manifest: Path, run_dir: Path) -> str:
        return self.command(cache).run(*self.line(cache, manifest, run_dir))


@pytest.fixture(scope="module")
def whole(compilation_cache: Path, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on four devices, in slices on two of them, that nobody disturbed."""
    run_dir = tmp_path_factory.mktemp("devices") / "whole"
    output = Machine(4, fsdp=2).train(compilation_cache, manifest, run_dir)
    assert "device: 4 of 4 cpu devices" in output
    assert "mesh: data 2 x fsdp 2; 4 examples of a batch on each device, and 1/2 of parameters" in output
    return run_dir


@pytest.fixture(scope="module")
def killed(
    compilation_cache: Path, whole: Path, manifest: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same run, killed behind a checkpoint."""
    del whole  # it has compiled the step
    run_dir = tmp_path_factory.mktemp("devices") / "killed"
    kill_behind_a_save(Machine(4, fsdp=2), compilation_cache, manifest, run_dir)
    return run_dir


def kill_behind_a_save(machine: Machine, cache: Path, manifest: Path, run_dir: Path) -> None:
    before = set(run_dir.glob("commits/*.json"))
    process = machine.command(cache).start(*machine.line(cache, manifest, run_dir))
    assert kill_when(process, lambda: set(run_dir.glob("commits/*.json")) > before, limit_seconds=200)


def losses(run_dir: Path) -> dict[int, float]:
    """Return the loss of each step of the newest life."""
    newest = max(run_dir.glob("metrics/*.jsonl"))
    return {record["step"]: record["loss"] for record in map(json.loads, newest.read_text().splitlines())}


def evaluation(run_dir: Path) -> dict[str, Any]:
    (path,) = run_dir.glob(f"evaluations/{STEPS:012}-*.json")
    return json.loads(path.read_text())


def test_killed_on_four_devices_a_run_ends_with_the_same_bits(
    compilation_cache: Path, whole: Path, killed: Path, manifest: Path, tmp_path: Path
) -> None:
    run_dir = shutil.copytree(killed, tmp_path / "run")
    output = Machine(4, fsdp=2).train(compilation_cache, manifest, run_dir)
    assert "resuming from step" in output
    assert "bit-identical" in output
    assert digest_run(str(run_dir)) == digest_run(str(whole))


@pytest.mark.parametrize(
    "machines",
    [
        pytest.param([Machine(1)], id="one"),
        pytest.param([Machine(8), Machine(2, fsdp=2)], id="eight, two", marks=pytest.mark.long),
        pytest.param([Machine(8, fsdp=8), Machine(4)], id="eight in slices, four", marks=pytest.mark.long),
        pytest.param([Machine(1), Machine(4, fsdp=2)], id="one and back", marks=pytest.mark.long),
    ],
)
def test_a_run_goes_on_with_other_devices(
    machines: list[Machine],
    compilation_cache: Path,
    whole: Path,
    killed: Path,
    manifest: Path,
    tmp_path: Path,
) -> None:
    run_dir = shutil.copytree(killed, tmp_path / "run")
    *between, last = machines
    for machine in between:
        kill_behind_a_save(machine, compilation_cache, manifest, run_dir)
    output = last.train(compilation_cache, manifest, run_dir)
    assert "losses equal within rounding" in output
    assert between or f"num_devices 4 -> {last.devices}" in output
    expected, found = losses(whole), losses(run_dir)
    assert max(found) == STEPS
    assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-5)
    assert evaluation(run_dir)["loss"] == pytest.approx(evaluation(whole)["loss"], rel=1e-5)


def test_a_run_in_slices_is_read_by_one_device(compilation_cache: Path, whole: Path, tmp_path: Path) -> None:
    command = Machine(1).command(compilation_cache)
    limit = ("--set", "training.evaluation_examples=16")
    (read,) = [json.loads(command.run("evaluate", whole, "--json", *limit).splitlines()[-1])]
    assert read["loss"] == pytest.approx(evaluation(whole)["loss"], rel=1e-5)
    command.run("export", whole, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()


def test_a_mesh_that_does_not_fit_is_refused_before_anything_is_written(
    compilation_cache: Path, manifest: Path, tmp_path: Path
) -> None:
    command = Machine(4).command(compilation_cache)
    for overrides, told in (
        (("mesh.data=2",), ("2 of 4 devices would have nothing to do", "mesh.allow_idle")),
        (("mesh.fsdp=8",), ("The mesh has 8 devices, jax sees 4 here",)),
        (("mesh.fsdp=3",), ("set mesh.fsdp to a divisor of 4",)),
        (
            ("stream.global_batch_size=18",),
            ("18 examples cannot be divided among 4 devices", "16 or 20", "mesh.data = 3"),
        ),
    ):
        output = command.train(manifest, tmp_path / "run", *SETTINGS, *overrides, expect=2)
        assert all(words in output for words in told), output
    assert not (tmp_path / "run").exists()
