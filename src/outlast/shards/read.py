"""Opening token shards: arrays over a mapped file or over bytes that were fetched.

In: a local path, or the bytes of a shard. Out: a ``TokenShard`` whose arrays are views, nothing copied. A
file is either opened with a header and offsets that fit it, or a ShardError says what is wrong.
"""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError
from outlast.shards.manifest import ShardEntry
from outlast.shards.token_format import SHARD_REMEDY, ShardHeader, parse_header
from outlast.shards.word_bits import count_ones
from outlast.storage.regular import open_regular

Buffer = bytes | memoryview | mmap.mmap


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
    """Map a local shard. The file's pages stay on disk until they are read.

    Raises:
        FileNotFoundError: there is no such file.
        ShardError: the file is damaged or no token shard.
    """
    return _read(map_file(path), str(path))


def map_file(path: Path) -> mmap.mmap:
    """Map a local file, read-only.

    Raises:
        FileNotFoundError: there is no such file.
        ShardError: it is empty.
    """
    with open_regular(path) as file:
        if not path.stat().st_size:
            raise ShardError("The file is empty.", where=str(path), remedy=SHARD_REMEDY)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def open_tokens(path: Path, entry: ShardEntry, *, tokenizer_fingerprint: str) -> NDArray[Any]:
    """Map a local shard and return its tokens, uint16 or uint32 of shape (num_tokens,). As ``open_entry``."""
    return open_entry(path, entry, tokenizer_fingerprint=tokenizer_fingerprint).tokens


def open_entry(path: Path, entry: ShardEntry, *, tokenizer_fingerprint: str) -> TokenShard:
    """Map a local shard that a manifest describes.

    Args:
        entry, tokenizer_fingerprint: what the manifest says of the shard.

    Raises:
        FileNotFoundError: there is no such file.
        ShardError: the file is damaged, or not the one that the manifest describes.
    """
    shard = open_shard(path)
    check_entry(shard, entry, where=str(path))
    if shard.header.tokenizer_fingerprint != tokenizer_fingerprint:
        raise ShardError(
            f"The shard was made with the tokenizer {shard.header.tokenizer_fingerprint}.",
            where=str(path),
            expected=f"{tokenizer_fingerprint} by the manifest",
            remedy=SHARD_REMEDY,
        )
    return shard


def read_shard_bytes(content: Buffer, *, where: str) -> TokenShard:
    """Read a shard from its bytes, without copying them. Raises ShardError."""
    return _read(content, where)


def check_entry(shard: TokenShard, entry: ShardEntry, *, where: str) -> None:
    """Check a shard's counts against the manifest. Raises ShardError."""
    has_words = shard.word_starts is not None
    found = _counts(shard.num_tokens, shard.num_documents, shard.num_sentences, has_words)
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
    header = parse_header(memoryview(content), file_size=len(content), where=where)
    tokens = np.frombuffer(content, header.token_dtype, header.num_tokens, header.tokens.begin)
    offsets = np.frombuffer(content, np.dtype("<i8"), header.num_documents + 1, header.document_offsets.begin)
    steps = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != len(tokens) or (len(steps) and steps.min() < 2):
        raise ShardError(
            "The shard's document_offsets are wrong.",
            where=where,
            expected=f"rising by at least 2 from 0 to {len(tokens)}",
            remedy=SHARD_REMEDY,
        )
    sentences = _read_sentences(content, header, offsets, where)
    span = header.word_starts
    words = None if span is None else np.frombuffer(content, np.uint8, span.shape[0], span.begin)
    return TokenShard(
        header=header,
        tokens=tokens,
        document_offsets=offsets,
        sentence_offsets=sentences,
        word_starts=words,
    )


def _read_sentences(
    content: Buffer, header: ShardHeader, documents: NDArray[np.int64], where: str
) -> NDArray[np.uint32] | None:
    span = header.sentence_offsets
    if span is None:
        return None
    offsets = np.frombuffer(content, np.dtype("<u4"), span.shape[0], span.begin)
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
