"""A mixture trained in phases, killed on either side of the border and on it: the same bits in the end."""

import json
import random
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from outlast.checkpoint.inspect import verify_run
from outlast.run.checkpoints import digest_run
from outlast.storage import LocalStore
from outlast.training.ranking import read_evaluations
from support.command import RECIPE, Command
from support.command_lives import Life

BORDER, STEPS = 24, 40
PHASES = f"{{steps={BORDER}, sequence_length=32}}, {{steps={STEPS - BORDER}, global_batch_size=8}}"
SETTINGS = (
    f"training.phases=[{PHASES}]",
    f"training.total_steps={STEPS}",
    "training.evaluation_interval_steps=12",
    "training.evaluation_examples=16",
    "training.log_interval_steps=1",
    "checkpoint.interval_steps=3",
)
BEHIND_THE_BORDER = "phase 2 of 2"


class Mixture:
    """The real command on a mixture of two data sets."""

    def __init__(self, command: Command, manifests: tuple[Path, Path]) -> None:
        self.command = command
        first, second = manifests
        self.settings = (
            f'stream.sources=[{{manifest="{first}", name="mail", weight=0.6}}, '
            f'{{manifest="{second}", name="code", weight=0.4}}]',
            *SETTINGS,
        )

    def line(self, run_dir: Path, *overrides: str) -> list[str]:
        keys = [part for key in (*self.settings, *overrides) for part in ("--set", key)]
        return ["train", str(RECIPE), "--run-dir", str(run_dir), *self.command.overrides, *keys]

    def train(self, run_dir: Path, *overrides: str, expect: int = 0) -> str:
        return self.command.run(*self.line(run_dir, *overrides), expect=expect)

    def life(self, run_dir: Path) -> Life:
        return Life(self.command.start(*self.line(run_dir), "--debug"))


