"""Recipes, flags and combinations that make no sense: exit code 2, what is wrong and what to do."""

from pathlib import Path

import pytest

from support.command import RECIPE
from support.command_line import TINY, Run, settings


def test_a_missing_recipe(outlast: Run, tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    outlast("prepare", path, "--out", tmp_path / "out").refused(2, "There is no such recipe", str(path))
    outlast("train", tmp_path, "--run-dir", tmp_path / "out").refused(2, "This is a folder", "a TOML file")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"[corpus\n", "not valid TOML"), (b"# \xff\n", "not valid TOML"), (b"[a]\n[a]\n", "at line 2")],
)
def test_a_recipe_that_is_no_toml(outlast: Run, tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "RUN.toml"
    path.write_bytes(content)
    outlast("prepare", path, "--out", tmp_path / "out").refused(2, message, str(path))


@pytest.mark.parametrize("verb", [("prepare", "--out"), ("train", "--run-dir")])
def test_every_mistake_at_once_whatever_the_verb(outlast: Run, tmp_path: Path, verb: tuple[str, str]) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text(
        """
        [modle]
        [corpus]
        paht = "texts"
        [tokenizer]
        kind = "wordpiece"
        [model]
        num_layers = "two"
        [optimizer]
        clip_norm = 0
        [training]
        total_step = 5
        seed = -1
        """
    )
    outlast(verb[0], path, verb[1], tmp_path / "out").refused(
        2,
        "modle: unknown key; did you mean 'model'?",
        "corpus.paht: unknown key; did you mean 'path'?",
        'wordpiece needs library = "tokenizers"',
        "model.num_layers: expected a whole number",
        "(found 'two')",
        "optimizer.clip_norm: Input should be greater than 0 (found 0)",
        "training.total_step: unknown key; did you mean 'total_steps'?",
        "training.seed: Input should be greater than or equal to 0 (found -1)",
        str(path),
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("training.total_step=5", ("training.total_step: unknown key; did you mean 'total_steps'?",)),
        ("tokenizer.vocab_size=2000000000", ("tokenizer.vocab_size: ", "less than or equal to 16777216")),
        ("model.vocab_size=2000000000", ("model.vocab_size: ", "less than or equal to 16777216")),
        ("training.total_steps=true", ("training.total_steps: expected a whole number (found True)",)),
        ("trainign.total_steps=5", ("trainign: unknown key; did you mean 'training'?",)),
        ("training.total_steps=many", ("training.total_steps", "(found 'many')")),
        ("training.total_steps", ("Cannot read the override", "--set table.key=value")),
        ("total_steps=5", ("Cannot read the override 'total_steps=5'",)),
        ("training.seed.x=5", ("training.seed",)),
        ("corpus.documents.x=5", ("'documents' is a value, not a table",)),
    ],
)
def test_overrides_that_make_no_sense(
    outlast: Run, tmp_path: Path, override: str, parts: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    outcome = outlast("prepare", RECIPE, "--out", out, "--set", override)
    outcome.refused(2, *parts)
    assert "has mistakes" not in outcome.err or f"--set {override}" in outcome.err.partition("where:")[2]
    assert not out.exists()


@pytest.mark.parametrize("task", ["9/4", "4/4", "-1/4", "1", "1/", "a/b", "1/4/2", "0/0"])
def test_a_task_that_is_none(outlast: Run, tmp_path: Path, task: str) -> None:
    outlast("prepare", RECIPE, "--out", tmp_path / "out", "--task", task).refused(
        2, f"Cannot read the task {task!r}", "I/N with I from 0 to N-1"
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", RECIPE, "--run-dir", "run", "--total-steps=3"], ("No such option", "--total-steps")),
        (["train", RECIPE], ("Missing option '--run-dir'",)),
        (["trian", RECIPE], ("No such command 'trian'", "'train'")),
        (["fill-mask", "model"], ("Missing argument",)),
        (["fill-mask", "model", "[MASK]", "--top", "many"], ("'many' is not a valid integer",)),
        (["shards"], ("Commands:", "verify")),
        (["checkpoint", "delete", "run"], ("No such command 'delete'",)),
    ],
)
def test_usage(
    outlast: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    parts: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = outlast(*arguments)
    outcome.refused(2, *parts, "Usage: outlast")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ("stream.num_lanes=3",),
            ("batch of 4 examples cannot be divided by stream.num_lanes = 3", "to 3 or 6"),
        ),
        (("training.num_microbatches=8",), ("cannot be divided by training.num_microbatches = 8", "to 8")),
        (
            ("stream.sequence_length=128",),
            ("sequence length 128 is longer than max_positions 64", "set model.max_positions to 128 or more"),
        ),
        (("model.num_heads=3",), ("hidden size 16 does not divide into 3 heads",)),
    ],
)
def test_numbers_that_do_not_fit_together(
    outlast: Run, train: Run, tmp_path: Path, overrides: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    train(*overrides).refused(2, *parts)
    assert not (tmp_path / "run").exists()
    # They are told before hours of preparation, too.
    outlast("prepare", RECIPE, "--out", tmp_path / "out", *settings(*TINY, *overrides)).refused(2, *parts)
    assert not (tmp_path / "out").exists()


def test_a_sequence_without_room_for_text(train: Run) -> None:
    train("stream.sequence_length=2").refused(2, "2 tokens has no room for text", "at least 3")


def test_no_data_is_named(outlast: Run, tmp_path: Path) -> None:
    outlast("train", RECIPE, "--run-dir", tmp_path / "run").refused(
        2,
        "The recipe names no data",
        "stream.manifest",
        "`outlast prepare RUN.toml --out DIR`",
        "`outlast shards images`",
    )


@pytest.mark.parametrize(
    "line",
    [
        ("prepare", RECIPE, *settings("corpus.path=texts"), "--out", ""),
        ("corpus", RECIPE, *settings("corpus.path=texts"), "--out", ""),
        ("train", RECIPE, "--run-dir", ""),
        ("evaluate", ""),
        ("checkpoint", "verify", ""),
    ],
)
def test_a_folder_without_a_name(
    outlast: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: tuple[str | Path, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("text")
    manifest = settings(f"stream.manifest={data}/manifest.json") if line[0] == "train" else []
    outlast(*line, *manifest).refused(2, "The name of a folder is empty", "shell variables")
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_a_scheme_that_is_not_known(outlast: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    corpus = settings(f"corpus.path={tmp_path}")
    outlast("prepare", RECIPE, "--out", "ftp://host/data", *corpus).refused(2, "'ftp' is not known", "gs, s3")
