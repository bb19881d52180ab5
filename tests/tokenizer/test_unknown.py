"""What a vocabulary does not know is counted exactly, and the names of control pieces in text are text."""

from typing import Any

import pytest

from outlast.config import build
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.train import train_tokenizer
from outlast.tokenizer.unknown import UnknownCounter, UnknownTally, add_tallies

KINDS: list[dict[str, Any]] = [
    {},
    {"kind": "bpe"},
    {"library": "tokenizers"},
    {"library": "tokenizers", "kind": "bpe"},
    {"library": "tokenizers", "kind": "bpe", "byte_level": True},
    {"library": "tokenizers", "kind": "wordpiece"},
]


def trained(documents: list[str], folder: str, options: dict[str, Any]) -> Tokenizer:
    config = build(TokenizerConfig, {"vocab_size": 700, **options}, where="test")
    store = open_store(folder)
    train_tokenizer(config, lambda: iter(documents), store, "t", report=lambda line: None)
    return load_tokenizer(store, "t")


def tally_of(tokenizer: Tokenizer, texts: list[str]) -> UnknownTally:
    counter = UnknownCounter(tokenizer)
    counter.add(texts, [text.encode() for text in texts], tokenizer.encode_batch(texts))
    return counter.tally()


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_the_characters_of_control_names_in_a_corpus_have_pieces(
    source_documents: list[str], folder: str, options: dict[str, Any]
) -> None:
    """As in WikiText, where rare words are written "<unk>"."""
    documents = [text.translate({ord(c): None for c in "<>"}) for text in source_documents]
    tokenizer = trained([*documents, "The <unk> met a <unk>. [MASK] " * 200], folder, options)
    ids = tokenizer.encode("The <unk> met <unk>").tolist()
    assert not set(ids) & set(tokenizer.manifest.special_ids.values())
    assert tally_of(tokenizer, ["The <unk> met <unk>", "[MASK]"]).control_names == {"<unk>": 2, "[MASK]": 1}


@pytest.mark.parametrize("options", [kind for kind in KINDS if not kind.get("byte_level")], ids=str)
def test_unknown_pieces_and_the_characters_behind_them(
    source_documents: list[str], folder: str, options: dict[str, Any]
) -> None:
    tokenizer = trained(source_documents, folder, options)
    texts = ["def ЖЖ return Щ", "class ", "x Ж y", ""]
    found = tally_of(tokenizer, texts)
    unknown = tokenizer.manifest.special_ids["unk"]
    encoded = [ids.tolist() for ids in tokenizer.encode_batch(texts)]
    assert found.unknown == sum(ids.count(unknown) for ids in encoded) == 3
    assert found.tokens == sum(map(len, encoded))
    assert found.characters == {"Ж": 3, "Щ": 1}
    assert found.share == 3 / found.tokens
    both = add_tallies([found, found, UnknownTally()])
    assert (both.unknown, both.tokens, both.characters) == (6, 2 * found.tokens, {"Ж": 6, "Щ": 2})


def test_bytes_leave_nothing_unknown(source_documents: list[str], folder: str) -> None:
    tokenizer = trained(
        source_documents, folder, {"library": "tokenizers", "kind": "bpe", "byte_level": True}
    )
    found = tally_of(tokenizer, ["Ж <unk>"])
    assert (found.unknown, found.share, found.characters) == (0, 0.0, {})
    assert UnknownTally().share == 0.0
