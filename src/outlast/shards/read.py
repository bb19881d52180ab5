"""Opening token shards: rows of a file that stays on the disk, or arrays over bytes in memory.

In: an opened file, or the bytes of a shard. Out: ``TokenRows``, or a ``TokenShard`` whose arrays are views,
nothing copied. A file is either opened with a header and offsets that fit it, or a ShardError says what is
wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError
from outlast.shards.manifest import ShardEntry
from outlast.shards.opened import OpenedFile, Rows
from outlast.shards.token_format import SHARD_REMEDY, ShardHeader, header_bytes, parse_header
from outlast.shards.word_bits import count_ones
from outlast.storage.regular import open_regular

Buffer = bytes | memoryview
ArrayOf = Callable[[np.dtype[Any], int, int], NDArray[Any]]
"""Returns numbers of a file: so many of a dtype, from a byte on."""
_HEAD_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class TokenShard:
    """An open shard.

    Attributes:
        header: what the file says of itself.
        tokens: uint16 or uint32 of shape (num_tokens,): each document followed by one separator. Read-only.
        document_offsets: int64 of shape (num_documents + 1,), from 0 to num_tokens. Read-only.
        sentence_offsets: uint32 of shape (num_sentences + 1,), from 0 to num_tokens, every document's offset
            among them. Read-only. None where the documents are not divided into sentences.
        word_starts: uint8 of shape (ceil(num_tokens / 8),): bit k % 8 of byte k // 8, counted from the
            lowest, is 1 where token k begins a word; a separator is a word to itself. Read-only. None where
            words are not known.
    """

    header: ShardHeader
    tokens: NDArray[Any]
    document_offsets: NDArray[np.int64]
    sentence_offsets: NDArray[np.uint32] | None = None
    word_starts: NDArray[np.uint8] | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    @property
    def num_sentences(self) -> int | None:
        return None if self.sentence_offsets is None else len(self.sentence_offsets) - 1

    def count_words(self) -> int | None:
        """Return the number of words, separators not counted. Reads all of ``word_starts``."""
        return None if self.word_starts is None else count_ones(self.word_starts) - self.num_documents

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of a document without its separator: uint16 or uint32, (num_tokens,)."""
        return self.tokens[self.document_offsets[index] : self.document_offsets[index + 1] - 1]

    def first_sentences(self) -> NDArray[np.int64]:
        """Return the number of each document's first sentence and, last, of all sentences.

        Document d holds the sentences ``first[d]`` to ``first[d + 1] - 1``. int64 of shape
        (num_documents + 1,). Raises ShardError where the shard has no sentences.
        """
        return np.searchsorted(self._sentence_offsets(), self.document_offsets)

    def sentences(self, document: int) -> list[NDArray[Any]]:
        """Return the tokens of each sentence of a document, without the separator: uint16 or uint32,
        (num_tokens,). Raises ShardError where the shard has no sentences.
        """
        offsets = self._sentence_offsets()
        begin, end = self.document_offsets[document : document + 2]
        first, last = np.searchsorted(offsets, (begin, end))
        return np.split(self.document(document), offsets[first + 1 : last].astype(np.int64) - begin)

    def _sentence_offsets(self) -> NDArray[np.uint32]:
        if self.sentence_offsets is None:
            raise ShardError(
                "The shard does not know its documents' sentences.",
                remedy='prepare the data with corpus.sentences = "rules" or "lines"',
            )
        return self.sentence_offsets


def open_shard(path: Path) -> TokenShard:
    """Read a local shard, all of it.

    Raises:
        FileNotFoundError: there is no such file.
        ShardError: the file is damaged or no token shard.
    """
    with open_regular(path) as file:
        return read_shard_bytes(file.read(), where=str(path))


class TokenOffsets(NamedTuple):
    """The offsets of a shard, as ``TokenShard`` has them."""

    documents: NDArray[np.int64]
    sentences: NDArray[np.uint32] | None


class TokenRows(NamedTuple):
    """What a stream reads of a shard: its tokens and, where they are known, its ``word_starts``, on the disk
    until they are asked for; as ``TokenShard`` has them.
    """

    tokens: Rows
    word_starts: Rows | None


def open_tokens(file: OpenedFile, entry: ShardEntry, *, tokenizer_fingerprint: str) -> TokenRows:
    """Return the tokens of a local shard that a manifest describes.

    Args:
        entry, tokenizer_fingerprint: what the manifest says of the shard.

    Raises:
        ShardError: the file is damaged, or not the one that the manifest describes.
    """
    where = str(file.path)
    header, _ = read_offsets(file, entry)
    if header.tokenizer_fingerprint != tokenizer_fingerprint:
        raise ShardError(
            f"The shard was made with the tokenizer {header.tokenizer_fingerprint}.",
            where=where,
            expected=f"{tokenizer_fingerprint} by the manifest",
            remedy=SHARD_REMEDY,
        )
    words = header.word_starts
    return TokenRows(
        file.rows(header.token_dtype, header.tokens.shape, header.tokens.begin),
        None if words is None else file.rows(np.dtype(np.uint8), words.shape, words.begin),
    )


