"""The few fields of a sentencepiece model that the library's API does not give, read from the file's own
bytes.

In: a serialised ModelProto (protocol buffers; sentencepiece_model.proto in google/sentencepiece). Out: pieces
with score and type, the trainer's and the normaliser's settings. Needs no protobuf library: the wire format
is five rules.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, cast

from outlast.errors import TokenizerError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_MODEL_TYPE, _BYTE_FALLBACK, _WHITESPACE_AS_SUFFIX = 3, 35, 24
_RULE_NAME, _CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 1, 2, 3, 4, 5
_MODEL_KINDS: dict[int, str] = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


class PieceType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    type: PieceType


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: list[Piece]
    kind: Literal["unigram", "bpe"]
    byte_fallback: bool
    normalization_rule: str
    """The name of the normalisation: nmt_nfkc, nfkc, nmt_nfkc_cf, nfkc_cf, identity or a user's own."""
    charsmap: bytes
    """The compiled normalisation table; empty: identity."""
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def parse_model(content: bytes) -> SentencePieceModel:
    """Parse a .model file.

    Raises:
        TokenizerError: not a sentencepiece model, or of a kind that has no counterpart (word, char, suffix
        whitespace).
    """
    pieces: list[Piece] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    try:
        for number, value in _fields(content):
            if number == _PIECES:
                pieces.append(_parse_piece(_bytes(value)))
            elif number == _TRAINER:
                trainer = dict(_fields(_bytes(value)))
            elif number == _NORMALIZER:
                normalizer = dict(_fields(_bytes(value)))
        rule = _bytes(normalizer.get(_RULE_NAME, b"")).decode("utf-8", errors="replace")
        charsmap = _bytes(normalizer.get(_CHARSMAP, b""))
    except (IndexError, ValueError, TypeError, KeyError, struct.error) as error:
        raise TokenizerError(f"The file is not a sentencepiece model: {error}") from None
    kind = _MODEL_KINDS.get(cast(int, trainer.get(_MODEL_TYPE, 1)), "unknown")
    if not pieces or kind not in ("unigram", "bpe"):
        found = f"of the kind {kind!r}" if pieces else "without pieces"
        raise TokenizerError(f"The sentencepiece model is {found}.", expected="unigram or bpe")
    if not any(piece.type == PieceType.UNKNOWN for piece in pieces):
        raise TokenizerError("The sentencepiece model has no unknown piece.", expected="one of that type")
    if trainer.get(_WHITESPACE_AS_SUFFIX) or not normalizer.get(_ESCAPE_SPACES, 1):
        raise TokenizerError(
            "The sentencepiece model treats whitespace in a way that is not supported.",
            expected="treat_whitespace_as_suffix = false and escape_whitespaces = true",
        )
    return SentencePieceModel(
        pieces=pieces,
        kind=kind,
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
        normalization_rule=rule,
        charsmap=charsmap,
        add_dummy_prefix=bool(normalizer.get(_DUMMY_PREFIX, 1)),
        remove_extra_whitespaces=bool(normalizer.get(_REMOVE_SPACES, 1)),
    )


def append_control_pieces(content: bytes, names: list[str]) -> bytes:
    """Return the model with control pieces added after the last id.

    A repeated field may be continued at the end of a message, so nothing that is there is rewritten.
    """
    added = bytearray(content)
    for name in names:
        text = name.encode()
        piece = b"\x0a" + _varint(len(text)) + text + b"\x15" + struct.pack("<f", 0.0) + b"\x18\x03"
        added += b"\x0a" + _varint(len(piece)) + piece
    return bytes(added)


def _parse_piece(content: bytes) -> Piece:
    fields = dict(_fields(content))
    score = struct.unpack("<f", _bytes(fields[2]))[0] if 2 in fields else 0.0
    return Piece(_bytes(fields[1]).decode(), score, PieceType(cast(int, fields.get(3, 1))))


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where bytes belong")
    return value


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message; a varint as int, anything else as its bytes."""
    position = 0
    while position < len(content):
        tag, position = _read_varint(content, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _read_varint(content, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            length, position = _read_varint(content, position)
        elif wire_type in (_FIXED32, _FIXED64):
            length = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire_type} at byte {position}")
        if position + length > len(content):
            raise ValueError(f"a field of {length} bytes at byte {position} leaves the message")
        yield number, content[position : position + length]
        position += length


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"a number of more than 10 bytes at byte {position}")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
