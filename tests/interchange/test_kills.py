"""Exports and imports killed with SIGKILL: what shows is whole, and the same line again ends the same."""

import shutil
from pathlib import Path

import pytest

from outlast.storage import LocalStore
from support.command import Command, kill_when
from support.datasets import VOCAB_SIZE, write_counting_data
from support.records import write_tokenizer_folder

OPTIONS = ("--features", "bert", "--sequence-length", "16", "--records-per-shard", "20", "--processes", "2")
MOMENTS = [1, 9, *(pytest.param(number, marks=pytest.mark.long) for number in range(2, 60, 3))]
"""How many files are in place when the kill comes."""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def exported(command: Command, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data set, and an export that nobody disturbed."""
    folder = tmp_path_factory.mktemp("export")
    write_counting_data(LocalStore(folder / "data"), [[2000, 1000], [4000], [9000, 500]])
    command.run(
        "shards", "export-tfrecord", folder / "data" / "manifest.json", "--out", folder / "whole", *OPTIONS
    )
    return folder / "data" / "manifest.json", folder / "whole"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_export_ends_with_the_same_bytes(
    command: Command, exported: tuple[Path, Path], tmp_path: Path, moment: int
) -> None:
    manifest, whole = exported
    expected, out = contents(whole), tmp_path / "out"
    line = ("shards", "export-tfrecord", manifest, "--out", out, *OPTIONS)

    def reached() -> bool:
        return len(list(out.glob("dataset-*"))) >= moment

    assert kill_when(command.start(*line), reached), "the export ended before the kill"
    assert not (out / "manifest.json").exists()
    for path in out.glob("dataset-*"):
        assert path.read_bytes() == expected[path.name], "a file that shows is whole"
    command.run(*line)
    assert contents(out) == expected


def test_a_killed_import_ends_with_the_same_bytes(
    command: Command, exported: tuple[Path, Path], tmp_path: Path
) -> None:
    tokenizer = write_tokenizer_folder(tmp_path / "tokenizer", VOCAB_SIZE)
    files = sorted(exported[1].glob("dataset-*"))
    line = ("shards", "import-tfrecord", *files, "--tokenizer", tokenizer, "--processes", "2", "--out")
    command.run(*line, tmp_path / "whole")
    out = tmp_path / "out"
    assert kill_when(command.start(*line, out), lambda: len(list(out.glob("train-*"))) >= 5), (
        "the import ended before the kill"
    )
    assert not (out / "manifest.json").exists()
    command.run(*line, out)
    assert contents(out) == contents(tmp_path / "whole")
    shutil.rmtree(out)
