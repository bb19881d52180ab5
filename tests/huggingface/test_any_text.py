"""Any text, one set of ids: ``prepare``'s, the exported folder's in transformers, those of ``fill-mask``.

Texts are drawn from all characters and from what tokenizers stumble over: names of special tokens, spaces,
marks, characters that the vocabulary lacks. With names of special tokens in a text, the folder gives our ids
where it looks for none (``split_special_tokens=True``).
"""

import inspect
import json
import random
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from outlast.config import build
from outlast.huggingface.tokenizer_files import write_tokenizer_files
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.sentencepiece_model import parse_model
from outlast.tokenizer.train import train_tokenizer

KINDS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "unigram of few letters": {"character_coverage": 0.98},
    "unigram with bytes": {"keep_whitespace": True},
    "unigram with bytes, few letters": {"keep_whitespace": True, "character_coverage": 0.98},
    "bpe": {"kind": "bpe"},
    "bpe of few letters": {"kind": "bpe", "character_coverage": 0.98},
    "bpe with bytes": {"keep_whitespace": True, "kind": "bpe"},
    "bpe with symbols": {"kind": "bpe", "user_defined_symbols": ("_NEW_",)},
    "unigram by tokenizers": {"library": "tokenizers"},
    "bpe by tokenizers": {"library": "tokenizers", "kind": "bpe"},
    "byte level": {"library": "tokenizers", "kind": "bpe", "byte_level": True},
    "wordpiece": {"library": "tokenizers", "kind": "wordpiece", "lowercase": True},
}
NAMES = ("<unk>", "<pad>", "[CLS]", "[SEP]", "[MASK]", "[X]")
TEXT = (
    "The mask of the cat [sic] is <b>, unknown CLS, x[0] and on: MASK, pad.\n国境の長いトンネルを抜ける。\n"
    "Schnell <unk> [MASK] x > y, [SEP] and [CLS]; <pad> as [X] _NEW_ 0 1 2 3 4 5 6 7 8 9\n"
) * 40
SOURCES = [inspect.getsource(module) for module in (json, json.decoder, random)]
PARTS = (*NAMES, "_NEW_", "<unk", "nk>", "[CLS", "MASK]", "<", "]", "▁", "a", " ", "\n", "Ж", "。", "cat ")
NAMED_DIFFERENCE = re.compile("\ufdd0|\ufdd1")
TEXTS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@cache
def exported(folder: Path, kind: str) -> tuple[Tokenizer, Path]:
    """Train a tokenizer of a kind and export it; return it with the folder."""
    config = build(
        TokenizerConfig, {"vocab_size": 700, "control_symbols": ("[X]",), **KINDS[kind]}, where="test"
    )
    store, name = open_store(folder), kind.replace(" ", "-")
    train_tokenizer(
        config,
        lambda: iter(SOURCES if kind.endswith("letters") else [TEXT, *SOURCES]),
        store,
        name,
        report=lambda line: None,
    )
    tokenizer = load_tokenizer(store, name)
    write_tokenizer_files(tokenizer, folder / f"{name}-hf", max_length=128, type_vocab_size=2)
    return tokenizer, folder / f"{name}-hf"


def is_named_difference(tokenizer: Tokenizer, text: str, theirs: list[int]) -> bool:
    """Whether docs/design/tokenizers.md names why a sentencepiece model's file gives other ids."""
    if tokenizer.manifest.library != "sentencepiece":
        return False
    model = parse_model(tokenizer.model)
    marks = any(unicodedata.category(c)[0] == "M" for c in text) and model.charsmap
    ours = tokenizer.encode(text).tolist()
    sums = [sum(model.pieces[index].score for index in ids) for ids in (ours, theirs)]
    is_tie = tokenizer.decode(ours) == tokenizer.decode(theirs) and abs(sums[0] - sums[1]) < 1e-3
    return bool(marks) or bool(NAMED_DIFFERENCE.search(text)) or (model.kind == "unigram" and is_tie)


def check(tokenizer: Tokenizer, text: str, theirs: list[int]) -> None:
    ours = tokenizer.encode(text).tolist()
    if ours != theirs and not is_named_difference(tokenizer, text, theirs):
        pieces = [[tokenizer.piece(index) for index in ids] for ids in (ours, theirs)]
        raise AssertionError(f"{text!a}: {pieces[0]}, in the folder {pieces[1]}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_looks_for_no_special_tokens_gives_our_ids(folder: Path, kind: str) -> None:
    tokenizer, out = exported(folder, kind)
    converted = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))

    @given(TEXTS)
    def any_text(text: str) -> None:
        converted.encode_special_tokens = True
        check(tokenizer, text, converted.encode(text, add_special_tokens=False).ids)
        converted.encode_special_tokens = False  # what fill-mask reads
        if not any(name in text for name in NAMES):
            check(tokenizer, text, converted.encode(text, add_special_tokens=False).ids)

    any_text()


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
def test_transformers_gives_our_ids(folder: Path, kind: str) -> None:
    from transformers import AutoTokenizer

    tokenizer, out = exported(folder, kind)
    looking: Any = AutoTokenizer.from_pretrained(str(out))
    plain: Any = AutoTokenizer.from_pretrained(str(out), split_special_tokens=True)

    @given(TEXTS)
    def any_text(text: str) -> None:
        check(tokenizer, text, plain(text, add_special_tokens=False)["input_ids"])
        if not any(name in text for name in NAMES):
            check(tokenizer, text, looking(text, add_special_tokens=False)["input_ids"])

    any_text()
