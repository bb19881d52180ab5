"""Training: symbols (R5), reproducible bytes, the memory ceiling (R72), and errors that name the way out."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.config import build
from outlast.errors import TokenizerError
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.train import estimate_memory_bytes, train_tokenizer

KINDS: list[dict[str, Any]] = [
    {},
    {"kind": "bpe"},
    {"keep_whitespace": True},
    {"keep_whitespace": True, "kind": "bpe"},
    {"library": "tokenizers"},
    {"library": "tokenizers", "kind": "bpe"},
    {"library": "tokenizers", "kind": "bpe", "byte_level": True},
    {"library": "tokenizers", "kind": "wordpiece", "lowercase": True},
]
NAMES = [" ".join(str(value) for value in kind.values()) or "default" for kind in KINDS]


def train(documents: list[str], folder: str, **options: Any) -> Tokenizer:
    config = build(TokenizerConfig, {"vocab_size": 700, **options}, where="test")
    store = open_store(folder)
    train_tokenizer(config, lambda: iter(documents), store, "tokenizer", report=lambda line: None)
    return load_tokenizer(store, "tokenizer")


@pytest.mark.parametrize("options", KINDS, ids=NAMES)
def test_symbols_and_special_ids(source_documents: list[str], folder: str, options: dict[str, Any]) -> None:
    # The text holds the symbols, so that a trainer which learns their surfaces is found out.
    documents = [*source_documents, "x [CLS] [X] <unk> [MASK] <pad> _NEW_ y " * 300]
    symbols = {"control_symbols": ("[X]",), "user_defined_symbols": ("_NEW_",)}
    tokenizer = train(documents, folder, **options, **symbols)
    assert tokenizer.manifest.special_ids == {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert tokenizer.pieces[:7] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "[X]", "_NEW_"]
    assert len(tokenizer.pieces) == tokenizer.manifest.vocab_size == 700
    for text in ("[CLS]", "a[CLS]b [MASK]", "<pad><unk>[SEP]", "[X] x[X]", "[cls] ［ＣＬＳ］"):
        assert not set(tokenizer.encode(text).tolist()) & {0, 2, 3, 4, 5}, text
    ids = tokenizer.encode("def_NEW_return _NEW__NEW_").tolist()
    assert ids.count(6) == 3


@pytest.mark.parametrize("options", [kind for kind in KINDS if kind != {"library": "tokenizers"}])
def test_training_gives_the_same_bytes_in_another_process(
    source_documents: list[str], tmp_path: Path, options: dict[str, Any]
) -> None:
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps(source_documents))
    program = (
        "import json, sys\n"
        "from outlast.storage import open_store\n"
        "from outlast.tokenizer.config import TokenizerConfig\n"
        "from outlast.tokenizer.train import train_tokenizer\n"
        "folder, options = sys.argv[1], json.loads(sys.argv[2])\n"
        "documents = json.load(open(folder + '/corpus.json'))[::-1]\n"
        "config = TokenizerConfig(vocab_size=700, **options)\n"
        "store = open_store(folder)\n"
        "train_tokenizer(config, lambda: iter(documents), store, 'other', report=lambda line: None)\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    arguments = [sys.executable, "-c", program, str(tmp_path), json.dumps(options)]
    subprocess.run(arguments, check=True, env=environment, capture_output=True)
    here = train(source_documents, str(tmp_path), **options)
    there = load_tokenizer(open_store(tmp_path), "other")
    assert there.manifest.fingerprint == here.manifest.fingerprint


def test_kept_whitespace_gives_the_text_back(source_documents: list[str], folder: str) -> None:
    tokenizer = train(source_documents, folder, keep_whitespace=True)
    odd = ["", " ", "\n\n\t  x \n", "a\x00b", "\r\n", "é😀 \u3000", "if x:\n\treturn  1  "]
    for text in [*source_documents, *odd]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert "▁▁▁▁" in tokenizer.pieces


def test_byte_level_gives_the_text_back(source_documents: list[str], folder: str) -> None:
    tokenizer = train(source_documents, folder, library="tokenizers", kind="bpe", byte_level=True)
    for text in [*source_documents, "\n\n\t  x \n", "é😀 \u3000▁"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_wordpiece_parts_every_chinese_character(source_documents: list[str], folder: str) -> None:
    tokenizer = train(
        source_documents, folder, library="tokenizers", kind="wordpiece", character_coverage=1.0
    )
    pieces = [tokenizer.piece(index) for index in tokenizer.encode("名前無記憶").tolist()]
    assert pieces == ["名", "前", "無", "記", "憶"]


@pytest.mark.parametrize("library", ["sentencepiece", "tokenizers"])
def test_rare_characters_are_unknown_and_never_padding(
    source_documents: list[str], folder: str, library: str
) -> None:
    tokenizer = train([*source_documents, "鬱"], folder, library=library, kind="bpe", character_coverage=0.98)
    ids = tokenizer.encode("鬱").tolist()
    assert tokenizer.manifest.special_ids["unk"] in ids
    assert tokenizer.manifest.special_ids["pad"] not in ids


def test_a_long_line_is_trained_on_in_pieces(folder: str) -> None:
    tokenizer = train(["tick tock " * 5000 + "zebra " * 5000], folder, vocab_size=20, max_sentence_length=64)
    assert tokenizer.decode(tokenizer.encode("tick zebra")) == "tick zebra"


@pytest.mark.parametrize("documents", [[], ["", ""]])
def test_an_empty_corpus_is_an_error(documents: list[str], folder: str) -> None:
    with pytest.raises(TokenizerError, match=f"no text to train a tokenizer on: {len(documents)} documents"):
        train(documents, folder)
    assert not list(Path(folder).iterdir())


@pytest.mark.parametrize("options", [{}, {"kind": "bpe"}, {"library": "tokenizers", "kind": "bpe"}], ids=str)
def test_too_large_a_vocabulary_names_one_that_works(folder: str, options: dict[str, Any]) -> None:
    documents = ["one two three two one", "three one two"]
    with pytest.raises(TokenizerError, match="gives no vocabulary of 700 pieces") as caught:
        train(documents, folder, **options)
    assert caught.value.expected
    largest = int(caught.value.expected.split()[-1])
    assert len(train(documents, folder, **{**options, "vocab_size": largest}).pieces) == largest


@pytest.mark.parametrize("library", ["sentencepiece", "tokenizers"])
def test_too_small_a_vocabulary_names_one_that_works(
    source_documents: list[str], folder: str, library: str
) -> None:
    options = {"library": library, "kind": "bpe"}
    with pytest.raises(TokenizerError, match="smaller than the text's characters") as caught:
        train(source_documents, folder, vocab_size=30, **options)
    assert caught.value.expected
    smallest = int(caught.value.expected.split()[-1])
    assert len(train(source_documents, folder, **options, vocab_size=smallest).pieces) == smallest


def test_the_estimate_is_of_the_text_there_is_and_holds_it_under_the_ceiling(
    source_documents: list[str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TokenizerConfig(vocab_size=400, memory_limit_bytes=2**28, sample_bytes=2**40)
    lines: list[str] = []

    def documents() -> Any:
        return iter(source_documents)

    store = open_store(folder)
    train_tokenizer(config, documents, store, "tokenizer", report=lines.append)
    megabytes = sum(len(document.encode()) for document in source_documents) / 2**20
    assert f"{megabytes:.1f} MiB of {megabytes:.1f} MiB of text, peak memory at most about 10" in lines[0]
    assert "to stay under" not in lines[0]
    assert estimate_memory_bytes(config, 5 * 2**20) < 2**28 < estimate_memory_bytes(config, 6 * 2**20)
    monkeypatch.setattr("outlast.tokenizer.train._MEMORY_FACTORS", {("sentencepiece", "unigram"): 2000.0})
    train_tokenizer(config, documents, store, "small", report=lines.append)
    assert re.search(r"peak memory at most about 2[45]\d\.\d MiB .* to stay under 256\.0 MiB", lines[2])
