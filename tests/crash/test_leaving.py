"""Asked to leave, started twice, out of space, or asked for something else: what the real command does."""

import json
import signal
import time
from pathlib import Path

import pytest

from outlast.storage import LocalStore
from outlast.training.ranking import read_evaluations
from support.command import Command, kill


def wait_for(path: Path, pattern: str, *, limit_seconds: float = 120) -> None:
    deadline = time.monotonic() + limit_seconds
    while not list(path.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern} in {path}"
        time.sleep(0.01)


SIGNALS = [(signal.SIGTERM, 75), (signal.SIGINT, 130)]
SENT_BY_JAX = """
import os, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == "jax":
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), {})
sys.meta_path.insert(0, Finder)
from outlast.__main__ import main
main()
"""
"""Sends the signal as soon as the import of jax begins."""


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_jax_is_imported_leaves_before_anything_begins(
    compilation_cache: Path, manifest: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = Command(compilation_cache)
    command.launcher = ("-c", SENT_BY_JAX.format(int(number)))
    output = command.train(manifest, tmp_path / "run", expect=code)
    assert f"{number.name} before the run began: nothing is lost" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_saves_and_leaves(
    command: Command,
    manifest: Path,
    unbroken: tuple[int, str],
    tmp_path: Path,
    number: signal.Signals,
    code: int,
) -> None:
    run_dir = tmp_path / "run"
    process = command.start_training(manifest, run_dir, "checkpoint.interval_steps=1000000")
    wait_for(run_dir, "attempts/1.from.json")
    time.sleep(3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert "everything is saved" in output
    assert "run the same line again" in output
    command.train(manifest, run_dir)
    assert command.digest(run_dir) == unbroken


def test_a_finished_run_started_again_changes_nothing(
    command: Command, manifest: Path, unbroken: tuple[int, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    command.train(manifest, run_dir)
    commits = sorted(path.name for path in (run_dir / "commits").iterdir())
    command.train(manifest, run_dir)
    assert sorted(path.name for path in (run_dir / "commits").iterdir()) == commits
    assert command.digest(run_dir) == unbroken


def test_a_second_process_is_refused_while_the_first_lives(
    command: Command, manifest: Path, unbroken: tuple[int, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    beat = ("checkpoint.heartbeat_seconds=0.5", "checkpoint.heartbeat_limit_seconds=5")
    first = command.start_training(
        manifest, run_dir, "training.total_steps=100000", "optimizer.schedule=constant", *beat
    )
    wait_for(run_dir, "attempts/1.heartbeat")
    output = command.train(manifest, run_dir, *beat, expect=1)
    assert str(first.pid) in output  # which process owns it
    first.send_signal(signal.SIGSTOP)  # alive, but without a sign of life
    time.sleep(5.5)
    taken = command.start_training(
        manifest, run_dir, "training.total_steps=20", "optimizer.schedule=constant", *beat
    )
    output, _ = taken.communicate(timeout=120)
    assert taken.returncode == 0, output
    first.send_signal(signal.SIGCONT)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 1  # it finds itself replaced, and stops
    assert "Attempt 2 has claimed the run" in output
    assert command.digest(run_dir)[0] == 20


def test_an_evaluation_owed_is_made_by_the_next_attempt(
    command: Command, manifest: Path, unbroken: tuple[int, str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    process = command.start_training(manifest, run_dir)
    wait_for(run_dir, "commits/000000000100-1.json")
    kill(process)
    (run_dir / "evaluations" / "000000000100-1.json").unlink(missing_ok=True)
    command.train(manifest, run_dir)
    kept = read_evaluations(LocalStore(run_dir))[100]
    part = ("--set", "training.evaluation_examples=64")  # as in training; else all
    now = json.loads(command.run("evaluate", run_dir, "--json", *part))
    assert now == kept
    assert command.digest(run_dir) == unbroken


def test_other_settings_are_refused_with_both_values_and_the_way_out(
    command: Command, manifest: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    command.train(manifest, run_dir, "training.total_steps=5")
    output = command.train(manifest, run_dir, "training.total_steps=5", "model.num_layers=3", expect=2)
    assert "model.num_layers: the checkpoint has 2, the recipe 3" in output
    output = command.run(
        *command.training(manifest, tmp_path / "new", "training.total_steps=5", "training.seed=7"),
        "--initialize-from",
        run_dir,
    )
    assert f"starting from the parameters of step 5 of {run_dir}" in output
    assert command.digest(tmp_path / "new") != command.digest(run_dir)
