"""Runs and models that are not there, damaged, or asked for something they are not."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from support.command import RECIPE, Command
from support.command_line import DATA, TINY, Run, settings


@pytest.fixture
def run_dir(finished_run: Path, tmp_path: Path) -> Path:
    """A run of this test's own."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture(scope="session")
def other_data(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of another tokenizer with as many pieces, so that no shape tells the difference."""
    out = tmp_path_factory.mktemp("other")
    command.run("prepare", RECIPE, "--out", out, *settings(*DATA, "tokenizer.sample_bytes=50000"))
    return out


def tokenizer_of(data: Path) -> str:
    return str(json.loads((data / "manifest.json").read_text())["tokenizer"]["fingerprint"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "There is no run"),
        (["evaluate", "--json"], "There is no run"),
        (["export", "out"], "There is no run"),
        (["checkpoint", "list"], "There is no run"),
        (["checkpoint", "list", "--json"], "There is no run"),
        (["checkpoint", "digest"], "The run has no checkpoint yet"),
        (["checkpoint", "verify"], "There is no checkpoint"),
        (["fill-mask", "a [MASK]"], "There is no model here"),
    ],
)
@pytest.mark.parametrize("place", ["nowhere", "an empty folder", "a data set", "a file"])
def test_a_folder_without_a_run(
    outlast: Run, data: Path, tmp_path: Path, arguments: list[str], message: str, place: str
) -> None:
    folder = data if place == "a data set" else tmp_path / "here"
    if place == "an empty folder":
        folder.mkdir()
    elif place == "a file":
        folder.touch()
    words = 2 if arguments[0] == "checkpoint" else 1
    outcome = outlast(*arguments[:words], folder, *arguments[words:])
    outcome.refused(1, str(folder))
    if place != "a file":
        outcome.refused(1, message)


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"recipe": 3}', ""])
def test_a_damaged_description_is_written_anew_by_training(
    outlast: Run, train: Run, run_dir: Path, content: str
) -> None:
    path = run_dir / "attempts" / "1.run.json"
    path.write_text(content)
    outlast("evaluate", run_dir).refused(1, "description is damaged", str(path), "trains it again")
    outcome = train(run_dir=run_dir)
    assert (outcome.code, outlast("evaluate", run_dir).code) == (0, 0)


def test_a_run_cannot_go_on_with_data_of_another_tokenizer(
    train: Run, run_dir: Path, data: Path, other_data: Path
) -> None:
    description = (run_dir / "attempts" / "1.run.json").read_bytes()
    train(manifest=other_data / "manifest.json", run_dir=run_dir).refused(
        2, "data.tokenizer", tokenizer_of(data), tokenizer_of(other_data), f"--initialize-from {run_dir}"
    )
    assert (run_dir / "attempts" / "1.run.json").read_bytes() == description


def test_a_run_is_not_evaluated_on_data_of_another_tokenizer(
    outlast: Run, run_dir: Path, data: Path, other_data: Path
) -> None:
    there = settings(f"stream.manifest={other_data}/manifest.json")
    outlast("evaluate", run_dir, *there).refused(
        2, tokenizer_of(data), tokenizer_of(other_data), str(other_data), "stream.manifest"
    )


def test_a_run_whose_data_has_moved(
    outlast: Run, train: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found from any folder while they lie where they lay, and in a new place when it is named."""
    place, run_dir = tmp_path / "place", tmp_path / "run"
    shutil.copytree(data, place / "data")
    monkeypatch.chdir(place)
    assert train(manifest=Path("data/manifest.json")).code == 0
    monkeypatch.chdir(tmp_path)
    first = outlast("evaluate", run_dir, "--json")
    assert first.code == 0
    (place / "data").rename(tmp_path / "moved")
    outlast("evaluate", run_dir).refused(1, "There is no manifest", f"{place}/data/manifest.json")
    assert outlast("export", run_dir, tmp_path / "model").code == 0  # needs no data
    there = settings("stream.manifest=moved/manifest.json")
    assert outlast("evaluate", run_dir, "--json", *there).out == first.out


def test_a_run_that_is_past_the_last_step(train: Run, run_dir: Path) -> None:
    train("training.total_steps=2", run_dir=run_dir).refused(
        2, "total_steps: the checkpoint is of step 3, the recipe ends at 2"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="nothing else keeps a process to a limit of memory")
def test_a_device_with_too_little_memory(command: Command, data: Path, tmp_path: Path) -> None:
    limited = Command(tmp_path)
    limited.launcher = (
        "-c",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35));"
        "from outlast.__main__ import main; main()",
    )
    keys = (*TINY, f"model.intermediate_size={2**17}", f"stream.global_batch_size={2**13}")
    told = limited.train(data / "manifest.json", tmp_path / "run", *keys, expect=1)
    assert "outlast: The device has too little memory: RESOURCE_EXHAUSTED" in told
    assert "training.num_microbatches" in told


