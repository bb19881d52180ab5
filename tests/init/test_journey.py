"""From data that nobody described to an exported model, by the commands that ``init`` prints."""

import os
import shlex
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support.command import Command
from support.command_line import Run, settings

JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
SHORT = settings("training.total_steps=3", "training.evaluation_examples=8", "optimizer.warmup_steps=1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_english(folder: Path) -> Path:
    texts = folder / "texts"
    texts.mkdir()
    for path in sorted(Path(sysconfig.get_path("stdlib"), "email").glob("*.py")):
        (texts / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (texts / "picture.bin").write_bytes(bytes(range(256)))
    return texts


def write_japanese(folder: Path) -> Path:
    """One file in an encoding of its own: paragraphs that differ, parted by blank lines."""
    rng = np.random.default_rng(0)
    kana = [chr(code) for code in range(0x3041, 0x3094)]
    paragraphs = [JAPANESE + "".join(rng.choice(kana, 300)) + "。" for _ in range(120)]
    (folder / "neko.txt").write_text("\n\n".join(paragraphs), encoding="shift_jis")
    return folder / "neko.txt"


def write_pictures(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 8)):
        for name in ("cats", "dogs"):
            place = folder / "pictures" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (36, 34, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder / "pictures"


Verb = Callable[..., str]


@pytest.fixture
def here(outlast: Run) -> Verb:
    """Run a verb in this process; return all it said."""

    def run(*arguments: str | Path) -> str:
        outcome = outlast(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out + outcome.err

    return run


def follow(verb: Verb, command: Command, told: str, *more: str) -> None:
    """Run the two commands that ``init`` has printed."""
    lines = [line.strip() for line in told.partition("next:\n")[2].splitlines()]
    (first, second) = (shlex.split(line)[1:] for line in lines if line.startswith("outlast "))
    verb(*first)
    verb(*second, *more, *command.overrides)


def test_english_text(folder: Path, command: Command) -> None:
    """Each verb in a process of its own, as a person starts it."""
    told = command.run("init", "--text", write_english(folder))
    assert "20 files of text (each file a document), utf-8; 1 files with other endings are left out" in told
    assert "script: Latin" in told
    recipe = Path("RUN.toml").read_text()
    assert 'path = "texts"' in recipe
    assert 'include = "**/*.py"' in recipe
    assert 'preset = "tiny"' in recipe
    follow(command.run, command, told, *SHORT)
    command.run("evaluate", "run")
    command.run("export", "run", "model")
    assert "score" in command.run("fill-mask", "model", "import [MASK]")


def test_japanese_text(folder: Path, command: Command, here: Verb) -> None:
    told = here("init", "--text", write_japanese(folder), "--out", "ja.toml")
    assert "1 file of text (documents between blank lines), auto" in told
    assert "script: Japanese" in told
    recipe = Path("ja.toml").read_text()
    assert "byte_level = true" in recipe, "little text gives no vocabulary of words"
    follow(here, command, told, *SHORT)
    here("export", "run", "model")
    assert "score" in here("fill-mask", "model", "吾輩は[MASK]である。")


def test_pictures_in_folders_of_classes(folder: Path, command: Command, here: Verb) -> None:
    told = here("init", "--images", write_pictures(folder))
    assert "48 pictures of 2 classes" in told
    assert "held out:" in told
    recipe = Path("RUN.toml").read_text()
    assert "image_size = 32" in recipe
    follow(here, command, told, *settings("training.epochs=2", "optimizer.warmup_epochs=0"))
    here("evaluate", "run")
    here("export", "run", "model")
    assert (folder / "model" / "preprocessor_config.json").exists()


def test_nothing_is_overwritten_and_every_way_is_named(folder: Path, outlast: Run) -> None:
    Path("RUN.toml").write_text("mine")
    (folder / "a.txt").write_text("words\n\nmore words\n")
    outlast("init", "--text", "a.txt").refused(2, "nothing is overwritten", "RUN.toml", "--out")
    assert Path("RUN.toml").read_text() == "mine"
    outlast("init", "--out", "b.toml").refused(2, "--text PATH", "roberta_tiny")
    outlast("init", "--text", "a.txt", "--recipe", "roberta_tiny").refused(2, "more than once")
    outlast("init", "--text", "nowhere", "--out", "b.toml").refused(1, "There is no such file or folder")
    outlast("init", "--images", "a.txt", "--out", "b.toml").refused(1, "holds no image")
    outlast("init", "--recipe", "roberta_tyny", "--out", "b.toml").refused(2, "did you mean 'roberta_tiny'?")
    assert not Path("b.toml").exists()


def test_a_shipped_recipe_names_its_copy(folder: Path, outlast: Run) -> None:
    assert outlast("init", "--recipe", "roberta_tiny", "--out", "mine.toml").out == "mine.toml\n"
    text = Path("mine.toml").read_text(encoding="utf-8")
    assert "outlast prepare mine.toml" in text
    assert "recipes/" not in text
    assert outlast("recipe", "show", "mine.toml").code == 0


def test_a_recipe_in_the_folder_of_the_text_is_no_text(folder: Path, outlast: Run) -> None:
    (folder / "a.txt").write_text("words\n\nmore words\n\nand more\n")
    assert outlast("init", "--text", ".").code == 0
    assert 'exclude = ["RUN.toml", "data/**", "run/**"]' in Path("RUN.toml").read_text()
    os.mkdir("data")
    assert outlast("init", "--text", ".", "--out", "second.toml").code == 0
    assert "second-data/manifest.json" in Path("second.toml").read_text()


def test_text_of_few_words_gets_a_vocabulary_that_it_can_give(folder: Path, outlast: Run) -> None:
    names = (
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "zeta",
        "theta",
        "iota",
        "kappa",
        "lambda",
        "omicron",
    )
    for number in range(60):
        words = [names[number * step % len(names)] for step in range(300)]
        (folder / f"{number}.txt").write_text(" ".join(words) + "\n")
    assert outlast("init", "--text", ".", "--out", "few.toml").code == 0
    assert outlast("prepare", "few.toml", "--out", "data", "--set", "shards.num_processes=1").code == 0


def test_one_document_is_not_evaluated_on_what_is_not_there(folder: Path, outlast: Run) -> None:
    (folder / "one.txt").write_text("one document of a few words\n")
    assert outlast("init", "--text", "one.txt", "--out", "one.toml").code == 0
    text = Path("one.toml").read_text(encoding="utf-8")
    assert "validation_fraction = 0.0" in text
    assert "evaluation_interval_steps" not in text
