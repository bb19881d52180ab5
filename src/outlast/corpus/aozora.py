"""Aozora Bunko's text files: a book's words without the marks of its typesetting.

In: a whole file as the library distributes it, decoded. Out: the book's text, one line for each of its lines.
The marks are those of the library's manual of annotation (https://www.aozora.gr.jp/annotation/).
"""

import re
from typing import Literal

Ruby = Literal["base", "keep"]

_LEGEND = re.compile(r"^(?:-{5,}\s*\n【テキスト中に現れる記号について】|［表記について］)", re.MULTILINE)
_RULE = re.compile(r"^-{5,}[^\S\n]*\n", re.MULTILINE)
_SOURCE = re.compile(r"^底本：", re.MULTILINE)
_RUBY_BASE = re.compile(r"｜([^｜《》\n]+)《[^《》\n]*》")
_RUBY = re.compile(r"《[^《》\n]*》")
_NOTE = re.compile(r"(※?)［＃([^［］]*)］")
_LINE_OF_NOTES = re.compile(r"^[^\S\n]*(?:［＃[^［］\n]*］[^\S\n]*)+\n", re.MULTILINE)
_JIS = re.compile(r"([12])-(\d{1,2})-(\d{1,2})")
_UNICODE = re.compile(r"U\+([0-9A-Fa-f]{4,6})")
_MISSING = "〓"
_MOST_NESTED = 8
"""The library's own files have two; a bound keeps the time in proportion to the text."""


def read_aozora(text: str, *, keep_titles: bool, ruby: Ruby) -> str:
    """Return the text of a book.

    The legend of marks at its head and, from "底本：" on, the notes on its source and makers are left out.
    Notes ［＃...］ are dropped, a line of notes alone with its end. A character that Shift_JIS lacks,
    ※［＃...］, becomes the one that its note names by JIS X 0213 or Unicode, else "〓". ／＼ and ／″＼
    become the iteration marks 〳〵 and 〴〵. Latin letters whose accents are apart (〔cafe'〕) stay so.

    Args:
        keep_titles: whether title and author, the lines before the first blank one, are kept.
        ruby: "base" drops the readings 《...》 and the bars ｜ that begin their words, "keep" leaves both.
    """
    head, body = _take_apart(text.replace("\r", "\n"))  # one old file has its lines end so
    text = f"{head.strip()}\n\n{body}" if keep_titles else body
    if ruby == "base":
        text = _RUBY.sub("", _RUBY_BASE.sub(r"\1", text))
    text = _LINE_OF_NOTES.sub("", text)
    for _ in range(_MOST_NESTED):  # notes stand within notes, the inner ones first
        text, found = _NOTE.subn(_resolve, text)
        if not found:
            break
    return text.replace("／＼", "〳〵").replace("／″＼", "〴〵").strip("\n")


def _take_apart(text: str) -> tuple[str, str]:
    """Return a file's title lines and its body."""
    legend = _LEGEND.search(text)
    rule = _RULE.search(text, legend.end()) if legend else None
    if legend and rule:
        head, body = text[: legend.start()], text[rule.end() :]
    else:
        head, _, body = text.lstrip("\n").partition("\n\n")
    sources = list(_SOURCE.finditer(body))
    return head, body[: sources[-1].start()] if sources else body


def _resolve(match: re.Match[str]) -> str:
    is_character, note = match.groups()
    if not is_character:
        return ""
    named = _UNICODE.search(note)
    if named and int(named[1], 16) <= 0x10FFFF:
        return chr(int(named[1], 16))
    jis = _JIS.search(note)
    if jis:
        plane, *cell = (int(number) for number in jis.groups())
        content = (b"\x8f" if plane == 2 else b"") + bytes(0xA0 + number for number in cell if number <= 94)
        try:
            return content.decode("euc_jis_2004")
        except UnicodeDecodeError:
            return _MISSING
    return _MISSING
