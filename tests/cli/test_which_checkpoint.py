"""The checkpoint that a verb reads is the one asked for: the newest, that of a step, or the best."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from outlast.storage import LocalStore
from outlast.training.ranking import read_evaluations
from support.command import Command
from support.command_line import TINY, Run, settings

# Rates at which a model gets worse, so that the best is an early one.
SETTINGS = (
    *TINY,
    "training.total_steps=8",
    "training.evaluation_interval_steps=2",
    "checkpoint.interval_steps=2",
    "optimizer.warmup_steps=4",
    "optimizer.learning_rate=10",
)


@pytest.fixture(scope="session")
def evaluated_run(command: Command, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "evaluated"
    command.train(data / "manifest.json", run_dir, *SETTINGS)
    return run_dir


@pytest.fixture(scope="session")
def best(evaluated_run: Path) -> dict[str, Any]:
    """The evaluation with the lowest loss."""
    found = list(read_evaluations(LocalStore(evaluated_run)).values())
    lowest = min(found, key=lambda fields: fields["loss"])
    assert (len(found), lowest["step"]) != (4, 8), "the newest is not the best"
    return lowest


def test_every_verb_reads_the_best(
    outlast: Run, train: Run, evaluated_run: Path, best: dict[str, Any], tmp_path: Path
) -> None:
    step = best["step"]
    part = ("--json", "--set", "training.evaluation_examples=8")
    assert json.loads(outlast("evaluate", evaluated_run, "--best", *part).out) == best
    assert json.loads(outlast("evaluate", evaluated_run, "--step", f"{step}", *part).out) == best
    digest = outlast("checkpoint", "digest", evaluated_run, "--best").out
    assert digest.split()[0] == f"{step}"
    assert digest == outlast("checkpoint", "digest", evaluated_run, "--step", f"{step}").out
    assert digest != outlast("checkpoint", "digest", evaluated_run).out

    assert outlast("export", evaluated_run, tmp_path / "model", "--best").code == 0
    provenance = json.loads((tmp_path / "model" / "outlast.json").read_text())["provenance"]
    words = f"the best by loss ({best['loss']:.4f} over 8 examples)"
    assert (provenance["step"], provenance["checkpoint"]) == (step, words)
    assert provenance["evaluation"] == best
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"| step | {step} |\n| checkpoint | {words} |\n" in card

    begun = train(
        "training.total_steps=1",
        "optimizer.learning_rate=1e-12",
        options=("--initialize-from", str(evaluated_run), "--initialize-best"),
    )
    assert f"starting from the parameters of step {step} of " in begun.err
    further = json.loads(outlast("evaluate", tmp_path / "run", *part).out)
    assert further["loss"] == pytest.approx(best["loss"], rel=1e-4)


def test_the_list_marks_the_best_and_the_newest(
    outlast: Run, evaluated_run: Path, best: dict[str, Any]
) -> None:
    header, *lines = outlast("checkpoint", "list", evaluated_run).out.splitlines()
    assert header.split()[:5] == ["step", "attempt", "size", "loss", "examples"]
    assert lines[0].split()[0] == "8"
    assert "newest" in lines[0]
    (marked,) = (line for line in lines if "the best" in line)
    assert marked.split()[0] == str(best["step"])
    assert f"{best['loss']:.4f}" in marked


def test_a_step_that_is_not_there(outlast: Run, train: Run, evaluated_run: Path, tmp_path: Path) -> None:
    kept = sorted(
        row["step"] for row in json.loads(outlast("checkpoint", "list", evaluated_run, "--json").out)
    )
    expected = f"one of the steps {', '.join(map(str, kept))}"
    for line in (
        ("evaluate", evaluated_run, "--step", "7"),
        ("export", evaluated_run, tmp_path / "model", "--step", "7"),
        ("checkpoint", "digest", evaluated_run, "--step", "7"),
    ):
        outlast(*line).refused(2, "no checkpoint of step 7", expected)
    start = ("--initialize-from", str(evaluated_run), "--initialize-step", "7")
    train(options=start).refused(2, "no checkpoint of step 7", expected)
    train(options=("--initialize-best",)).refused(2, "--initialize-from RUN_DIR beside it")
    outlast("evaluate", evaluated_run, "--step", "8", "--best").refused(2, "both asked for")
    outlast("evaluate", evaluated_run, "--best", "--follow").refused(2, "--follow evaluates each new")


def test_a_metric_that_there_is_not_is_refused_before_anything_begins(train: Run, tmp_path: Path) -> None:
    train("checkpoint.best_metric=acuracy").refused(2, "did you mean 'accuracy'", "checkpoint.best_metric")
    assert not (tmp_path / "run").exists()


def test_a_run_is_ranked_by_another_metric_from_now_on(
    outlast: Run, train: Run, evaluated_run: Path, tmp_path: Path
) -> None:
    """The metric is operation: it may change between two attempts."""
    run_dir = Path(shutil.copytree(evaluated_run, tmp_path / "run"))
    settings_of_run = [key for key in SETTINGS if key not in TINY]
    done = train(*settings_of_run, "checkpoint.best_metric=accuracy", run_dir=run_dir)
    assert done.code == 0, done
    assert outlast("checkpoint", "list", run_dir).out.split()[3] == "accuracy"


def test_the_end_of_a_run_says_what_came_of_it(
    outlast: Run, train: Run, evaluated_run: Path, best: dict[str, Any], tmp_path: Path
) -> None:
    """Three steps are fewer than the interval between two lines of progress."""
    *_, result, _ = train().err.splitlines()
    (kept,) = read_evaluations(LocalStore(tmp_path / "run")).values()
    (line,) = next((tmp_path / "run" / "metrics").iterdir()).read_text().splitlines()
    loss = json.loads(line)["loss"]
    assert result == f"all 3 steps are done: loss {loss:.4f}, held-out loss {kept['loss']:.4f}"
    *_, again, following = train().err.splitlines()
    assert again == f"all 3 steps are done, held-out loss {kept['loss']:.4f}"
    assert f"{tmp_path}/run; next: outlast evaluate {tmp_path}/run" in following

    run_dir = Path(shutil.copytree(evaluated_run, tmp_path / "evaluated"))
    *_, worse, following = train(
        *(key for key in SETTINGS if key not in TINY), run_dir=run_dir
    ).err.splitlines()
    assert following.endswith(
        f"next: outlast evaluate {run_dir} --best   or: outlast export {run_dir} evaluated-model --best"
    )
    assert worse.endswith(f"the best by loss is step {best['step']} ({best['loss']:.4f}): --best")


def test_a_schedule_that_cannot_be_extended_names_what_can(
    outlast: Run, train: Run, evaluated_run: Path, tmp_path: Path
) -> None:
    run_dir = Path(shutil.copytree(evaluated_run, tmp_path / "linear"))
    kept = [key for key in SETTINGS if key not in TINY]
    longer = [*kept, "training.total_steps=10"]
    refused = train(*longer, run_dir=run_dir)
    way = f"--run-dir NEW --initialize-from {run_dir}"
    refused.refused(2, "total_steps: the checkpoint has 8, the recipe 10", "'linear'", way, '"constant"')
    options = way.replace("NEW", str(tmp_path / "new")).split()
    assert train(*longer, run_dir=tmp_path / "ignored", options=tuple(options)).code == 0
    assert outlast("checkpoint", "digest", tmp_path / "new").out.startswith("10 ")
    assert train(*kept, run_dir=run_dir).code == 0, "set back"
    shorter = train(*kept, "training.total_steps=7", run_dir=run_dir)
    shorter.refused(2, "the checkpoint is of step 8, the recipe ends at 7", "at least 8 steps", "--step")
    extensible = ("optimizer.schedule=constant", "optimizer.warmup_steps=0")
    assert train(*extensible).code == 0
    done = train(*extensible, "training.total_steps=4")
    assert done.code == 0, done
    assert "resuming from step 3 of 4" in done.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (("train", "RUN.toml", "--run-dir", "x", "--step", "3"), "No such option '--step'."),
        (("train", "RUN.toml", "--rundir", "x"), "Did you mean '--run-dir'?"),
        (("evaluate", "x", "--bst"), "Did you mean '--best'?"),
        (("--vershun",), "Did you mean '--version'?"),
        (("train", "--hlp"), "Did you mean '--help'?"),
        (("train", "-x"), "No such option '-x'."),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest_or_none(
    outlast: Run, line: tuple[str, ...], told: str
) -> None:
    assert outlast(*line).err.splitlines()[-1].endswith(told)


def test_a_run_wants_a_folder_of_its_own(
    outlast: Run, train: Run, data: Path, model: Path, finished_run: Path, tmp_path: Path
) -> None:
    train(run_dir=data).refused(2, "This is a data set", str(data))
    train(run_dir=model).refused(2, "This is an exported model", str(model))
    assert outlast("import", model, tmp_path / "imported").code == 0
    before = sorted(path.name for path in (tmp_path / "imported").rglob("*"))
    train(run_dir=tmp_path / "imported").refused(2, "an import", f"--initialize-from {tmp_path}/imported")
    assert sorted(path.name for path in (tmp_path / "imported").rglob("*")) == before
    recipe = Path(__file__).parents[2] / "recipes" / "resnet_cifar10.toml"
    manifest = settings(f"stream.manifest={data}/manifest.json")
    outlast("train", recipe, "--run-dir", finished_run, *manifest).refused(
        2, "The run is one on text, the recipe of images"
    )
    assert (
        "is not read: the run goes on from its own"
        in train(
            run_dir=Path(shutil.copytree(finished_run, tmp_path / "again")),
            options=("--initialize-from", str(finished_run)),
        ).err
    )
