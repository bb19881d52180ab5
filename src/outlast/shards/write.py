"""Writing a token shard with bounded memory: arrays are spooled to nameless files, then put in place whole.

In: the ids of documents, one after another. Out: a shard object and its ``ShardEntry``. The same documents
give the same bytes.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError
from outlast.shards.manifest import ShardEntry
from outlast.shards.token_format import MAX_TOKENS_WITH_SENTENCES, make_header, token_dtype
from outlast.shards.word_bits import WordBits
from outlast.storage import Store
from outlast.storage.spool import Spool

_ONE_WORD = np.ones(1, np.bool_)
_TOGETHER = 2**16
"""Tokens that are written together."""


class TokenShardWriter:
    """Collects the documents of one shard.

    Args:
        vocab_size: ids lie below it; it decides between uint16 and uint32.
        separator_id: written behind each document.
        tokenizer_fingerprint: of the tokenizer that made the ids.
        has_sentences: whether every document comes with the lengths of its sentences.
        has_words: whether every document comes with the beginnings of its words.
        spool_folder: where the nameless temporary files lie; None for the system's folder.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        separator_id: int,
        tokenizer_fingerprint: str,
        has_sentences: bool = False,
        has_words: bool = False,
        spool_folder: Path | None = None,
    ) -> None:
        if not 0 <= separator_id < vocab_size:
            raise ShardError(f"The separator id {separator_id} is outside the vocabulary of {vocab_size}.")
        self.vocab_size = vocab_size
        self.separator_id = separator_id
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.num_tokens = 0
        self.num_documents = 0
        self.num_sentences = 0 if has_sentences else None
        self._dtype = token_dtype(vocab_size)
        self._separator = np.array([separator_id], np.int32)
        self._waiting: list[NDArray[np.integer[Any]]] = []  # documents and separators in turn
        self._waiting_ends: list[int] = []
        self._num_waiting = 0
        self._words = WordBits() if has_words else None
        # Sentence offsets, document offsets, tokens, word starts, as they follow one another in the file.
        self._spool = Spool(4, spool_folder)
        self._spool.write(bytes(4) if has_sentences else b"", bytes(8), b"")

    def __enter__(self) -> "TokenShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def add(
        self,
        ids: NDArray[np.integer[Any]],
        sentence_lengths: NDArray[np.integer[Any]] | None = None,
        word_starts: NDArray[np.bool_] | None = None,
    ) -> None:
        """Append one document.

        Args:
            ids: integers of shape (num_tokens,), not empty; kept, not copied, until they are written.
            sentence_lengths: integers from 1, of shape (num_sentences,): the tokens of each sentence, which
                add up to those of the document. Given if and only if the shard has sentences.
            word_starts: bool of shape (num_tokens,), True for the first token at least. Given if and only if
                the shard has words.

        Documents are written many at a time, so what is wrong with one may be told at a later one, or by
        ``write``.

        Raises:
            ShardError: no ids, or one outside the vocabulary; sentences or words that do not fit the
                document; more tokens than the offsets of sentences can tell.
            StorageError: the temporary files cannot be written.
        """
        num_ids = len(ids)
        if not num_ids:
            raise ShardError("A document without tokens cannot be stored.", remedy="skip it")
        sentence_ends = self._sentence_ends(num_ids, sentence_lengths)
        word_bits = self._word_bits(num_ids, word_starts)
        self.num_tokens += num_ids + 1
        self.num_documents += 1
        self._waiting += (ids, self._separator)
        self._waiting_ends.append(self.num_tokens)
        self._num_waiting += num_ids + 1
        if sentence_ends or word_bits:
            self._spool.write(sentence_ends, b"", b"", word_bits)
        if self._num_waiting >= _TOGETHER:
            self._write_waiting()

    def _write_waiting(self) -> None:
        """Check and write the documents that were added: a call of numpy costs more than it does for one."""
        if not self._waiting:
            return
        tokens = np.concatenate(self._waiting)
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.vocab_size:
            raise ShardError(
                f"The id {low if low < 0 else high} is outside the vocabulary.",
                expected=f"0 to {self.vocab_size - 1}",
            )
        ends = np.array(self._waiting_ends, "<i8")
        self._spool.write(b"", ends.tobytes(), tokens.astype(self._dtype).tobytes())
        self._waiting, self._waiting_ends, self._num_waiting = [], [], 0

    def _word_bits(self, num_ids: int, starts: NDArray[np.bool_] | None) -> bytes:
        """Return the bits that are whole bytes by now."""
        if self._words is None and starts is None:
            return b""
        if self._words is None or starts is None:
            raise ShardError("Either all documents of a shard have words or none has.")
        if starts.shape != (num_ids,) or not starts[0]:
            raise ShardError(
                f"The word starts have shape {starts.shape}.",
                expected=f"({num_ids},), as the document, and True at its beginning",
            )
        self._words.add(starts)
        self._words.add(_ONE_WORD)  # the separator
        return self._words.take()

    def _sentence_ends(self, num_ids: int, lengths: NDArray[np.integer[Any]] | None) -> bytes:
        """Return the ends of a document's sentences as they stand in the shard, and count the sentences."""
        if self.num_sentences is None and lengths is None:
            return b""
        if self.num_sentences is None or lengths is None:
            raise ShardError("Either all documents of a shard have sentences or none has.")
        if not len(lengths) or lengths.min() < 1 or lengths.sum() != num_ids:
            raise ShardError(
                f"The sentences have {lengths.sum()} tokens.",
                expected=f"{num_ids}, as the document, and at least 1 in each",
            )
        if self.num_tokens + num_ids + 1 > MAX_TOKENS_WITH_SENTENCES:
            raise ShardError(
                "The shard has more tokens than the offsets of its sentences can tell.",
                expected=f"at most {MAX_TOKENS_WITH_SENTENCES}",
                remedy="raise shards.num_shards",
            )
        self.num_sentences += len(lengths)
        ends = self.num_tokens + np.cumsum(lengths, dtype=np.int64)
        ends[-1] += 1  # the separator
        return ends.astype("<u4").tobytes()

    def write(self, store: Store, name: str) -> ShardEntry:
        """Put the shard in place, whole, and return its entry for the manifest.

        An object of that name is replaced: the builder of a killed portion writes the same bytes again.

        Raises:
            ShardError: no document was added, or an id is outside the vocabulary.
            StorageError: the shard cannot be written.
        """
        if not self.num_documents:
            raise ShardError("A shard without documents cannot be written.", where=name)
        self._write_waiting()
        header = make_header(
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            num_sentences=self.num_sentences,
            has_words=self._words is not None,
            vocab_size=self.vocab_size,
            separator_id=self.separator_id,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
        )
        if self._words is not None:
            self._spool.write(b"", b"", b"", self._words.finish())
        size_bytes, sha256 = self._spool.put(store, name, header)
        return ShardEntry(
            name=name,
            size_bytes=size_bytes,
            sha256=sha256,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            num_sentences=self.num_sentences,
            num_words=None if self._words is None else self._words.num_ones - self.num_documents,
        )
