"""Documents to ids, whole or sentence by sentence.

In: a tokenizer, documents and, where their sentences are to be kept apart, what divides them. Out: the ids of
each document with the number of ids of each sentence and, where they are asked for, the beginnings of words.
A document is the concatenation of its sentences.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.tokenizer.encode import Tokenizer
from outlast.tokenizer.words import WordMarker


class EncodedDocument(NamedTuple):
    """A document's ids, int32 of shape (num_tokens,), perhaps none; and the number of ids of each sentence
    that has any, int64 of shape (num_sentences,), None where documents are not divided; and which ids begin a
    word, bool of shape (num_tokens,), None where words are not asked for.
    """

    ids: NDArray[np.int32]
    sentence_lengths: NDArray[np.int64] | None
    word_starts: NDArray[np.bool_] | None = None


def encode_documents(
    tokenizer: Tokenizer,
    documents: Sequence[str],
    split: Callable[[str], list[str]] | None,
    words: WordMarker | None = None,
    contents: Sequence[bytes] | None = None,
) -> list[EncodedDocument]:
    """Encode documents; with ``split`` each sentence by itself, as the original BERT's data does.

    Args:
        split: returns the sentences of a document, whose concatenation is the document.
        words: marks the words, by the same tokenizer. A sentence begins with a word.
        contents: the documents in UTF-8, where that is there already.

    Raises:
        TokenizerError: a text holds half of a surrogate pair; a segmenter gives what cannot be.
    """
    if words is not None:
        return _encode_marked(words, documents, split)
    if split is None:
        encoded = (
            tokenizer.encode_utf8(documents, contents) if contents else tokenizer.encode_batch(documents)
        )
        return [EncodedDocument(ids, None) for ids in encoded]
    sentences = [split(document) for document in documents]
    ids, lengths = tokenizer.encode_joined(list(chain.from_iterable(sentences)))
    result: list[EncodedDocument] = []
    token = first = 0
    for several in sentences:
        own = lengths[first : first + len(several)]
        num_tokens = int(own.sum())
        result.append(EncodedDocument(ids[token : token + num_tokens], own[own > 0]))
        token += num_tokens
        first += len(several)
    return result


def _encode_marked(
    words: WordMarker, documents: Sequence[str], split: Callable[[str], list[str]] | None
) -> list[EncodedDocument]:
    texts = [split(document) if split else [document] for document in documents]
    ids, lengths, starts = words.mark(list(chain.from_iterable(texts)))
    result: list[EncodedDocument] = []
    token = first = 0
    for several in texts:
        own = lengths[first : first + len(several)]
        end = token + int(own.sum())
        result.append(EncodedDocument(ids[token:end], own[own > 0] if split else None, starts[token:end]))
        token = end
        first += len(several)
    return result