def read_offsets(file: OpenedFile, entry: ShardEntry) -> tuple[ShardHeader, TokenOffsets]:
    """Read the header and the offsets of a shard into memory. Raises ShardError as ``open_tokens``."""
    where, size = str(file.path), file.size_bytes
    head = file.read(0, min(_HEAD_BYTES, size))
    length = header_bytes(head, file_size=size, where=where)
    head += file.read(len(head), max(length - len(head), 0))
    header = parse_header(head, file_size=size, where=where)
    offsets = _read_offsets(file.array, header, where)
    _check_counts(header, offsets, entry, where)
    return header, offsets


def read_shard_bytes(content: Buffer, *, where: str) -> TokenShard:
    """Read a shard from its bytes, without copying them. Raises ShardError."""
    return _read(content, where)


def check_entry(shard: TokenShard, entry: ShardEntry, *, where: str) -> None:
    """Check a shard's counts against the manifest. Raises ShardError."""
    offsets = TokenOffsets(shard.document_offsets, shard.sentence_offsets)
    _check_counts(shard.header, offsets, entry, where)


def _check_counts(header: ShardHeader, offsets: TokenOffsets, entry: ShardEntry, where: str) -> None:
    num_sentences = None if offsets.sentences is None else len(offsets.sentences) - 1
    has_words = header.word_starts is not None
    found = _counts(header.num_tokens, len(offsets.documents) - 1, num_sentences, has_words)
    has_words = entry.num_words is not None
    expected = _counts(entry.num_tokens, entry.num_documents, entry.num_sentences, has_words)
    if found != expected:
        raise ShardError(
            f"The shard holds {found}.",
            where=where,
            expected=f"{expected} by the manifest",
            remedy=SHARD_REMEDY,
        )


def _counts(num_tokens: int, num_documents: int, num_sentences: int | None, has_words: bool) -> str:
    sentences = "" if num_sentences is None else f" with {num_sentences} sentences"
    words = ", their words marked" if has_words else ""
    return f"{num_tokens} tokens in {num_documents} documents{sentences}{words}"


def _read(content: Buffer, where: str) -> TokenShard:
    def array(dtype: np.dtype[Any], count: int, begin: int) -> NDArray[Any]:
        return np.frombuffer(content, dtype, count, begin)

    header = parse_header(memoryview(content), file_size=len(content), where=where)
    offsets = _read_offsets(array, header, where)
    span = header.word_starts
    return TokenShard(
        header=header,
        tokens=array(header.token_dtype, header.num_tokens, header.tokens.begin),
        document_offsets=offsets.documents,
        sentence_offsets=offsets.sentences,
        word_starts=None if span is None else array(np.dtype(np.uint8), span.shape[0], span.begin),
    )


def _read_offsets(array: ArrayOf, header: ShardHeader, where: str) -> TokenOffsets:
    offsets = array(np.dtype("<i8"), header.num_documents + 1, header.document_offsets.begin)
    steps = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != header.num_tokens or (len(steps) and steps.min() < 2):
        raise ShardError(
            "The shard's document_offsets are wrong.",
            where=where,
            expected=f"rising by at least 2 from 0 to {header.num_tokens}",
            remedy=SHARD_REMEDY,
        )
    return TokenOffsets(offsets, _read_sentences(array, header, offsets, where))


def _read_sentences(
    array: ArrayOf, header: ShardHeader, documents: NDArray[np.int64], where: str
) -> NDArray[np.uint32] | None:
    span = header.sentence_offsets
    if span is None:
        return None
    offsets = array(np.dtype("<u4"), span.shape[0], span.begin)
    # Not np.diff: differences of unsigned numbers are never negative.
    is_right = (
        offsets[0] == 0 and offsets[-1] == header.num_tokens and bool((offsets[1:] > offsets[:-1]).all())
    )
    if is_right:
        places = np.searchsorted(offsets, documents)
        ends = places[1:]
        is_right = bool((offsets[places] == documents).all())
        is_right = is_right and bool((offsets[ends] - offsets[ends - 1] >= 2).all())
    if not is_right:
        raise ShardError(
            "The shard's sentence_offsets are wrong.",
            where=where,
            expected=f"rising from 0 to {header.num_tokens}, by at least 2 to each of document_offsets",
            remedy=SHARD_REMEDY,
        )
    return offsets
