"""The message that TFRecords usually hold: ``tf.train.Example``, a map from names to lists of numbers.

In: the bytes of a message. Out: its features, the lists still in their packed form, so that the numbers of
many records are decoded together; and the other way. The encoder writes what TensorFlow's deterministic
serialisation writes: keys sorted, lists packed. The decoder reads whatever a protocol buffer parser would:
any order, unknown fields, packed lists and unpacked ones, repeated keys (docs/formats/tfrecord.md).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError

Kind = Literal["bytes", "float", "int64"]

_LIST_FIELDS: dict[int, Kind] = {1: "bytes", 2: "float", 3: "int64"}
_LIST_TAGS: dict[Kind, bytes] = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}
_PACKED_TAGS: dict[int, Kind] = {0x12: "float", 0x1A: "int64"}
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LENGTH_OF_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


class Feature(NamedTuple):
    """One list. ``kind`` is None where the message gives the name without a list.

    Attributes:
        content: of int64 the varints, of float the little-endian float32, one after another; of bytes the
            strings.
    """

    kind: Kind | None
    content: bytes | list[bytes]


def encode_example(features: Mapping[str, Feature]) -> bytes:
    """Return the message with these features."""
    entries: list[bytes] = []
    for name in sorted(features, key=str.encode):
        kind, content = features[name]
        if isinstance(content, list):
            content = b"".join(b"\x0a" + _varint(len(text)) + text for text in content)
            entries += (_entry_head(name, kind, len(content), False), content)
        else:
            entries += (_entry_head(name, kind, len(content), True), content)
    return _message(entries)


def encode_rows(columns: Mapping[str, tuple[Kind, NDArray[Any]]]) -> list[bytes]:
    """Return one message for each row of some columns.

    Args:
        columns: the kind of each feature and its values of shape (rows, length): integers for int64,
            anything that casts to float32 for float.
    """
    packed: list[tuple[str, Kind, list[bytes]]] = []
    for name in sorted(columns, key=str.encode):
        kind, values = columns[name]
        rows = pack_floats(values) if kind == "float" else pack_integers(values)
        packed.append((name, kind, rows))
    messages: list[bytes] = []
    for row in range(len(packed[0][2])):
        entries: list[bytes] = []
        for name, kind, rows in packed:
            content = rows[row]
            entries += (_entry_head(name, kind, len(content), True), content)
        messages.append(_message(entries))
    return messages


def decode_example(payload: bytes, where: str) -> dict[str, Feature]:
    """Return the features of a message.

    Raises:
        ShardError: bytes that are no such message; ``where`` names the record.
    """
    features: dict[str, Feature] = {}
    try:
        for number, wire, begin, end in _fields(payload, 0, len(payload)):
            if number != 1 or wire != _LENGTH:
                continue
            position = begin
            while (found := _plain_entry(payload, position, end)) is not None:
                name, feature, position = found
                features[name] = feature  # of a repeated key the last entry counts
            for entry, entry_wire, entry_begin, entry_end in _fields(payload, position, end):
                if entry == 1 and entry_wire == _LENGTH:
                    name, feature = _decode_entry(payload, entry_begin, entry_end)
                    features[name] = feature
    except ValueError as error:
        raise ShardError(
            f"The record is no tf.train.Example: {error}.",
            where=where,
            remedy="read files that hold such messages, or restore the file",
        ) from None
    return features


def pack_integers(values: NDArray[Any]) -> list[bytes]:
    """Return the varints of each row of integers of shape (rows, length); negative ones take ten bytes."""
    flat = np.ascontiguousarray(values, np.int64).view(np.uint64).ravel()
    num_rows, length = values.shape
    if not flat.size:
        return [b""] * num_rows
    if flat.max() < 0x80:
        content = flat.astype(np.uint8).tobytes()
        return [content[begin : begin + length] for begin in range(0, len(content), length)]
    sizes = np.ones(len(flat), np.int64)
    for place in range(1, _MAX_VARINT_BYTES):
        longer = flat >= np.uint64(1 << 7 * place)
        if not longer.any():
            break
        sizes += longer
    ends = np.cumsum(sizes)
    begins = ends - sizes
    packed = np.empty(int(ends[-1]), np.uint8)
    for place in range(int(sizes.max())):
        chosen = slice(None) if place == 0 else np.flatnonzero(sizes > place)
        bits = (flat[chosen] >> np.uint64(7 * place)) & np.uint64(0x7F)
        more = (sizes[chosen] > place + 1).astype(np.uint8) << 7
        packed[begins[chosen] + place] = bits.astype(np.uint8) | more
    content = packed.tobytes()
    cuts = [0, *ends[length - 1 :: length].tolist()]
    return [content[begin:end] for begin, end in itertools.pairwise(cuts)]


def pack_floats(values: NDArray[Any]) -> list[bytes]:
    """Return the float32 of each row of shape (rows, length)."""
    return [row.tobytes() for row in np.ascontiguousarray(values, "<f4")]


def unpack_integers(contents: Sequence[bytes], length: int) -> NDArray[np.int64]:
    """Return int64 of shape (rows, length) from the varints of each row.

    Raises:
        RowError: a row with another number of values, or one that does not end with a whole varint.
    """
    joined = np.frombuffer(b"".join(contents), np.uint8)
    sizes = np.array([len(content) for content in contents], np.int64)
    is_last = joined < 0x80
    if bool(is_last.all()):
        _check_rows(sizes == length, sizes, length)
        return joined.astype(np.int64).reshape(len(contents), length)
    row_ends = np.cumsum(sizes)
    filled = np.flatnonzero(sizes)
    cuts = zip((row_ends - sizes).tolist(), row_ends.tolist(), strict=True)
    counts = np.array([np.count_nonzero(is_last[begin:end]) for begin, end in cuts], np.int64)
    whole = np.ones(len(contents), np.bool_)
    whole[filled] = is_last[row_ends[filled] - 1]
    _check_rows((counts == length) & whole, counts, length)
    return _join_bytes(joined, is_last, row_ends).reshape(len(contents), length)


def _join_bytes(
    joined: NDArray[np.uint8], is_last: NDArray[np.bool_], row_ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the value of each varint, int64.

    The value grows at the place of the last byte, which holds the highest bits, towards the first one, over
    the whole array at once: that is faster than to gather the bytes of each.
    """
    low = (joined & np.uint8(0x7F)).astype(np.uint32)
    values = low.copy()
    belongs = np.ones(len(joined), np.bool_)  # whether the byte so many places before is of the same varint
    for place in range(1, _MAX_VARINT_BYTES + 1):
        belongs = belongs[1:] & ~is_last[:-place]
        if not belongs.any():
            break
        if place == _MAX_VARINT_BYTES:
            row = int(np.searchsorted(row_ends, place + np.argmax(belongs), side="right"))
            raise RowError(row, f"an integer of more than {_MAX_VARINT_BYTES} bytes")
        if place == 4:  # more than 28 bits
            values, low = values.astype(np.uint64), low.astype(np.uint64)
        grown = values[place:] << values.dtype.type(7) | low[:-place]
        # Without a branch for each byte, which no processor could foresee: 0 or all bits.
        chosen = -belongs.astype(values.dtype)
        values[place:] ^= (values[place:] ^ grown) & chosen
    return values[np.flatnonzero(is_last)].astype(np.uint64).view(np.int64)


