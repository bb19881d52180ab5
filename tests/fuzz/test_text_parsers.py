"""Recipes, tokenizers and raw text from anybody: read, or refused by a typed error, in bounded memory."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.config import apply_overrides, read_toml
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.errors import CorpusError, OutlastError
from outlast.recipe import make_recipe, read_recipe
from outlast.tokenizer.manifest import TokenizerManifest, parse_tokenizer_manifest
from outlast.tokenizer.sentencepiece_model import parse_model
from support.hostile import (
    HOSTILE_VALUES,
    NOISE,
    accepts_or_refuses,
    bounded_memory,
    damaged,
    damaged_bytes,
    to_json,
)

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))
FOLDER: dict[str, Path] = {}


@pytest.fixture(autouse=True, scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDER["files"] = tmp_path_factory.mktemp("files")


def put(name: str, content: bytes) -> Path:
    path = FOLDER["files"] / name
    path.write_bytes(content)
    return path


# Tokenizers.

TOKENIZER: dict[str, Any] = {
    "format": "outlast-tokenizer",
    "version": 1,
    "fingerprint": "",
    "kind": "bpe",
    "library": "tokenizers",
    "vocab_size": 100,
    "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
    "special_pieces": {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    "files": {"tokenizer.json": "0" * 64},
    "training": {"versions": {"tokenizers": "1"}},
}


def with_fingerprint(document: dict[str, Any]) -> bytes:
    """Return a manifest whose fingerprint fits, where its fields make one."""
    fields = {
        key: value for key, value in document.items() if key not in ("format", "version", "fingerprint")
    }
    try:
        return to_json({**document, "fingerprint": TokenizerManifest(**fields).fingerprint})
    except (TypeError, ValueError, RecursionError):
        return to_json(document)


@given(damaged(TOKENIZER).map(with_fingerprint) | damaged_bytes(to_json(TOKENIZER)) | NOISE)
def test_any_tokenizer_manifest(content: bytes) -> None:
    accepts_or_refuses(lambda: parse_tokenizer_manifest(content, where="t"))


@pytest.fixture(scope="module")
def model() -> bytes:
    path = FOLDER["files"] / "small"
    text = FOLDER["files"] / "text"
    text.write_text("\n".join(f"the {word} of words and more words" for word in range(200)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(path), vocab_size=40, minloglevel=2
    )
    return path.with_suffix(".model").read_bytes()


@given(st.data())
def test_any_sentencepiece_model(model: bytes, data: st.DataObject) -> None:
    content = data.draw(damaged_bytes(model) | NOISE)
    accepts_or_refuses(lambda: parse_model(content))


@given(st.binary(max_size=40))
@example(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
@example(b"\x12\x02\x18\x63")
@example(b"\x0a\x02\x08\x01")
@example(b"\x1a\x02\x08\x05")
@example(b"\x1a\x02\x10\x05")
@example(b"\x0a\x03\x0a\x01a\x12\x05\x1a\x03abc")
def test_any_wire_bytes_behind_a_piece(content: bytes) -> None:
    accepts_or_refuses(lambda: parse_model(b"\x0a\x03\x0a\x01a" + content))


# Recipes.

TOML = "\n\n".join(path.read_text() for path in RECIPES[:1])


@given(damaged_bytes(TOML.encode()) | NOISE)
@example(b"a = " + b"[" * 5000)
@example(b"a." * 2000 + b"b = 1")
@example(b"[" + b"a." * 3000 + b"a]")
@example(b"x = 1" + b"0" * 10_000)
def test_any_toml(content: bytes) -> None:
    accepts_or_refuses(lambda: read_recipe(put("recipe.toml", content)))


@given(damaged(read_toml(RECIPES[0])))
def test_recipes_with_something_wrong(document: dict[str, Any]) -> None:
    accepts_or_refuses(lambda: make_recipe(document, where="r"))


@given(
    st.text(max_size=60) | st.sampled_from([repr(value) for value in HOSTILE_VALUES]), st.text(max_size=20)
)
def test_any_override(value: str, key: str) -> None:
    for override in (f"training.seed={value}", f"{key}.seed=1", f"corpus.{key}={value}", value):
        accepts_or_refuses(lambda override=override: make_recipe(apply_overrides({}, [override]), where="r"))


# Raw text.


def read_all(path: Path, **options: Any) -> list[str]:
    """Return the documents of a corpus, as the package reads them: listed, cut into portions, read."""
    config = CorpusConfig(path=str(path), **options)
    portions = plan_portions(list_corpus(config), 3)
    return [document for portion in portions for document in read_documents(config, portion, Tally())]


LINES = b'{"text": "one"}\n{"text": "two \\ud83d\\ude00", "n": 1}\n'


@settings(max_examples=150)
@given(damaged_bytes(LINES) | NOISE | damaged({"text": "a", "b": [1, {"c": None}]}).map(to_json))
@example(b'{"text": "\\ud800"}')
@example(b'{"text": ' + b"1" * 5000 + b"}")
@example(b'{"text": "a", "n": 1e999}')
def test_any_json_lines(content: bytes) -> None:
    path = put("lines.jsonl", content)
    found = accepts_or_refuses(lambda: read_all(path, format="jsonl", max_document_bytes=10**6))
    for document in found or ():
        document.encode()


@settings(max_examples=150)
@given(
    st.sampled_from([".gz", ".zst"]),
    st.sampled_from(["text", "jsonl"]),
    st.data(),
)
def test_any_compressed_corpus(suffix: str, kind: str, data: st.DataObject) -> None:
    sound = gzip.compress(LINES * 50) if suffix == ".gz" else zstandard.compress(LINES * 50)
    path = put(f"lines{suffix}", data.draw(damaged_bytes(sound) | NOISE))
    accepts_or_refuses(lambda: read_all(path, format=kind), limit_bytes=100 * 2**20)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_a_bomb_takes_no_memory(suffix: str, kind: str) -> None:
    """300 MB of one letter in a few hundred kilobytes: refused as too long, without unfolding it."""
    bomb = b"a" * (300 * 2**20)
    path = put(f"bomb{suffix}", gzip.compress(bomb, 1) if suffix == ".gz" else zstandard.compress(bomb))
    del bomb
    with bounded_memory(100 * 2**20), pytest.raises(CorpusError, match="longer than"):
        read_all(path, format=kind, max_document_bytes=2**20)


@pytest.mark.parametrize("undecodable", ["error", "replace"])
@pytest.mark.parametrize("encoding", ["auto", "utf-8", "shift_jis", "utf-16"])
def test_awkward_texts(test_data: Path, undecodable: str, encoding: str) -> None:
    """Every awkward file: documents that can be encoded again, or a typed error that names the file."""
    files = [path for path in sorted((test_data / "awkward" / "text").rglob("*")) if path.is_file()]
    assert files
    read = 0
    for path in files:
        try:
            with_documents = read_all(path, encoding=encoding, undecodable=undecodable)
        except OutlastError as error:
            nameless = path.name not in str(error)
            assert not nameless
            continue
        read += 1
        for document in with_documents:
            document.encode()
            assert document.strip()
    assert read >= len(files) * (encoding == "auto") // 2


def test_links_out_of_the_corpus_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "corpus" / "real.txt").write_text("plain")
    (tmp_path / "corpus" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "corpus" / "up").symlink_to(tmp_path)
    assert read_all(tmp_path / "corpus") == ["plain"]
    assert json.dumps(read_all(tmp_path / "corpus", documents="file")) == '["plain"]'
