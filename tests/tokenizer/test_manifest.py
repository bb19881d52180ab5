"""The tokenizer's manifest: what it says, and what each kind of damage is called."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import TokenizerError
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import load_tokenizer
from outlast.tokenizer.manifest import TokenizerManifest, read_tokenizer_manifest
from outlast.tokenizer.train import train_tokenizer

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def trained(source_documents: list[str], tmp_path: Path) -> Path:
    config = TokenizerConfig(vocab_size=700, kind="bpe")
    train_tokenizer(
        config, lambda: iter(source_documents), open_store(tmp_path), "t", report=lambda line: None
    )
    return tmp_path


def read(folder: Path) -> TokenizerManifest:
    return read_tokenizer_manifest(open_store(folder), "t")


def test_reads_back_what_was_written(trained: Path) -> None:
    manifest = read(trained)
    document = json.loads((trained / "t/manifest.json").read_text())
    assert document["fingerprint"] == manifest.fingerprint
    assert manifest.vocab_size == 700
    assert manifest.training["config"]["kind"] == "bpe"
    assert list(manifest.files) == ["tokenizer.model"]


def test_the_training_record_is_no_part_of_the_fingerprint(trained: Path) -> None:
    path = trained / "t/manifest.json"
    before = read(trained).fingerprint
    document = json.loads(path.read_text())
    document["training"] = {"note": "moved"}
    write_as_before(path, document)
    assert read(trained).fingerprint == before


def write_as_before(path: Path, document: dict[str, Any]) -> None:
    """Write a manifest without a digest, as the first version did; of another version as it says."""
    document.pop("sha256")
    version = 1 if document["version"] == 2 else document["version"]
    path.write_text(json.dumps({**document, "version": version}))


def test_any_changed_byte_of_the_manifest(trained: Path) -> None:
    """What the fingerprint does not cover, too."""
    path = trained / "t/manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"sentencepiece": "0', '"sentencepiece": "1'))
    assert path.read_text() != text
    with pytest.raises(TokenizerError, match="does not match the sha256 it carries"):
        read(trained)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="There is no tokenizer here"):
        read(tmp_path)


def test_a_missing_file(trained: Path) -> None:
    (trained / "t/tokenizer.model").unlink()
    with pytest.raises(TokenizerError, match=r"file tokenizer\.model is missing"):
        load_tokenizer(open_store(trained), "t")


def test_a_changed_file(trained: Path) -> None:
    path = trained / "t/tokenizer.model"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"file tokenizer\.model was changed") as caught:
        load_tokenizer(open_store(trained), "t")
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda document: document["special_ids"].update(pad=1), "fingerprint .* does not match"),
        (lambda document: document.update(vocab_size="many"), "vocab_size is wrong"),
        (lambda document: document.update(version=3), "has version 3"),
        (lambda document: document.update(format="else"), "no tokenizer's manifest"),
        (lambda document: document.pop("files"), "files is wrong"),
    ],
)
def test_an_edited_manifest(trained: Path, edit: Edit, message: str) -> None:
    path = trained / "t/manifest.json"
    document = json.loads(path.read_text())
    edit(document)
    write_as_before(path, document)
    with pytest.raises(TokenizerError, match=message):
        read(trained)


def test_not_json(trained: Path) -> None:
    (trained / "t/manifest.json").write_bytes(b'{"format": ')
    with pytest.raises(TokenizerError, match="not JSON"):
        read(trained)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"pad": 1}, "pad and unk share the id 1"),
        ({"mask": 700}, "mask, 700, is outside the vocabulary"),
        ({"eos": 9}, "special ids are"),
    ],
)
def test_special_ids_that_cannot_be(trained: Path, ids: dict[str, int], message: str) -> None:
    path = trained / "t/manifest.json"
    document = json.loads(path.read_text())
    document["special_ids"].update(ids)
    fields = {
        key: value
        for key, value in document.items()
        if key not in ("format", "version", "fingerprint", "sha256")
    }
    document["fingerprint"] = TokenizerManifest(**fields).fingerprint
    write_as_before(path, document)
    with pytest.raises(TokenizerError, match=message):
        read(trained)
