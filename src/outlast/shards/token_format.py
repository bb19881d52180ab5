"""The token shard's header: what may stand at the head of a shard file (docs/formats/token_shard.md).

In: the first bytes of a file and the file's size. Out: a ``ShardHeader`` that says where each array lies,
every claim checked against the file's size before anything is read or allocated; and, the other way, the
bytes of a header.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outlast.errors import ShardError
from outlast.shards.array_file import ArraySpan, head_bytes, make_head, parse_head
from outlast.storage.checksummed_json import Kind

TOKENS = "tokens"
DOCUMENT_OFFSETS = "document_offsets"
SENTENCE_OFFSETS = "sentence_offsets"
WORD_STARTS = "word_starts"
MAX_TOKENS_WITH_SENTENCES = 2**32 - 1
"""Offsets of sentences are uint32."""
_TOKEN_DTYPES = {"U16": np.dtype("<u2"), "U32": np.dtype("<u4")}
SHARD_REMEDY = (
    "restore the file, or delete the folder and run `outlast prepare` again: it makes the same bytes"
)
_KIND = Kind("outlast-token-shard", ("1",), "token shard", SHARD_REMEDY, ShardError)


@dataclass(frozen=True, kw_only=True)
class ShardHeader:
    """A checked header. The arrays lie within the file and overlap nothing; ``sentence_offsets`` is None
    where the documents are not divided into sentences, ``word_starts`` where words are not known.
    """

    tokens: ArraySpan
    document_offsets: ArraySpan
    sentence_offsets: ArraySpan | None
    word_starts: ArraySpan | None
    tokenizer_fingerprint: str
    separator_id: int
    vocab_size: int

    @property
    def num_tokens(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_documents(self) -> int:
        return self.document_offsets.shape[0] - 1

    @property
    def num_sentences(self) -> int | None:
        return self.sentence_offsets.shape[0] - 1 if self.sentence_offsets else None

    @property
    def token_dtype(self) -> np.dtype[Any]:
        return _TOKEN_DTYPES[self.tokens.dtype]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest dtype that holds every id: uint16 up to 65,536 pieces, else uint32."""
    return _TOKEN_DTYPES["U16"] if vocab_size <= 2**16 else _TOKEN_DTYPES["U32"]


def word_bytes(num_tokens: int) -> int:
    """Return the size of ``word_starts``: a bit for each token, whole bytes."""
    return -(-num_tokens // 8)


def make_header(
    *,
    num_tokens: int,
    num_documents: int,
    num_sentences: int | None = None,
    has_words: bool = False,
    vocab_size: int,
    separator_id: int,
    tokenizer_fingerprint: str,
) -> bytes:
    """Return the head of a shard file: length, JSON and the spaces that align ``tokens`` to 64 bytes.

    The arrays follow in the order ``sentence_offsets`` (unless num_sentences is None), ``document_offsets``,
    ``tokens``, ``word_starts`` (if has_words): with tokens at a multiple of 64 bytes, each of the others then
    lies at a multiple of its own numbers' size.
    """
    dtype = token_dtype(vocab_size)
    name = next(key for key, value in _TOKEN_DTYPES.items() if value == dtype)
    arrays: list[tuple[str, str, int]] = (
        [] if num_sentences is None else [(SENTENCE_OFFSETS, "U32", num_sentences + 1)]
    )
    arrays += [(DOCUMENT_OFFSETS, "I64", num_documents + 1), (TOKENS, name, num_tokens)]
    arrays += [(WORD_STARTS, "U8", word_bytes(num_tokens))] if has_words else []
    metadata = {
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "separator_id": str(separator_id),
        "vocab_size": str(vocab_size),
    }
    return make_head(_KIND, metadata, arrays, aligned=TOKENS)


def header_bytes(head: bytes | memoryview, *, file_size: int, where: str) -> int:
    """Return how many bytes of the file are header, with the length field. ``head`` holds 8 bytes or more."""
    return head_bytes(head, _KIND, file_size=file_size, where=where)


def parse_header(head: bytes | memoryview, *, file_size: int, where: str) -> ShardHeader:
    """Parse and check a header.

    Args:
        head: the first ``header_bytes`` bytes of the file, or more.
        file_size: bytes of the whole file.
        where: the file's name, for messages.

    Raises:
        ShardError: not a token shard, of another version, or any claim that does not fit the file.
    """
    metadata, spans = parse_head(head, _KIND, file_size=file_size, where=where)
    tokens, offsets = _required(spans, where)
    return ShardHeader(
        tokens=tokens,
        document_offsets=offsets,
        sentence_offsets=_sentence_offsets(spans, where),
        word_starts=_word_starts(spans, tokens.shape[0], where),
        tokenizer_fingerprint=str(metadata.get("tokenizer_fingerprint", "")),
        separator_id=_number(metadata, "separator_id", where),
        vocab_size=_number(metadata, "vocab_size", where),
    )


def _required(spans: dict[str, ArraySpan], where: str) -> tuple[ArraySpan, ArraySpan]:
    tokens, offsets = spans.get(TOKENS), spans.get(DOCUMENT_OFFSETS)
    if tokens is None or tokens.dtype not in _TOKEN_DTYPES or len(tokens.shape) != 1:
        raise ShardError(
            "The shard has no flat array `tokens` of uint16 or uint32.", where=where, remedy=SHARD_REMEDY
        )
    if offsets is None or offsets.dtype != "I64" or len(offsets.shape) != 1 or offsets.shape[0] < 1:
        raise ShardError(
            "The shard has no flat array `document_offsets` of int64.", where=where, remedy=SHARD_REMEDY
        )
    return tokens, offsets


def _sentence_offsets(spans: dict[str, ArraySpan], where: str) -> ArraySpan | None:
    span = spans.get(SENTENCE_OFFSETS)
    if span is not None and (span.dtype != "U32" or len(span.shape) != 1 or span.shape[0] < 1):
        raise ShardError(
            "The shard's array `sentence_offsets` is no flat array of uint32.",
            where=where,
            remedy=SHARD_REMEDY,
        )
    return span


def _word_starts(spans: dict[str, ArraySpan], num_tokens: int, where: str) -> ArraySpan | None:
    span = spans.get(WORD_STARTS)
    if span is not None and (span.dtype, span.shape) != ("U8", (word_bytes(num_tokens),)):
        raise ShardError(
            "The shard's array `word_starts` is no flat array of uint8 with a bit for each token.",
            where=where,
            remedy=SHARD_REMEDY,
        )
    return span


def _number(metadata: dict[str, Any], key: str, where: str) -> int:
    text = metadata.get(key)
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ShardError(
            f"The shard's {key} is {text!r}.", where=where, expected="a decimal number", remedy=SHARD_REMEDY
        )
    return int(text)
