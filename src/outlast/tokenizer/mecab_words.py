"""Text to words by MeCab and words to subwords, as transformers' ``BertJapaneseTokenizer`` does it.

In: text. Out: words with their places in the text, and ids. One dictionary, unidic-lite, which comes whole in
a package: nothing is downloaded or configured, and the same text gives the same words everywhere.

Source: ``tokenization_bert_japanese.py`` of transformers 5.23. What differs: NUL, behind which the library
reads nothing, is a space here, and a text of more than 100,000 characters is analysed in parts, of whole
lines if it can be.
"""

import functools
import json
import re
import unicodedata
from importlib.metadata import version
from typing import Any

from outlast.errors import ConfigError, TokenizerError

DICTIONARY = "unidic-lite"
CONTINUATION = "##"
_PART = re.compile(r"(?s).{1,100000}(?<=\n)|.{1,100000}")  # MeCab crashes on about two million characters
_LONGEST_WORD = 100
_MOST_KEPT = 2**18

Span = tuple[int, int]


class MecabSubwords:
    """The vocabulary file ``mecab.json`` (docs/formats/tokenizer.md), and what it makes of text."""

    def __init__(self, content: bytes) -> None:
        try:
            data: dict[str, Any] = dict(json.loads(content))
            self.pieces: list[str] = list(data["vocab"])
            self.is_character = data["subwords"] == "character"
            self._normalize, self._lowercase = bool(data["normalize"]), bool(data["lowercase"])
            wanted = str(data["dictionary"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise TokenizerError(f"The file is no vocabulary of MeCab's words: {error!r}") from None
        analyser()
        if wanted != dictionary():
            raise TokenizerError(
                f"The tokenizer was made with the dictionary {wanted}, here is {dictionary()}.",
                remedy=f'pip install "{wanted.replace(" ", "==")}"; another finds other words',
            )
        self._ids = {piece: number for number, piece in enumerate(self.pieces)}
        self._unknown = self._ids["[UNK]"]
        self._kept: dict[str, list[tuple[int, Span]]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        found = unicodedata.normalize("NFKC", text) if self._normalize else text
        return [number for begin, end in find_words(found) for number, _ in self._subwords(found[begin:end])]

    def encode_spans(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of a text and the characters of it that each comes from."""
        alone = [(place, place + 1) for place in range(len(text))]
        found, origin = normalize_with_places(text) if self._normalize else (text, alone)
        ids: list[int] = []
        spans: list[Span] = []
        for begin, end in find_words(found):
            for number, (first, last) in self._subwords(found[begin:end]):
                ids.append(number)
                # Lower-casing may have made a word longer.
                spans.append((origin[min(begin + first, end - 1)][0], origin[min(begin + last, end) - 1][1]))
        return ids, spans

    def _subwords(self, word: str) -> list[tuple[int, Span]]:
        kept = self._kept.get(word)
        if kept is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            surface = word.lower() if self._lowercase else word
            kept = self._kept[word] = (
                self._characters(surface) if self.is_character else self._pieces(surface)
            )
        return kept

    def _characters(self, word: str) -> list[tuple[int, Span]]:
        characters = unicodedata.normalize("NFKC", word)
        return [(self._ids.get(c, self._unknown), (i, i + 1)) for i, c in enumerate(characters)]

    def _pieces(self, word: str) -> list[tuple[int, Span]]:
        """Cut a word into the longest pieces from its beginning; one that cannot be is unknown."""
        found: list[tuple[int, Span]] = []
        for part in re.finditer(r"\S+", word):
            pieces = self._longest_first(part.group()) or [(self._unknown, (0, len(part.group())))]
            found += [(number, (part.start() + a, part.start() + b)) for number, (a, b) in pieces]
        return found

    def _longest_first(self, part: str) -> list[tuple[int, Span]]:
        if len(part) > _LONGEST_WORD:
            return []
        found: list[tuple[int, Span]] = []
        begin = 0
        while begin < len(part):
            prefix = CONTINUATION if begin else ""
            ends = range(len(part), begin, -1)
            end = next((end for end in ends if prefix + part[begin:end] in self._ids), None)
            if end is None:
                return []
            found.append((self._ids[prefix + part[begin:end]], (begin, end)))
            begin = end
        return found


def find_words(text: str) -> list[Span]:
    """Return the words of a text, begin and end in characters; white space between them belongs to none."""
    found: list[Span] = []
    for part in _PART.finditer(text):
        given = part.group().replace("\0", " ")
        content = given.encode()
        written: str = analyser().parse(given)
        places = [int(place) for place in written.split(",")[:-1]]
        if len(content) != len(given):
            character = _characters_by_byte(content)
            places = [character[place] for place in places]
        offset = part.start()
        pairs = zip(places[::2], places[1::2], strict=True)
        found += [(begin + offset, end + offset) for begin, end in pairs]
    return found


def _characters_by_byte(content: bytes) -> list[int]:
    """Return which character each byte of UTF-8, and the end, begins at."""
    number = -1
    found: list[int] = []
    for byte in content:
        number += (byte & 0xC0) != 0x80
        found.append(number)
    return [*found, number + 1]


def normalize_with_places(text: str) -> tuple[str, list[Span]]:
    """Return the NFKC form and, for each character of it, the characters of the text that it comes from."""
    pieces: list[str] = []
    origin: list[Span] = []
    begin = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and not _begins_anew(text[end]):
            continue
        pieces.append(unicodedata.normalize("NFKC", text[begin:end]))
        origin += [(begin, end)] * len(pieces[-1])
        begin = end
    return "".join(pieces), origin


@functools.cache
def _begins_anew(character: str) -> bool:
    """Whether no character before this one is joined with it or changes places with it."""
    first = unicodedata.normalize("NFKD", character)[0]
    is_jamo = "\u1160" <= first <= "\u11ff"
    return not unicodedata.combining(first) and not is_jamo and unicodedata.category(first)[0] != "M"


def dictionary() -> str:
    """Return the name and version of the dictionary."""
    return f"{DICTIONARY} {version(DICTIONARY)}"


def analyser() -> Any:
    """Return the analyser that writes begin and end of each word, in bytes."""
    return load_analyser("%ps,%pe,")


@functools.cache
def load_analyser(form: str) -> Any:
    """Return the library's analyser with its dictionary, which writes words in this form; loaded once in a
    process. Raises ConfigError where the libraries are missing.
    """
    try:
        import fugashi
        import unidic_lite
    except ImportError:
        raise ConfigError(
            "Japanese words cannot be told apart: fugashi and unidic-lite are not installed.",
            where='shards.words, or a tokenizer with "library": "mecab"',
            remedy='pip install "outlast[segment]"',
        ) from None
    # The empty type outdoes the dictionary's own.
    library: Any = fugashi
    return library.GenericTagger(f'-r /dev/null -d "{unidic_lite.DICDIR}" -O "" -F{form} -U{form}')
