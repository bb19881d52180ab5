"""A pipe or a device in the place of a file is refused by every verb that reads one; nothing hangs."""

import json
import os
import shutil
from pathlib import Path

import pytest

from support.command import RECIPE
from support.command_line import DATA, Run, settings
from support.images import jpeg

WORDS = "a pipe or a device"


@pytest.fixture(params=["pipe", "device"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "device":
        return "/dev/zero"
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def test_a_recipe(outlast: Run, odd: str) -> None:
    outlast("recipe", "show", odd).refused(2, WORDS)


def test_a_tar(outlast: Run, odd: str, tmp_path: Path) -> None:
    outlast("shards", "import", odd, "--out", tmp_path / "out", "--processes", "1").refused(1, WORDS)


def test_a_tokenizer(outlast: Run, odd: str, tmp_path: Path) -> None:
    outlast("tokenizer", "import", odd, "--out", tmp_path / "out").refused(1, WORDS)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "vocab.txt").write_text("[UNK]\n")
    (folder / "tokenizer_config.json").symlink_to(odd)
    outlast("tokenizer", "import", folder, "--out", tmp_path / "out").refused(1, WORDS)


def test_a_file_of_a_corpus(outlast: Run, odd: str, tmp_path: Path) -> None:
    options = settings(*DATA[2:], f"corpus.path={odd}")
    outlast("prepare", RECIPE, "--out", tmp_path / "out", *options).refused(1, odd)


def test_a_list_of_pictures(outlast: Run, odd: str, tmp_path: Path) -> None:
    (tmp_path / "list.csv").symlink_to(odd)
    outlast("shards", "images", tmp_path / "list.csv", "--out", tmp_path / "out").refused(1, "list.csv")


def test_a_picture(outlast: Run, odd: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.jpg").symlink_to(odd)
    (tmp_path / "a" / "1.jpg").write_bytes(jpeg(0))
    outcome = outlast("shards", "images", tmp_path, "--out", tmp_path / "out", "--processes", "1")
    assert outcome.code in (0, 1)


def test_a_shard(outlast: Run, odd: str, data: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(data, tmp_path / "data"))
    shard = next(folder.glob("train-*.safetensors"))
    shard.unlink()
    shard.symlink_to(odd)
    outcome = outlast("shards", "verify", folder / "manifest.json")
    assert outcome.code == 1
    assert shard.name in outcome.out + outcome.err


def test_a_run(outlast: Run, odd: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").symlink_to(odd)
    outcome = outlast("evaluate", tmp_path)
    assert outcome.code in (1, 2)
    assert "unexpected" not in outcome.err


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model(outlast: Run, odd: str, model: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(model, tmp_path / "model"))
    (folder / name).unlink()
    (folder / name).symlink_to(odd)
    outlast("import", folder, tmp_path / "run").refused(1, WORDS)
    outlast("fill-mask", folder, "a [MASK]").refused(1, WORDS)


def test_a_list_of_record_files(outlast: Run, odd: str, data: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").symlink_to(odd)
    outlast(
        *("shards", "import-tfrecord", tmp_path / "manifest.json", "--tokenizer", data / "tokenizer"),
        *("--out", tmp_path / "out"),
    ).refused(1, WORDS)
    assert json.loads((data / "manifest.json").read_text())
