"""Documents to sentences, every character kept.

In: the text of a document. Out: its sentences, in order; their concatenation is the document, and each holds
more than white space (a document of white space alone is one sentence). The rules, and why they are ours:
docs/design/sentences.md.
"""

import re
from collections.abc import Callable

SentenceSplitter = Callable[[str], list[str]]

_LINE = re.compile(r"\s*\S[^\n]*(?:\n(?:\s*(?:\n|\Z))?)?")

_WIDE_POINT = "．"
_WIDE = "。｡！？‼⁇⁈⁉" + _WIDE_POINT
_MARKS = ".!?…" + _WIDE


class _Brackets:
    """Some kinds of brackets, and the patterns that find them in a line.

    Attributes:
        closed_by: the closing bracket of each opening one.
        any: one bracket.
        harmless: the longest beginning of a line whose brackets all stand in pairs that hold no end of a
            sentence and no further bracket. Most lines are of this kind from beginning to end.
    """

    def __init__(self, opening: str, closing: str) -> None:
        self.closed_by = dict(zip(opening, closing, strict=True))
        brackets = re.escape(opening + closing)
        self.any = re.compile(f"[{brackets}]")
        pairs = "|".join(
            rf"{re.escape(begin)}[^{_MARKS}{brackets}]*+{re.escape(end)}"
            for begin, end in self.closed_by.items()
        )
        self.harmless = re.compile(rf"[^{brackets}]*+(?:(?:{pairs})[^{brackets}]*+)*+")


_BRACKETS = _Brackets("「『（(【〈《〔〖〘［[｛{｢〝", "」』）)】〉》〕〗〙］]｝}｣〟")
_BRACKETS_AND_QUOTES = _Brackets(
    "".join(_BRACKETS.closed_by) + "“‘", "".join(_BRACKETS.closed_by.values()) + "”’"
)
_CLOSING = re.escape("".join(_BRACKETS_AND_QUOTES.closed_by.values()))

_PLAIN_WIDE = frozenset("。！？｡")
_AFTER_MARKS = rf"\"'»{_CLOSING}"
# The first mark stands by itself: `re` looks ahead for one character, not for one that is repeated. The first
# way on is for nearly all of Japanese and Chinese, and saves taking the groups apart.
_END = re.compile(
    rf"[{_MARKS}](?:(?<=[{''.join(sorted(_PLAIN_WIDE))}])(?=[^{_MARKS}{_AFTER_MARKS}\[\s])"
    rf"|([{_MARKS}]*+)([{_AFTER_MARKS}]*+)(?:\[\d++\])*+([^\S\n]*+)(?=\S))"
)
"""Marks behind which the line goes on. No groups: a plain wide mark and nothing behind it. Else the groups
are further marks, closing brackets and quotes, white space within the line."""

_IS_WIDE = re.compile(f"[{_WIDE}]")
_IS_MARK = re.compile("[!?]")
_UNSPACED = re.compile("[\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f]")
_LATIN_OR_DIGIT = re.compile("[0-9A-Za-z０-９Ａ-Ｚａ-ｚ]")

_WORD_CHARACTERS = 24
_BEFORE_WORDS = "([{\"'“‘«"
_INITIALS = re.compile(r"(?:[^\W\d_]{1,2}\.)*+[^\W\d_]|\d{1,2}")
_ABBREVIATION = re.compile(
    "adm|approx|aug|ave|blvd|bros|bzw|ca|capt|cf|col|corp|dec|dept|dr|eds|esp|feb|figs|gen|gov|hon|inc|jan|jr|lt|"
    "ltd|maj|messrs|mme|mr|mrs|ms|mt|nov|oct|pp|pres|prof|pvt|rev|sen|sept|sgt|sr|sra|srta|st|supt|viz|vols|vs",
    re.IGNORECASE,
)
_BEFORE_NUMBER = re.compile("art|ch|ed|fig|no|nos|nr|op|p|sec|vol", re.IGNORECASE)
_ABBREVIATIONS = frozenset(_ABBREVIATION.pattern.split("|"))
_BEFORE_NUMBERS = frozenset(_BEFORE_NUMBER.pattern.split("|"))


def sentence_splitter(rule: str) -> SentenceSplitter | None:
    """Return what divides a document by a rule of ``CorpusConfig.sentences``, None where it is ``none``."""
    splitters = {"none": None, "lines": split_lines, "rules": split_sentences}
    return splitters[rule]


def split_lines(document: str) -> list[str]:
    """Return the lines of a document, each with the blank lines after it, the first with those before it."""
    return _LINE.findall(document) or [document]


