"""fastokens gives the ids of tokenizers, for all text; where it might not, it is not used."""

import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import TokenizerError
from outlast.storage import LocalStore
from outlast.tokenizer import fast_bpe
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import TokenizersTokenizer, load_tokenizer
from outlast.tokenizer.train import train_tokenizer

pytest.importorskip("fastokens")

_CORPORA = ("text-*/*", "cls-*/*", "jglue/*", "awkward/text/*")
_TOGETHER = 64


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, source_documents: list[str]) -> TokenizersTokenizer:
    store = LocalStore(tmp_path_factory.mktemp("tokenizer"))
    config = TokenizerConfig(library="tokenizers", kind="bpe", byte_level=True, vocab_size=1500)
    train_tokenizer(config, lambda: iter(source_documents), store, "t", report=lambda line: None)
    found = load_tokenizer(store, "t")
    assert isinstance(found, TokenizersTokenizer)
    assert found.is_fast
    return found


def check(tokenizer: TokenizersTokenizer, texts: list[str]) -> None:
    for text, ids, expected in zip(
        texts, tokenizer.encode_batch(texts), tokenizer.encode_by_tokenizers(texts), strict=True
    ):
        assert ids.tolist() == expected.tolist(), ascii(text[:1000])


@pytest.mark.parametrize(
    "uniform_step", [16, pytest.param(1, marks=pytest.mark.long)], ids=["some of alike", "all"]
)
def test_every_character_alone_and_between_others(tokenizer: TokenizersTokenizer, uniform_step: int) -> None:
    """Of long stretches of one kind (ideographs, Hangul, private, unassigned) every 16th; all with --long."""
    codes = [*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE0200)]
    kinds = [unicodedata.category(chr(code)) for code in codes]
    alike = [set(kinds[max(0, at - 64) : at + 64]) == {kind} for at, kind in enumerate(kinds)]
    characters = [
        chr(code)
        for code, among_alike in zip(codes, alike, strict=True)
        if not among_alike or code % uniform_step == 0
    ]
    assert len(characters) > 10_000
    texts = [f"{one} a{one}b{one}{one} 日{one} 1{one} {one}" for one in characters]
    check(tokenizer, ["\n".join(texts[begin : begin + 256]) for begin in range(0, len(texts), 256)])


@given(st.lists(st.text() | st.text("ab'sr \t\n1５é日。[CLS]<pad>\u3000\u200d"), max_size=5))
def test_any_text(tokenizer: TokenizersTokenizer, texts: list[str]) -> None:
    check(tokenizer, texts)


@pytest.mark.long
def test_all_the_real_text_there_is(tokenizer: TokenizersTokenizer, test_data: Path) -> None:
    files = sorted(path for pattern in _CORPORA for path in test_data.glob(pattern))
    files += sorted(test_data.glob("text-ja-aozora-sjis/*/*"))
    assert len(files) > 300

    def texts() -> Iterator[str]:
        for path in files:
            if path.is_file():
                for encoding in ("utf-8", "cp932"):
                    text = path.read_bytes().decode(encoding, "replace")
                    yield from (text[begin : begin + 5000] for begin in range(0, len(text), 5000))

    batch: list[str] = []
    for text in texts():
        batch.append(text)
        if len(batch) == _TOGETHER:
            check(tokenizer, batch)
            batch = []
    check(tokenizer, batch)


def test_long_runs_and_words(tokenizer: TokenizersTokenizer) -> None:
    rng = random.Random(0)
    check(tokenizer, [" " * 100_000, "a" * 100_000, "日" * 50_000, "\n \t" * 30_000])
    check(tokenizer, ["".join(rng.choices("etaoin shrdlu'", k=20_000)), "ab" * 50_000])


def test_half_a_surrogate_pair_is_told(tokenizer: TokenizersTokenizer) -> None:
    with pytest.raises(TokenizerError, match="half of a surrogate pair"):
        tokenizer.encode_batch(["fine", "a\ud83d"])


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("model", {"ignore_merges": True}),
        ("model", {"dropout": 0.1}),
        ("model", {"byte_fallback": True}),
        ("model", {"type": "WordPiece"}),
        ("pre_tokenizer", {"add_prefix_space": True}),
        ("pre_tokenizer", {"use_regex": False}),
        ("pre_tokenizer", {"type": "Metaspace"}),
    ],
)
def test_other_kinds_are_left_to_tokenizers(
    tokenizer: TokenizersTokenizer, part: str, change: dict[str, Any]
) -> None:
    data = json.loads(tokenizer.model)
    data[part] |= change
    assert fast_bpe.fast_encoder(json.dumps(data).encode(), tokenizer.encode_by_tokenizers) is None


def test_other_ids_are_noticed_when_a_tokenizer_is_loaded(tokenizer: TokenizersTokenizer) -> None:
    data = json.loads(tokenizer.model)
    data["model"]["merges"] = data["model"]["merges"][::-1]
    changed = json.dumps(data).encode()
    assert fast_bpe.fast_encoder(changed, tokenizer.encode_by_tokenizers) is None
    assert fast_bpe.fast_encoder(tokenizer.model, tokenizer.encode_by_tokenizers) is not None
