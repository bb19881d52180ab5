"""Documents to ids, whole or sentence by sentence.

In: a tokenizer, documents and, where their sentences are to be kept apart, what divides them. Out: the ids of
each document with the number of ids of each sentence. A document is the concatenation of its sentences.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.tokenizer.encode import Tokenizer


class EncodedDocument(NamedTuple):
    """A document's ids, int32 of shape (num_tokens,), perhaps none; and the number of ids of each sentence
    that has any, int64 of shape (num_sentences,), None where documents are not divided.
    """

    ids: NDArray[np.int32]
    sentence_lengths: NDArray[np.int64] | None


def encode_documents(
    tokenizer: Tokenizer, documents: Sequence[str], split: Callable[[str], list[str]] | None
) -> list[EncodedDocument]:
    """Encode documents; with ``split`` each sentence by itself, as the original BERT's data does.

    Args:
        split: returns the sentences of a document, whose concatenation is the document.

    Raises:
        TokenizerError: a text holds half of a surrogate pair.
    """
    if split is None:
        return [EncodedDocument(ids, None) for ids in tokenizer.encode_batch(documents)]
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
