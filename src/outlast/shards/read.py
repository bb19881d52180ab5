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

Buffer = bytes | memoryview | mmap.mmap


@dataclass(frozen=True, kw_only=True)
class TokenShard:
    """An open shard.

    Attributes:
        header: what the file says of itself.
        tokens: uint16 or uint32 of shape (num_tokens,): each document followed by one separator. Read-only.
        document_offsets: int64 of shape (num_documents + 1,), from 0 to num_tokens. Read-only.
    """

    header: ShardHeader
    tokens: NDArray[Any]
    document_offsets: NDArray[np.int64]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    def document(self, index: int) -> NDArray[Any]:
        """Return the tokens of a document without its separator: uint16 or uint32, (num_tokens,)."""
        return self.tokens[self.document_offsets[index] : self.document_offsets[index + 1] - 1]


def open_shard(path: Path) -> TokenShard:
    """Map a local shard. The file's pages stay on disk until they are read.

    Raises:
        FileNotFoundError: there is no such file.
        ShardError: the file is damaged or no token shard.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise ShardError("The shard is empty.", where=str(path), remedy=SHARD_REMEDY)
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _read(content, str(path))


def open_tokens(path: Path, entry: ShardEntry, *, tokenizer_fingerprint: str) -> NDArray[Any]:
    """Map a local shard and return its tokens, uint16 or uint32 of shape (num_tokens,).

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
    return shard.tokens


def read_shard_bytes(content: bytes | memoryview, *, where: str) -> TokenShard:
    """Read a shard from its bytes, without copying them. Raises ShardError."""
    return _read(content, where)


def check_entry(shard: TokenShard, entry: ShardEntry, *, where: str) -> None:
    """Check a shard's counts against the manifest. Raises ShardError."""
    found = (shard.num_tokens, shard.num_documents)
    if found != (entry.num_tokens, entry.num_documents):
        raise ShardError(
            f"The shard holds {found[0]} tokens in {found[1]} documents.",
            where=where,
            expected=f"{entry.num_tokens} tokens in {entry.num_documents} documents by the manifest",
            remedy=SHARD_REMEDY,
        )


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
    return TokenShard(header=header, tokens=tokens, document_offsets=offsets)
