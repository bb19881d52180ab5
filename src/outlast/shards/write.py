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
from outlast.shards.spool import Spool
from outlast.shards.token_format import MAX_TOKENS_WITH_SENTENCES, make_header, token_dtype
from outlast.storage import Store


class TokenShardWriter:
    """Collects the documents of one shard.

    Args:
        vocab_size: ids lie below it; it decides between uint16 and uint32.
        separator_id: written behind each document.
        tokenizer_fingerprint: of the tokenizer that made the ids.
        has_sentences: whether every document comes with the lengths of its sentences.
        spool_folder: where the nameless temporary files lie; None for the system's folder.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        separator_id: int,
        tokenizer_fingerprint: str,
        has_sentences: bool = False,
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
        self._separator = np.array([separator_id], self._dtype).tobytes()
        # Sentence offsets, document offsets and tokens, in the order in which they follow in the file.
        self._spool = Spool(3, spool_folder)
        self._spool.write(bytes(4) if has_sentences else b"", bytes(8), b"")

    def __enter__(self) -> "TokenShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def add(
        self, ids: NDArray[np.integer[Any]], sentence_lengths: NDArray[np.integer[Any]] | None = None
    ) -> None:
        """Append one document, integers of shape (num_tokens,), not empty.

        Args:
            sentence_lengths: integers from 1, of shape (num_sentences,): the tokens of each sentence, which
                add up to those of the document. Given if and only if the shard has sentences.

        Raises:
            ShardError: no ids, or one outside the vocabulary; sentences that do not make up the document;
                more tokens than the offsets of sentences can tell.
            StorageError: the temporary files cannot be written.
        """
        if not len(ids):
            raise ShardError("A document without tokens cannot be stored.", remedy="skip it")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.vocab_size:
            raise ShardError(
                f"The id {low if low < 0 else high} is outside the vocabulary.",
                expected=f"0 to {self.vocab_size - 1}",
            )
        sentence_ends = self._sentence_ends(len(ids), sentence_lengths)
        self.num_tokens += len(ids) + 1
        self.num_documents += 1
        self._spool.write(
            sentence_ends,
            self.num_tokens.to_bytes(8, "little"),
            ids.astype(self._dtype).tobytes() + self._separator,
        )

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

        An object of that name is replaced: the builder of a killed piece writes the same bytes again.

        Raises:
            ShardError: no document was added.
            StorageError: the shard cannot be written.
        """
        if not self.num_documents:
            raise ShardError("A shard without documents cannot be written.", where=name)
        header = make_header(
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            num_sentences=self.num_sentences,
            vocab_size=self.vocab_size,
            separator_id=self.separator_id,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
        )
        size_bytes, sha256 = self._spool.put(store, name, header)
        return ShardEntry(
            name=name,
            size_bytes=size_bytes,
            sha256=sha256,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            num_sentences=self.num_sentences,
        )