def split_sentences(document: str) -> list[str]:
    """Return the sentences of a document of any language, each with the white space after it.

    The end of a line ends a sentence. Within a line, Chinese and Japanese sentences end behind 。, ！ and ？
    of either width (runs of them stay together), unless a closing bracket follows, or brackets or quotes that
    are closed in the same line enclose the place. Sentences of spaced languages end behind . ! ? … and
    closing quotes where white space and no lower-case letter follow, unless the point ends initials, a known
    abbreviation or a number of at most two digits, or brackets enclose the place.
    """
    sentences: list[str] = []
    for line in split_lines(document):
        begin = 0
        for end in _ends(line):
            sentences.append(line[begin:end])
            begin = end
        sentences.append(line[begin:])
    return sentences


def _ends(line: str) -> list[int]:
    """Return where sentences end within a line, the end of the line left out."""
    wide: list[int] = []
    spaced: list[int] = []
    for match in _END.finditer(line):
        end = match.end()
        if not match.lastindex:
            wide.append(end)
            continue
        start = match.start()
        more, closing, space = match.groups()
        marks = line[start] + more
        if marks in _PLAIN_WIDE or (marks != "." and _is_unspaced(line, start, marks, end)):
            if not closing:
                wide.append(end)
        elif (
            space
            and not line[end].islower()
            and (marks != "." or closing or not _is_abbreviation(line, start, end))
        ):
            spaced.append(end)
    if not wide:
        return _outside(spaced, line, _BRACKETS)
    wide = _outside(wide, line, _BRACKETS_AND_QUOTES)
    return sorted(wide + _outside(spaced, line, _BRACKETS)) if spaced else wide


def _is_unspaced(line: str, start: int, marks: str, end: int) -> bool:
    """Return whether marks end a sentence as in Chinese and Japanese, where no space need follow."""
    before = line[start - 1] if start else " "
    if marks == _WIDE_POINT:
        return not _LATIN_OR_DIGIT.match(before)  # "１．５" and "Ｊ．ロック"
    if not marks.isascii() and _IS_WIDE.search(marks):
        return True
    return bool(_IS_MARK.search(marks) and (_UNSPACED.match(before) or _UNSPACED.match(line, end)))


def _is_abbreviation(line: str, start: int, end: int) -> bool:
    """Return whether the full stop at ``start``, before what goes on at ``end``, ends no sentence."""
    words = line[max(start - _WORD_CHARACTERS, 0) : start + 1].rsplit(None, 1)
    word = words[-1][:-1].lstrip(_BEFORE_WORDS)
    if word.isascii() and word.isalpha():  # nearly always, and a set is faster than a pattern
        lower = word.lower()
        return line[end].isdigit() if lower in _BEFORE_NUMBERS else len(word) == 1 or lower in _ABBREVIATIONS
    if _BEFORE_NUMBER.fullmatch(word):
        return line[end].isdigit()
    return bool(_INITIALS.fullmatch(word) or _ABBREVIATION.fullmatch(word))


def _outside(ends: list[int], line: str, brackets: _Brackets) -> list[int]:
    """Return the places of a line, of those given in rising order, that lie outside all pairs of brackets."""
    if not ends:
        return ends
    harmless = brackets.harmless.match(line, 0, ends[-1])
    checked = harmless.end() if harmless else 0
    if ends[-1] <= checked:
        return ends
    beyond = (len(line), len(line))
    pairs = iter(_closed_pairs(line, checked, brackets))
    begin, close = next(pairs, beyond)
    kept: list[int] = []
    for end in ends:
        while close < end:
            begin, close = next(pairs, beyond)
        if end <= begin:
            kept.append(end)
    return kept


def _closed_pairs(line: str, start: int, brackets: _Brackets) -> list[tuple[int, int]]:
    """Return the outermost pairs of brackets that are closed within the line, in order, from ``start`` on.

    A closing bracket belongs to the nearest open one of its kind; those opened in between stay open for
    ever and enclose nothing, so a bracket that is forgotten does no harm beyond itself. Linear in the
    line's length.
    """
    pairs: list[tuple[int, int]] = []
    waiting: list[tuple[str, int]] = []
    num_waiting: dict[str, int] = {}
    for match in brackets.any.finditer(line, start):
        found = match[0]
        closing = brackets.closed_by.get(found)
        if closing is not None:
            waiting.append((closing, match.start()))
            num_waiting[closing] = num_waiting.get(closing, 0) + 1
        elif num_waiting.get(found):
            expected, begin = "", 0
            while expected != found:
                expected, begin = waiting.pop()
                num_waiting[expected] -= 1
            while pairs and pairs[-1][0] > begin:
                pairs.pop()
            pairs.append((begin, match.start()))
    return pairs
