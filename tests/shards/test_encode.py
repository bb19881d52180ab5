"""Sentences are encoded apart, and their lengths tell where each ends."""

import pytest

from outlast.corpus.sentences import split_sentences
from outlast.shards.encode import encode_documents
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.train import train_tokenizer

DOCUMENTS = ["一つ。二つ。\n\u200b\n三つ。", "", "\u200b", "終"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    store = open_store(tmp_path_factory.mktemp("tokenizer"))
    config = TokenizerConfig(vocab_size=20, kind="bpe", character_coverage=1.0)
    train_tokenizer(config, lambda: iter(DOCUMENTS), store, "t", report=lambda line: None)
    return load_tokenizer(store, "t")


def test_a_document_is_its_sentences_and_those_without_tokens_do_not_count(tokenizer: Tokenizer) -> None:
    encoded = encode_documents(tokenizer, DOCUMENTS, split_sentences)
    for document, (ids, lengths) in zip(DOCUMENTS, encoded, strict=True):
        parts = [tokenizer.encode(sentence).tolist() for sentence in split_sentences(document)]
        assert ids.tolist() == [token for part in parts for token in part]
        assert lengths is not None
        assert lengths.tolist() == [len(part) for part in parts if part]
    assert [len(ids) > 0 for ids, _ in encoded] == [True, False, False, True]
    assert [0 if lengths is None else len(lengths) for _, lengths in encoded] == [3, 0, 0, 1]


def test_whole_documents_have_no_lengths(tokenizer: Tokenizer) -> None:
    for document, (ids, lengths) in zip(DOCUMENTS, encode_documents(tokenizer, DOCUMENTS, None), strict=True):
        assert lengths is None
        assert ids.tolist() == tokenizer.encode(document).tolist()
