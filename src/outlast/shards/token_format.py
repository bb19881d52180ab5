"""The token shard's header: what may stand at the head of a shard file (docs/formats/token_shard.md).

In: the first bytes of a file and the file's size. Out: a ``ShardHeader`` that says where each array lies,
every claim checked against the file's size before anything is read or allocated; and, the other way, the
bytes of a header.
"""

import json
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard, cast

import numpy as np

from outlast.errors import ShardError

FORMAT = "outlast-token-shard"
VERSION = "1"
TOKENS = "tokens"
DOCUMENT_OFFSETS = "document_offsets"
ALIGNMENT = 64
MAX_HEADER_BYTES = 2**20

_DTYPES = {"U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_TOKEN_DTYPES = {"U16": np.dtype("<u2"), "U32": np.dtype("<u4")}
SHARD_REMEDY = (
    "restore the file, or delete the folder and run `outlast prepare` again: it makes the same bytes"
)


class ArraySpan(NamedTuple):
    """Where an array lies: ``begin`` counts bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class ShardHeader:
    """A checked header. ``tokens`` and ``document_offsets`` lie within the file and overlap nothing."""

    tokens: ArraySpan
    document_offsets: ArraySpan
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
    def token_dtype(self) -> np.dtype[Any]:
        return _TOKEN_DTYPES[self.tokens.dtype]


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest dtype that holds every id: uint16 up to 65,536 pieces, else uint32."""
    return _TOKEN_DTYPES["U16"] if vocab_size <= 2**16 else _TOKEN_DTYPES["U32"]


def make_header(
    *, num_tokens: int, num_documents: int, vocab_size: int, separator_id: int, tokenizer_fingerprint: str
) -> bytes:
    """Return the head of a shard file: length, JSON and the spaces that align ``tokens`` to 64 bytes."""
    dtype = token_dtype(vocab_size)
    offsets_bytes = 8 * (num_documents + 1)
    end = offsets_bytes + num_tokens * dtype.itemsize
    name = next(key for key, value in _TOKEN_DTYPES.items() if value == dtype)
    header = {
        "__metadata__": {
            "format": FORMAT,
            "version": VERSION,
            "tokenizer_fingerprint": tokenizer_fingerprint,
            "separator_id": str(separator_id),
            "vocab_size": str(vocab_size),
        },
        DOCUMENT_OFFSETS: {"dtype": "I64", "shape": [num_documents + 1], "data_offsets": [0, offsets_bytes]},
        TOKENS: {"dtype": name, "shape": [num_tokens], "data_offsets": [offsets_bytes, end]},
    }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text) + offsets_bytes) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def header_bytes(head: bytes | memoryview, *, file_size: int, where: str) -> int:
    """Return how many bytes of the file are header, with the length field. ``head`` holds 8 bytes or more."""
    if file_size < 8 or len(head) < 8:
        raise ShardError(f"The shard is cut short: {file_size} bytes.", where=where, remedy=SHARD_REMEDY)
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise ShardError(
            f"The shard's header claims {length} bytes.",
            where=where,
            expected=f"at most {MAX_HEADER_BYTES}",
            remedy=SHARD_REMEDY,
        )
    if 8 + length > file_size:
        raise ShardError(
            f"The shard is cut short: {file_size} bytes, and its header alone has {8 + length}.",
            where=where,
            remedy=SHARD_REMEDY,
        )
    return 8 + length


def parse_header(head: bytes | memoryview, *, file_size: int, where: str) -> ShardHeader:
    """Parse and check a header.

    Args:
        head: the first ``header_bytes`` bytes of the file, or more.
        file_size: bytes of the whole file.
        where: the file's name, for messages.

    Raises:
        ShardError: not a token shard, of another version, or any claim that does not fit the file.
    """
    data_begin = header_bytes(head, file_size=file_size, where=where)
    header = _parse_json(bytes(head[8:data_begin]), where)
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or cast(dict[str, Any], metadata).get("format") != FORMAT:
        raise ShardError(
            "The file is not a token shard.", where=where, expected=f'metadata "format": "{FORMAT}"'
        )
    metadata = cast(dict[str, Any], metadata)
    if metadata.get("version") != VERSION:
        raise ShardError(f"The shard has version {metadata.get('version')!r}.", where=where, expected=VERSION)
    spans = {name: _parse_span(name, entry, data_begin, where) for name, entry in header.items()}
    _check_layout(spans, data_begin, file_size, where)
    tokens, offsets = _required(spans, where)
    return ShardHeader(
        tokens=tokens,
        document_offsets=offsets,
        tokenizer_fingerprint=str(metadata.get("tokenizer_fingerprint", "")),
        separator_id=_number(metadata, "separator_id", where),
        vocab_size=_number(metadata, "vocab_size", where),
    )


def _parse_json(text: bytes, where: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    try:
        header: Any = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ShardError(
            f"The shard's header is not valid JSON: {error}", where=where, remedy=SHARD_REMEDY
        ) from None
    if not isinstance(header, dict):
        raise ShardError("The shard's header is no JSON object.", where=where, remedy=SHARD_REMEDY)
    return cast(dict[str, Any], header)


def _parse_span(name: str, entry: Any, data_begin: int, where: str) -> ArraySpan:
    wrong = ShardError(
        f"The shard's header entry {name!r} is wrong: {entry!r:.200}", where=where, remedy=SHARD_REMEDY
    )
    if not isinstance(entry, dict):
        raise wrong
    fields = cast(dict[str, Any], entry)
    dtype, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if set(fields) != {"dtype", "shape", "data_offsets"} or dtype not in _DTYPES:
        raise wrong
    if not _is_counts(shape) or not _is_counts(offsets) or len(offsets) != 2 or len(shape) > 8:
        raise wrong
    size = _DTYPES[dtype]
    for dimension in shape:
        size *= dimension
    if offsets[1] - offsets[0] != size:
        raise wrong
    return ArraySpan(dtype, tuple(shape), data_begin + offsets[0], size)


def _is_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in cast(list[Any], value))


def _check_layout(spans: dict[str, ArraySpan], data_begin: int, file_size: int, where: str) -> None:
    """The arrays cover the file from the header to its end, without gap or overlap."""
    position = data_begin
    for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].size_bytes)):
        if span.begin != position:
            raise ShardError(
                f"The shard's array {name!r} overlaps another or leaves a gap.",
                where=where,
                remedy=SHARD_REMEDY,
            )
        position += span.size_bytes
    if position != file_size:
        raise ShardError(
            f"The shard has {file_size} bytes.",
            where=where,
            expected=f"{position} by its header",
            remedy=SHARD_REMEDY,
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


def _number(metadata: dict[str, Any], key: str, where: str) -> int:
    text = metadata.get(key)
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ShardError(
            f"The shard's {key} is {text!r}.", where=where, expected="a decimal number", remedy=SHARD_REMEDY
        )
    return int(text)
