"""The head of a safetensors file: which arrays it holds and where they lie, nothing believed unchecked.

In: the first bytes of a file and the file's size. Out: its metadata and an ``ArraySpan`` for each array,
every claim checked against the file's size before anything is read or allocated; and, the other way, the
bytes of a head.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, TypeVar, cast

from outlast.errors import ShardError
from outlast.storage.checksummed_json import Kind, check_kind

ALIGNMENT = 64
MAX_HEADER_BYTES = 2**20
N = TypeVar("N", bound=str)

_DTYPES = {"U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8}


class ArraySpan(NamedTuple):
    """Where an array lies: ``begin`` counts bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


def make_head(
    kind: Kind,
    metadata: Mapping[str, str],
    arrays: Sequence[tuple[str, str, int | tuple[int, ...]]],
    *,
    aligned: str,
) -> bytes:
    """Return the head of a file: length, JSON and the spaces that put an array at a multiple of 64 bytes.

    Args:
        metadata: what stands beside format and version.
        arrays: name, dtype and number of elements (or shape) of each array, in the order in which they
            follow.
        aligned: name of the array.
    """
    header: dict[str, Any] = {"__metadata__": {**kind.head, **metadata}}
    begin = aligned_begin = 0
    for name, dtype, count in arrays:
        aligned_begin = begin if name == aligned else aligned_begin
        shape = [count] if isinstance(count, int) else list(count)
        end = begin + math.prod(shape) * _DTYPES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text) + aligned_begin) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def head_bytes(head: bytes | memoryview, kind: Kind, *, file_size: int, where: str) -> int:
    """Return how many bytes of the file are head, with the length field. ``head`` holds 8 bytes or more."""
    if file_size < 8 or len(head) < 8:
        raise _wrong(kind, f" is cut short: {file_size} bytes", where)
    length = int.from_bytes(head[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise _wrong(kind, f"'s header claims {length} bytes", where, f"at most {MAX_HEADER_BYTES}")
    if 8 + length > file_size:
        raise _wrong(kind, f" is cut short: {file_size} bytes, and its header alone has {8 + length}", where)
    return 8 + length


def parse_head(
    head: bytes | memoryview, kind: Kind, *, file_size: int, where: str
) -> tuple[dict[str, Any], dict[str, ArraySpan]]:
    """Parse and check a head; return the metadata and where each array lies.

    Args:
        head: the first ``head_bytes`` bytes of the file, or more.
        file_size: bytes of the whole file.
        where: the file's name, for messages.

    Raises:
        ShardError: another kind of file, another version, or any claim that does not fit the file.
    """
    data_begin = head_bytes(head, kind, file_size=file_size, where=where)
    header = _parse_json(bytes(head[8:data_begin]), kind, where)
    metadata: Any = header.pop("__metadata__", None)
    metadata = cast(dict[str, Any], metadata) if isinstance(metadata, dict) else {}
    check_kind(metadata, kind, where=where)
    spans = {name: _parse_span(name, entry, data_begin, kind, where) for name, entry in header.items()}
    _check_layout(spans, data_begin, file_size, kind, where)
    return metadata, spans


def parse_described(
    head: bytes | memoryview,
    kind: Kind,
    metadata: Mapping[str, str],
    arrays: Mapping[N, tuple[str, tuple[int, ...]]],
    *,
    file_size: int,
    where: str,
) -> dict[N, ArraySpan]:
    """Parse and check a head that a manifest describes; return where each of its arrays lies.

    Args:
        metadata: what the file must say.
        arrays: dtype and shape of each array that it must have.

    Raises:
        ShardError: as ``parse_head``; or what the manifest describes is another file.
    """
    says, spans = parse_head(head, kind, file_size=file_size, where=where)
    compared: list[tuple[str, Any, Any]] = [(key, says.get(key), value) for key, value in metadata.items()]
    for name, array in arrays.items():
        span = spans.get(name)
        compared.append((f"array {name}", span and (span.dtype, span.shape), array))
    for what, found, expected in compared:
        if found != expected:
            raise _wrong(kind, f"'s {what} is {found!r:.200}", where, f"{expected!r} by the manifest")
    return {name: spans[name] for name in arrays}


def _wrong(kind: Kind, problem: str, where: str, expected: str | None = None) -> ShardError:
    return ShardError(f"The {kind.noun}{problem}.", where=where, expected=expected, remedy=kind.remedy)


def _parse_json(text: bytes, kind: Kind, where: str) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    try:
        header: Any = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ShardError(
            f"The {kind.noun}'s header is not valid JSON: {error}", where=where, remedy=kind.remedy
        ) from None
    if not isinstance(header, dict):
        raise ShardError(f"The {kind.noun}'s header is no JSON object.", where=where, remedy=kind.remedy)
    return cast(dict[str, Any], header)


def _parse_span(name: str, entry: Any, data_begin: int, kind: Kind, where: str) -> ArraySpan:
    wrong = ShardError(
        f"The {kind.noun}'s header entry {name!r} is wrong: {entry!r:.200}", where=where, remedy=kind.remedy
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


def _check_layout(
    spans: dict[str, ArraySpan], data_begin: int, file_size: int, kind: Kind, where: str
) -> None:
    """The arrays cover the file from the header to its end, without gap or overlap."""
    position = data_begin
    for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].size_bytes)):
        if span.begin != position:
            raise _wrong(kind, f"'s array {name!r} overlaps another or leaves a gap", where)
        position += span.size_bytes
    if position != file_size:
        raise _wrong(kind, f" has {file_size} bytes", where, f"{position} by its header")