@pytest.fixture(scope="module")
def mixture(command: Command, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    """Beside the first data set a second one, made with its tokenizer."""
    out = tmp_path_factory.mktemp("code")
    corpus = (
        f"corpus.path={Path(sysconfig.get_path('stdlib'), 'json')}",
        "corpus.include=**/*.py",
        f"tokenizer.path={manifest.parent / 'tokenizer'}",
        "shards.num_shards=2",
        "corpus.validation_fraction=0.3",
    )
    command.run("prepare", RECIPE, "--out", out, *(part for key in corpus for part in ("--set", key)))
    return Mixture(command, (manifest, out / "manifest.json"))


@pytest.fixture(scope="module")
def whole(mixture: Mixture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that nobody disturbed."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    mixture.train(run_dir)
    return run_dir


def evaluations(run_dir: Path) -> dict[int, dict[str, Any]]:
    return read_evaluations(LocalStore(run_dir))


def metrics(run_dir: Path) -> list[dict[str, float]]:
    files = sorted((run_dir / "metrics").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def kill_at(life: Life, step: int | str) -> int:
    """Kill a life once it has done a step, or said something; return the last step it told of."""
    while life.hear(0.005):
        if step in life.said if isinstance(step, str) else life.step >= step:
            break
    assert life.kill(), life.said
    return life.step


def test_killed_on_either_side_of_the_border_a_run_ends_with_the_same_bits(
    mixture: Mixture, whole: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    for aim in (BORDER - 3, BEHIND_THE_BORDER, BORDER + 5):
        step = kill_at(mixture.life(run_dir), aim)
        if aim == BEHIND_THE_BORDER:  # no step of the second phase is done: it is being compiled
            assert step <= BORDER
        else:
            assert (step > BORDER) == (aim == BORDER + 5)
    output = mixture.train(run_dir)
    assert "bit-identical" in output
    assert digest_run(str(run_dir)) == digest_run(str(whole))
    assert verify_run(str(run_dir)) == []
    assert evaluations(run_dir) == evaluations(whole)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_killed_again_and_again_around_the_border(
    mixture: Mixture, whole: Path, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    run_dir = tmp_path / "run"
    aims = [rng.choice((BEHIND_THE_BORDER, rng.randint(BORDER - 4, BORDER + 4))) for _ in range(4)]
    for aim in sorted(aims, key=lambda aim: BORDER if isinstance(aim, str) else aim):
        sys.stdout.write(f"aimed at {aim}, killed after step {kill_at(mixture.life(run_dir), aim)}\n")
    mixture.train(run_dir)
    assert digest_run(str(run_dir)) == digest_run(str(whole))
    assert evaluations(run_dir) == evaluations(whole)


@pytest.mark.parametrize("aim", [BORDER - 4, BORDER + 4])
def test_a_signal_on_either_side_of_the_border_saves_and_leaves(
    mixture: Mixture, whole: Path, tmp_path: Path, aim: int
) -> None:
    run_dir = tmp_path / "run"
    life = mixture.life(run_dir)
    while life.hear(0.005) and life.step < aim:
        pass
    life.process.send_signal(signal.SIGTERM)
    while life.hear(1):
        pass
    assert life.process.wait() == 75, life.said
    life.kill()  # closes the pipe; the process is dead
    mixture.train(run_dir)
    assert digest_run(str(run_dir)) == digest_run(str(whole))


def test_the_loss_goes_down_over_the_border(mixture: Mixture, whole: Path) -> None:
    lines = metrics(whole)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    losses = [line["loss"] for line in lines]

    def mean(first: int, stop: int) -> float:
        return sum(losses[first:stop]) / (stop - first)

    assert mean(0, 5) > mean(BORDER - 5, BORDER) > mean(STEPS - 5, STEPS)
    # No step back at the border: the optimizer and the schedule went on.
    assert mean(BORDER, BORDER + 3) < mean(BORDER - 8, BORDER - 3) + 0.2
    rates = [line["learning_rate"] for line in lines]
    assert rates[19] == max(rates)
    assert rates[BORDER - 1] > rates[BORDER] > rates[BORDER + 1]


def test_an_evaluation_tells_the_loss_of_each_source_at_the_length_of_its_phase(
    mixture: Mixture, whole: Path
) -> None:
    kept = evaluations(whole)
    assert sorted(kept) == [fields["step"] for _, fields in sorted(kept.items())] == [12, 24, 36, 40]
    last = kept[STEPS]
    mail, code = last["sources"]["mail"], last["sources"]["code"]
    both = mail["num_predictions"] + code["num_predictions"]
    weighted = mail["loss"] * mail["num_predictions"] + code["loss"] * code["num_predictions"]
    assert last["loss"] == pytest.approx(weighted / both, rel=1e-12)
    # 16 examples of 32 tokens have fewer predictions than 16 of 64.
    assert kept[BORDER]["num_predictions"] < 0.7 * last["num_predictions"]
    part = ("--set", "training.evaluation_examples=16")  # as in training; else all
    now = json.loads(mixture.command.run("evaluate", whole, "--json", *part))
    assert now == last
    text = mixture.command.run("evaluate", whole, *part)
    assert f"source code      loss {code['loss']:.6g}, {code['num_predictions']} predictions" in text


def test_changed_phases_and_weights_are_refused(mixture: Mixture, whole: Path) -> None:
    phases = f"training.phases=[{{steps={BORDER + 1}, sequence_length=32}}, {{steps={STEPS - BORDER - 1}}}]"
    output = mixture.train(whole, phases, expect=2)
    assert f"phases.1.steps: the checkpoint has {BORDER}, the recipe {BORDER + 1}" in output
    assert "phases.2.global_batch_size: the checkpoint has 8, the recipe 16" in output
    sources = mixture.settings[0].replace("0.6", "0.7")
    output = mixture.train(whole, sources, expect=2)
    assert "data.sources.0.share: the checkpoint has '3/5', the recipe '7/11'" in output