def unpack_floats(contents: Sequence[bytes], length: int) -> NDArray[np.float32]:
    """Return float32 of shape (rows, length). Raises RowError."""
    sizes = np.array([len(content) for content in contents], np.int64)
    _check_rows(sizes == 4 * length, sizes // 4, length)
    return np.frombuffer(b"".join(contents), "<f4").reshape(len(contents), length)


def count_values(feature: Feature) -> int:
    """Return how many values a list has."""
    if isinstance(feature.content, list):
        return len(feature.content)
    if feature.kind == "float":
        return len(feature.content) // 4
    return int(np.count_nonzero(np.frombuffer(feature.content, np.uint8) < 0x80))


class RowError(ValueError):
    """A list that cannot be a row: its number, counted from 0, and why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


def _check_rows(right: NDArray[np.bool_], counts: NDArray[np.int64], length: int) -> None:
    if not right.all():
        row = int(np.argmin(right))
        raise RowError(row, f"{counts[row]} values instead of {length}")


def _plain_entry(payload: bytes, begin: int, end: int) -> tuple[str, Feature, int] | None:
    """Decode an entry that is laid out as nearly all are: a name, then one packed list of numbers.

    Returns:
        name, feature and where the next entry begins; None where the layout is another one, which
            ``_decode_entry`` reads. This one exists for speed alone, five times its.
    """
    try:
        if payload[begin] != 0x0A:
            return None
        size, position = _read_varint(payload, begin + 1, end)
        stop = position + size
        name_begin = position + 2
        name_end = name_begin + payload[position + 1]
        if stop > end or payload[position] != 0x0A or name_end - name_begin >= 0x80:
            return None
        if payload[name_end] != 0x12:
            return None
        size, position = _read_varint(payload, name_end + 1, stop)
        kind = _PACKED_TAGS.get(payload[position])
        if position + size != stop or kind is None:
            return None
        size, position = _read_varint(payload, position + 1, stop)
        if position + size != stop or payload[position] != 0x0A:
            return None
        size, position = _read_varint(payload, position + 1, stop)
    except (IndexError, ValueError):
        return None
    is_whole = size and (payload[stop - 1] < 0x80 if kind == "int64" else not size % 4)
    if position + size != stop or not is_whole:
        return None
    return _name(payload[name_begin:name_end]), Feature(kind, payload[position:stop]), stop


@lru_cache(maxsize=4096)
def _name(content: bytes) -> str:
    return content.decode()


def _decode_entry(payload: bytes, begin: int, end: int) -> tuple[str, Feature]:
    name = ""
    feature = Feature(None, b"")
    for number, wire, first, last in _fields(payload, begin, end):
        if wire != _LENGTH:
            continue
        if number == 1:
            name = payload[first:last].decode()  # UnicodeDecodeError is a ValueError
        elif number == 2:
            feature = _decode_feature(payload, first, last, feature)
    return name, feature


def _decode_feature(payload: bytes, begin: int, end: int, before: Feature) -> Feature:
    """Decode one of the three lists. A list of the same kind goes on, one of another kind replaces it."""
    kind, content = before
    for number, wire, first, last in _fields(payload, begin, end):
        if number not in _LIST_FIELDS or wire != _LENGTH:
            continue
        found = _LIST_FIELDS[number]
        if found != kind:
            kind, content = found, [] if found == "bytes" else b""
        if isinstance(content, list):
            content += [
                payload[a:b] for n, w, a, b in _fields(payload, first, last) if n == 1 and w == _LENGTH
            ]
        else:
            content += _packed(payload, first, last, _FIXED32 if found == "float" else _VARINT)
    return Feature(kind, content)


def _packed(payload: bytes, begin: int, end: int, unpacked_wire: int) -> bytes:
    """Join the packed and the unpacked values of a list of numbers."""
    pieces: list[bytes] = []
    for number, wire, first, last in _fields(payload, begin, end):
        if number == 1 and wire in (_LENGTH, unpacked_wire):
            pieces.append(payload[first:last])
            if wire == _LENGTH and last > first:
                is_whole = payload[last - 1] < 0x80 if unpacked_wire == _VARINT else not (last - first) % 4
                if not is_whole:
                    raise ValueError("a packed list ends within a value")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _fields(payload: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type and extent of each field of a message. Raises ValueError."""
    position = begin
    while position < end:
        tag = payload[position]
        position += 1
        if tag >= 0x80:
            tag, position = _read_varint(payload, position - 1, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise ValueError(f"field number {number}")
        if wire == _LENGTH:
            if position >= end:
                raise ValueError("it is cut short")
            length = payload[position]
            position += 1
            if length >= 0x80:
                length, position = _read_varint(payload, position - 1, end)
            last = position + length
        elif wire == _VARINT:
            last = _read_varint(payload, position, end)[1]
        elif wire in _LENGTH_OF_FIXED:
            last = position + _LENGTH_OF_FIXED[wire]
        else:
            raise ValueError(f"wire type {wire}")
        if last > end:
            raise ValueError("it is cut short")
        yield number, wire, position, last
        position = last


def _read_varint(payload: bytes, position: int, end: int) -> tuple[int, int]:
    """Return an integer and where it ends. Raises ValueError."""
    if position < end and payload[position] < 0x80:
        return payload[position], position + 1
    value = shift = 0
    while position < end:
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift == 7 * _MAX_VARINT_BYTES:
            raise ValueError("an integer of more than 10 bytes")
    raise ValueError("it is cut short")


def _message(entries: Sequence[bytes]) -> bytes:
    content = b"".join(entries)
    # A message without features has no field at all.
    return b"\x0a" + _varint(len(content)) + content if content else b""


@lru_cache(maxsize=4096)
def _entry_head(name: str, kind: Kind | None, size: int, is_packed: bool) -> bytes:
    """Return the bytes before the values of an entry: its name, and the lengths around them."""
    head = b"\x0a" + _varint(size) if is_packed and size else b""
    inner = len(head) + size
    if kind is not None:
        head = _LIST_TAGS[kind] + _varint(inner) + head
        inner = len(head) + size
    head = b"\x12" + _varint(inner) + head
    key = name.encode()
    head = b"\x0a" + _varint(len(key)) + key + head
    return b"\x0a" + _varint(len(head) + size) + head


def _varint(number: int) -> bytes:
    content = bytearray()
    while number >= 0x80:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)
