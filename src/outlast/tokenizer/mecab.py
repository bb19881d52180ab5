"""Japanese words by MeCab: fugashi with the dictionary unidic-lite, both optional.

In: text. Out: where its words begin, in characters. One dictionary that comes whole in a package: nothing is
downloaded or configured, and the same text gives the same words everywhere.
"""

import re
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.tokenizer.mecab_words import load_analyser
from outlast.tokenizer.words import Segmenter

# MeCab builds one lattice for all that it is given, and crashes on about two million characters.
_CHUNK = re.compile(r"[^\n]{1,4000}|\n")


def mecab_segmenter() -> Segmenter:
    """Return the segmenter. Raises ConfigError where its libraries are missing."""
    _tagger()
    versions = {name: version(name) for name in ("fugashi", "unidic-lite")}
    return Segmenter(name="mecab", word_starts=mecab_word_starts, versions=versions)


def mecab_word_starts(text: str) -> NDArray[np.int64]:
    """Return where words begin, rising int64: UniDic's short units, punctuation by itself.

    Lines are segmented each by itself, and a line of more than 4,000 characters in parts of so many: a word
    may be cut there.
    """
    tagger = _tagger()
    # NUL ends the text for the library.
    places = [
        _byte_starts(tagger, chunk.group().replace("\0", " "), chunk.start())
        for chunk in _CHUNK.finditer(text)
        if not chunk.group().isspace()
    ]
    return np.concatenate(places) if places else np.zeros(0, np.int64)


def _byte_starts(tagger: Any, line: str, offset: int) -> NDArray[np.int64]:
    """Return where words begin in a line, in characters, plus ``offset``."""
    written = tagger.parse(line)
    found = np.fromstring(written[: written.rindex(",")], np.int64, sep=",")
    encoded = np.frombuffer(line.encode(), np.uint8)
    if len(encoded) != len(line):
        character = np.cumsum((encoded & 0xC0) != 0x80) - 1
        found = character[found]
    return found + offset


def _tagger() -> Any:
    """Return the library's analyser, which writes of each word the byte it begins at."""
    return load_analyser("%ps,")
