"""Writing a token shard with bounded memory: arrays are spooled to nameless files, then put in place whole.

In: the ids of documents, one after another. Out: a shard object and its ``ShardEntry``. The same documents
give the same bytes.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, overload

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError, StorageError
from outlast.shards.manifest import ShardEntry
from outlast.shards.token_format import make_header, token_dtype
from outlast.storage import Store

_CHUNK_BYTES = 8 * 2**20


class TokenShardWriter:
    """Collects the documents of one shard.

    Args:
        vocab_size: ids lie below it; it decides between uint16 and uint32.
        separator_id: written behind each document.
        tokenizer_fingerprint: of the tokenizer that made the ids.
        spool_folder: where the nameless temporary files lie; None for the system's folder.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        separator_id: int,
        tokenizer_fingerprint: str,
        spool_folder: Path | None = None,
    ) -> None:
        if not 0 <= separator_id < vocab_size:
            raise ShardError(f"The separator id {separator_id} is outside the vocabulary of {vocab_size}.")
        self.vocab_size = vocab_size
        self.separator_id = separator_id
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.num_tokens = 0
        self.num_documents = 0
        self._dtype = token_dtype(vocab_size)
        self._files = ExitStack()
        self._separator = np.array([separator_id], self._dtype).tobytes()
        try:
            tokens, offsets = (tempfile.TemporaryFile(dir=spool_folder) for _ in range(2))  # noqa: SIM115
            self._tokens = self._files.enter_context(tokens)
            self._offsets = self._files.enter_context(offsets)
            self._offsets.write(bytes(8))
        except OSError as error:
            raise _spool_failed(error) from error

    def __enter__(self) -> "TokenShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # On a full disk closing fails again; the failed write has been reported, and the file has no name.
        with suppress(OSError):
            self._files.close()

    def add(self, ids: NDArray[np.integer[Any]]) -> None:
        """Append one document, integers of shape (num_tokens,), not empty.

        Raises:
            ShardError: no ids, or one outside the vocabulary.
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
        self.num_tokens += len(ids) + 1
        self.num_documents += 1
        try:
            self._tokens.write(ids.astype(self._dtype).tobytes() + self._separator)
            self._offsets.write(self.num_tokens.to_bytes(8, "little"))
        except OSError as error:
            raise _spool_failed(error) from error

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
            vocab_size=self.vocab_size,
            separator_id=self.separator_id,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
        )
        chunks = _Spooled(header, (self._offsets, self._tokens))
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        store.replace(name, chunks)
        return ShardEntry(
            name=name,
            size_bytes=chunks.size_bytes,
            sha256=digest.hexdigest(),
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
        )


class _Spooled(Sequence[bytes]):
    """The content of a shard, read from the temporary files a slice at a time, however large it is."""

    def __init__(self, header: bytes, files: Sequence[IO[bytes]]) -> None:
        self._header = header
        self._slices: list[tuple[IO[bytes], int]] = []
        self.size_bytes = len(header)
        for file in files:
            try:
                size = file.seek(0, 2)
            except OSError as error:
                raise _spool_failed(error) from error
            self.size_bytes += size
            self._slices += [(file, begin) for begin in range(0, size, _CHUNK_BYTES)]

    def __len__(self) -> int:
        return 1 + len(self._slices)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        if range(len(self))[index] == 0:
            return self._header
        file, begin = self._slices[range(len(self))[index] - 1]
        file.seek(begin)
        return file.read(_CHUNK_BYTES)


def _spool_failed(error: OSError) -> StorageError:
    return StorageError(
        f"Cannot write temporary files: {error.strerror}.",
        remedy="free space in the output folder (for a remote one: in the folder that TMPDIR names)",
    )
