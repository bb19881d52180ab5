"""Sentences are encoded apart, and their lengths tell where each ends."""

import pytest

from outlast.corpus.sentences import split_sentences
from outlast.prepare.encode import encode_documents
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.train import train_tokenizer
from outlast.tokenizer.words import Segmenter, make_word_marker

DOCUMENTS = ["一つ。二つ。\n\u200b\n三つ。", "", "\u200b", "終"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    store = open_store(tmp_path_factory.mktemp("tokenizer"))
    config = TokenizerConfig(vocab_size=20, kind="bpe", character_coverage=1.0)
    train_tokenizer(config, lambda: iter(DOCUMENTS), store, "t", report=lambda line: None)
    return load_tokenizer(store, "t")


def test_a_document_is_its_sentences_and_those_without_tokens_do_not_count(tokenizer: Tokenizer) -> None:
    encoded = encode_documents(tokenizer, DOCUMENTS, split_sentences)
    for document, (ids, lengths, words) in zip(DOCUMENTS, encoded, strict=True):
        assert words is None
        parts = [tokenizer.encode(sentence).tolist() for sentence in split_sentences(document)]
        assert ids.tolist() == [token for part in parts for token in part]
        assert lengths is not None
        assert lengths.tolist() == [len(part) for part in parts if part]
    assert [len(ids) > 0 for ids, *_ in encoded] == [True, False, False, True]
    assert [0 if lengths is None else len(lengths) for _, lengths, _ in encoded] == [3, 0, 0, 1]


def test_whole_documents_have_no_lengths(tokenizer: Tokenizer) -> None:
    encoded = encode_documents(tokenizer, DOCUMENTS, None)
    for document, (ids, lengths, _) in zip(DOCUMENTS, encoded, strict=True):
        assert lengths is None
        assert ids.tolist() == tokenizer.encode(document).tolist()


def test_words_are_marked_in_whole_documents_and_in_sentences(tokenizer: Tokenizer) -> None:
    words = make_word_marker(
        tokenizer, Segmenter(name="two", word_starts=lambda text: range(0, len(text), 2))
    )
    for split in (None, split_sentences):
        encoded = encode_documents(tokenizer, DOCUMENTS, split, words)
        plain = encode_documents(tokenizer, DOCUMENTS, split)
        for document, found, expected in zip(DOCUMENTS, encoded, plain, strict=True):
            assert found.ids.tolist() == expected.ids.tolist()
            if split is None:
                assert found.sentence_lengths is None
            else:
                assert found.sentence_lengths is not None
                assert expected.sentence_lengths is not None
                assert found.sentence_lengths.tolist() == expected.sentence_lengths.tolist()
            texts = [document] if split is None else split(document)
            assert found.word_starts is not None
            assert found.word_starts.tolist() == words.mark(texts).word_starts.tolist()
