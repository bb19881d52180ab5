"""Books of Aozora Bunko: the words stay, the marks go, on the library's own files."""

import re
from pathlib import Path

import pytest

from outlast.corpus.aozora import read_aozora
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents

RULE = "-" * 55
BOOK = f"""こころ
夏目漱石

{RULE}
【テキスト中に現れる記号について】

《》：ルビ
（例）私《わたくし》

［＃］：入力者注
{RULE}

［＃２字下げ］上　先生と私［＃「上　先生と私」は大見出し］

　私《わたくし》はその人を｜常に先生《せんせい》と呼んでいた。
［＃ここから２字下げ］
※［＃「口＋斗」、第3水準1-14-76］び、※［＃「言＋虚」、第4水準2-88-74］《うそ》［＃「※［＃「言＋虚」、第4水準2-88-74］」に傍点］。
※［＃「窗」の下に「心」］も※［＃丸印、U+329E、1-1］も、いろ／＼、ぱら／″＼。
［＃ここで字下げ終わり］
終



底本：「こころ」集英社文庫
入力：某
"""
TEXT = """上　先生と私

　私はその人を常に先生と呼んでいた。
叫び、譃。
〓も㊞も、いろ〳〵、ぱら〴〵。
終"""


def test_marks_are_read() -> None:
    text = TEXT.replace("叫", read_character("1-14-76")).replace("譃", read_character("2-88-74"))
    assert read_aozora(BOOK, keep_titles=False, ruby="base").strip() == text
    assert read_aozora(BOOK, keep_titles=True, ruby="base") == f"こころ\n夏目漱石\n\n\n{text}"
    kept = read_aozora(BOOK, keep_titles=False, ruby="keep")
    assert "私《わたくし》はその人を｜常に先生《せんせい》と" in kept


def read_character(cell: str) -> str:
    """By the table of the standard's own encoding form, independent of EUC."""
    plane, row, column = map(int, cell.split("-"))
    return (b"\x1b$(" + (b"O" if plane == 1 else b"P") + bytes([32 + row, 32 + column])).decode(
        "iso2022_jp_3"
    )


@pytest.mark.parametrize("note", ["※［＃x、1-99-1］", "※［＃x、2-1-99］", "※［＃x、U+110000］", "※［＃x］"])
def test_a_character_that_nothing_names_is_a_blank(note: str) -> None:
    assert read_aozora(f"t\n\na{note}b", keep_titles=False, ruby="base") == "a〓b"


def test_notes_that_are_not_closed_stay() -> None:
    assert read_aozora("t\n\na［＃b《c\nd［e］", keep_titles=False, ruby="base") == "a［＃b《c\nd［e］"


def test_a_book_of_marks_is_no_trap() -> None:
    """Rules that began anew at each mark would not end."""
    for mark in (
        "［表記について］\n",
        "［＃",
        "［＃" * 20_000 + "］" * 20_000 + "\n",
        "｜《",
        "※［＃1-",
        "《",
    ):
        text = "t\n\n" + mark * (300_000 // len(mark))
        assert len(read_aozora(text, keep_titles=False, ruby="base")) <= len(text)


def test_real_books(test_data: Path) -> None:
    folder = test_data / "text-ja-aozora-sjis"
    values = {"path": str(folder), "documents": "file", "encoding": "cp932", "validation_fraction": 0.0}
    raw = read(CorpusConfig(**values))  # pyright: ignore[reportArgumentType]
    books = read(CorpusConfig(**values, markup="aozora", keep_titles=False))  # pyright: ignore[reportArgumentType]
    assert len(books) == len(raw) == 292
    legend = re.compile("-{20,}\\s*\n【テキスト中に現れる.*?\n-{20,}", re.DOTALL)
    for book, source in zip(books, raw, strict=True):
        assert not re.search(
            "［＃|《|》|^底本：|テキスト中に現れる|このファイルは、|／＼", book, re.MULTILINE
        )
        # Each character outside of marks, head and foot is there, in its order.
        if "※" not in source and "―" not in source and "\r" not in source and legend.search(source):
            body = legend.split(source)[1].split("\n底本：")[0]
            plain = re.sub("《.*?》|｜", "", body)
            while "［＃" in plain:
                plain = re.sub("［＃[^［］]*］", "", plain)
            plain = plain.replace("／＼", "〳〵").replace("／″＼", "〴〵")
            assert book.split() == plain.split()


def read(config: CorpusConfig) -> list[str]:
    return [
        text
        for portion in plan_portions(list_corpus(config), 1)
        for text in read_documents(config, portion, Tally())
    ]
