"""An export is read as it was written, or refused; a folder from elsewhere is read as it is."""

import json
from pathlib import Path

import pytest

from outlast.errors import OutlastError
from outlast.huggingface.digests import (
    changed_files,
    check_tokenizer,
    checking,
    read_digests,
    write_provenance,
)
from outlast.storage import LocalStore

_REFUSED = r"sha256|is not JSON|is no description of the export|has version|edited or damaged"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (tmp_path / name).write_text(f"this is {name}")
    write_provenance(tmp_path, {"provenance": {"step": 3}})
    return tmp_path


def test_what_is_whole_is_read(folder: Path) -> None:
    with checking(folder):
        pass
    (folder / "README.md").write_text("its licence is ...")
    (folder / "notes.txt").write_text("mine")
    (folder / "tokenizer.json").unlink()
    with checking(folder):  # who needs it says that it is missing
        pass


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "outlast.json"])
def test_a_changed_byte_of_any_file_is_refused_with_the_way_out(folder: Path, name: str) -> None:
    whole = (folder / name).read_bytes()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(changed)
        with (
            pytest.raises(OutlastError, match=r"sha256|is not JSON|is no description|has version") as caught,
            checking(folder),
        ):
            pass
        assert caught.value.where == str(folder / name)
        assert "delete outlast.json" in (caught.value.remedy or "")
    with pytest.raises(OutlastError):
        check_tokenizer(folder / "tokenizer.json")
    (folder / "outlast.json").unlink()
    with checking(folder):
        pass


def test_the_digest_explains_what_the_reader_stumbled_over(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(OutlastError, match=r"config.json has another sha256"), checking(folder):
        json.loads((folder / "config.json").read_text())
    with pytest.raises(KeyError), checking(folder, but=("config.json",)):
        raise KeyError


def test_an_export_of_before_has_digests_without_a_seal(folder: Path) -> None:
    store = LocalStore(folder)
    digests = read_digests(store)
    former = {"format": "outlast-export", "version": 1, "sha256": {**digests, "README.md": "0" * 64}}
    (folder / "outlast.json").write_text(json.dumps(former))
    assert read_digests(store) == digests
    (folder / "config.json").write_text("{}")
    assert changed_files(store, digests) == ["config.json"]


@pytest.mark.parametrize(
    "document",
    [
        {"version": 1, "sha256": {}},
        {"format": "outlast-export", "version": 1, "sha256": {"../config.json": "0" * 64}},
        {"format": "outlast-export", "version": 3, "files": {}},
        {"format": "outlast-export", "version": 1, "sha256": "0" * 64},
        [],
    ],
)
def test_digests_of_another_kind_are_refused(tmp_path: Path, document: object) -> None:
    (tmp_path / "outlast.json").write_text(json.dumps(document))
    with pytest.raises(OutlastError, match=_REFUSED):
        read_digests(LocalStore(tmp_path))
