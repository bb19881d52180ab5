"""What is measured in a document: kinds of characters, repetition, windows of its bytes.

In: text. Out: shares between 0 and 1, or arrays. Nothing here knows a language: there are no words, so text
without spaces is measured like any other.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

WINDOW_BYTES = 24
"""Bytes of a window: about four words of English, or eight characters of Japanese or Chinese."""

MOST_BYTES = 4 * 2**20
"""Of a longer text only so much is cut into windows, which bounds the memory."""

_BLOCK_CHARACTERS = 2**20
_LETTER, _OTHER, _SPACE, _CONTROL = 1, 2, 4, 8
_MULTIPLIERS = tuple(np.uint64(odd) for odd in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9))

_BREAKS = "\r\v\f\x85\u2028\u2029"
_UNWANTED = (
    "\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad"  # controls but tab, newline and the breaks; the soft hyphen
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"  # zero-width space, directions, invisible operators
    "\ufdd0-\ufdef\ufeff\ufff9-\ufffb"  # noncharacters, byte order mark, annotations
    + "".join(chr(last - 1) + chr(last) for last in range(0xFFFF, 0x110000, 0x10000))
)
_CONTROL_CHARACTER = re.compile(f"[{_BREAKS}{_UNWANTED}]")
_UNWANTED_RUN = re.compile(f"[{_UNWANTED}]+")
_BREAK = re.compile(f"\r\n|[{_BREAKS}]")


def remove_control_characters(text: str) -> str:
    """Return the text without control characters and the like; other breaks have become newlines.

    The joiners U+200C and U+200D stay: Persian, the scripts of India and emoji are spelt with them.
    """
    if text.replace("\n", "").replace("\u3000", "").isprintable():  # which no control character is
        return text
    if not any((kinds & _CONTROL).any() for kinds in _kinds_of(text)):
        return text
    return _UNWANTED_RUN.sub("", _BREAK.sub("\n", text))


def letter_share(text: str) -> float:
    """Return the share of the characters other than white space that are letters or marks (Unicode L and M);
    0 for white space alone.

    The measure by which MassiveText (Rae et al. 2021, "Scaling language models", appendix A) asks for words
    with a letter, for text without words.
    """
    letters = others = 0
    for kinds in _kinds_of(text):
        content = kinds.tobytes()  # whose count is much faster than numpy's on short text
        letters += content.count(_LETTER)
        others += content.count(_OTHER) + content.count(_OTHER | _CONTROL)
    return letters / (letters + others) if letters + others else 0.0


def repeated_line_share(text: str) -> float:
    """Return the share of the characters that stand in lines equal to an earlier one, outer white space and
    blank lines aside.

    Source: MassiveText's "duplicate line character fraction", dropped there above 0.20.
    """
    lines = [line.strip() for line in text.split("\n")]
    different = set(lines)
    if len(different) == len(lines):
        return 0.0
    total = sum(map(len, lines))
    return 1 - sum(map(len, different)) / total if total else 0.0


def repeated_text_share(text: str) -> float:
    """Return the share of the windows that are equal to an earlier one.

    After MassiveText's "duplicate n-gram character fraction" (0.15 for 5-grams down to 0.10 for 10-grams of
    words), with windows of bytes for n-grams of words. Windows are compared by a 64-bit hash.
    """
    windows = window_hashes(text.encode())
    windows.sort()
    return int(np.count_nonzero(windows[1:] == windows[:-1])) / len(windows)


def window_hashes(content: bytes) -> NDArray[np.uint64]:
    """Return a hash of each window of ``WINDOW_BYTES`` that begins with a character, uint64 of shape
    (windows,).

    Text that is shorter than a window is one window; only the first ``MOST_BYTES`` of a longer one are looked
    at. Equal windows have equal hashes wherever they stand; the bits are not well mixed.
    """
    content = content[:MOST_BYTES].ljust(WINDOW_BYTES, b"\0")
    count = len(content) - WINDOW_BYTES + 1
    eights = np.array(
        np.ndarray((len(content) - 7,), "<u8", content, strides=(1,))
    )  # 8 bytes from each byte on
    hashes = eights[:count] * _MULTIPLIERS[0]
    hashes ^= eights[8 : 8 + count]
    hashes *= _MULTIPLIERS[1]
    hashes ^= eights[16 : 16 + count]
    if content.isascii():
        return hashes
    return hashes[(np.frombuffer(content, np.uint8, count) & 0xC0) != 0x80]


def _kinds_of(text: str) -> Iterator[NDArray[np.uint8]]:
    for begin in range(0, len(text), _BLOCK_CHARACTERS):
        codes = text[begin : begin + _BLOCK_CHARACTERS].encode("utf-32-le")
        yield _kinds()[np.frombuffer(codes, np.uint32)]


@functools.cache
def _kinds() -> NDArray[np.uint8]:
    """Return the kind of every code point, as bits; made once in a process, in about half a second."""
    kinds = np.full(0x110000, _OTHER, np.uint8)
    for code in range(0x110000):
        character = chr(code)
        if character.isspace():
            kinds[code] = _SPACE
        elif unicodedata.category(character)[0] in "LM":
            kinds[code] = _LETTER
        if _CONTROL_CHARACTER.match(character):
            kinds[code] |= _CONTROL
    return kinds