def test_weights_that_are_not_there_or_do_not_fit(train: Run, finished_run: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    train(options=("--initialize-from", str(nowhere))).refused(2, "no checkpoint to start from", str(nowhere))
    train("model.hidden_size=32", options=("--initialize-from", str(finished_run))).refused(
        2, "embeddings/word is float32(500, 16), expected float32(500, 32)"
    )
    assert not (tmp_path / "run" / "attempts").exists(), "a start that is refused leaves no trace"


def test_weights_of_another_tokenizer_are_taken_where_that_is_asked_for(
    train: Run, finished_run: Path, data: Path, other_data: Path
) -> None:
    manifest, start = other_data / "manifest.json", ("--initialize-from", str(finished_run))
    train(manifest=manifest, options=start).refused(
        2,
        f"the tokenizer {tokenizer_of(data)}, the data were made with {tokenizer_of(other_data)}",
        f"tokenizer.path={finished_run}/tokenizer",
        "--other-tokenizer",
    )
    outcome = train(manifest=manifest, options=(*start, "--other-tokenizer"))
    assert outcome.code == 0, outcome
    assert (
        f"the tokenizer {tokenizer_of(data)}, the data's those of {tokenizer_of(other_data)}" in outcome.err
    )


def test_an_export_overwrites_nothing(outlast: Run, finished_run: Path, model: Path) -> None:
    before = sorted(path.name for path in model.iterdir())
    outlast("export", finished_run, model).refused(2, "The place for the model is taken", str(model))
    assert sorted(path.name for path in model.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["no mask here"], 1, ("There is no mask in the text", "'no mask here'", "[MASK] where a piece")),
        (["a [MASK] " * 40], 1, ("The text has", "tokens", "at most 64")),
        (["a [MASK]", "--top", "0"], 2, ("Cannot give 0 answers", "1 to 500")),
        (["a [MASK]", "--top", "501"], 2, ("Cannot give 501 answers", "1 to 500")),
    ],
)
def test_questions_without_an_answer(
    outlast: Run, model: Path, arguments: list[str], code: int, parts: tuple[str, ...]
) -> None:
    outlast("fill-mask", model, *arguments).refused(code, *parts)


def test_control_c_in_prepare(command: Command, outlast: Run, tmp_path: Path) -> None:
    """Task 1 waits for the tokenizer that task 0 makes: interrupted there, it leaves and can be run again."""
    line = ["prepare", RECIPE, "--out", tmp_path / "data", *settings(*DATA), "--task"]
    process = command.start(*line, "1/2")
    assert process.stdout is not None
    said = next(text for text in process.stdout if "waiting for task 0/2" in text)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said + output
    assert "interrupted; the same line again goes on" in output
    assert "Traceback" not in output
    assert not (tmp_path / "data" / "manifest.json").exists()
    assert [outlast(*line, share).code for share in ("0/2", "1/2")] == [0, 0]
    assert (tmp_path / "data" / "manifest.json").exists()


def test_debug_shows_the_traceback(outlast: Run, tmp_path: Path) -> None:
    line = ("evaluate", tmp_path / "nowhere")
    assert "Traceback" not in outlast(*line).err
    outcome = outlast(*line, "--debug")
    assert "Traceback" in outcome.err
    assert "There is no run" in outcome.err.splitlines()[-3]
    assert outcome.code == 1


def test_what_nobody_foresaw_is_one_line_too(
    outlast: Run, monkeypatch: pytest.MonkeyPatch, finished_run: Path
) -> None:
    def fail(_: str, **options: object) -> None:
        raise ZeroDivisionError("something")

    monkeypatch.setattr("outlast.run.checkpoints.digest_run", fail)
    line = ("checkpoint", "digest", finished_run)
    outcome = outlast(*line)
    assert (outcome.code, outcome.out) == (1, "")
    assert (
        outcome.err
        == "outlast: unexpected ZeroDivisionError: something\n  do:       run again with --debug\n"
    )
    assert "Traceback" in outlast("--debug", *line).err


def test_exit_codes_of_the_process(command: Command, data: Path, tmp_path: Path) -> None:
    """The codes reach the shell, whichever way the command ends."""
    command.run("--help")
    command.run("shards", "verify", data / "manifest.json")
    command.run("evaluate", tmp_path / "nowhere", expect=1)
    command.run("evaluate", expect=2)
    command.train(data / "manifest.json", tmp_path / "run", *TINY, "stream.num_lanes=3", expect=2)
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "data" / "train-00000-of-00003.safetensors").unlink()
    command.run("shards", "verify", tmp_path / "data" / "manifest.json", expect=1)
