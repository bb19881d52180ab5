"""The portions of a corpus together hold every document once, wherever the cuts fall."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.extent import CorpusFile
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.errors import CorpusError

LINE_ENDS = ("\n", "\r\n")
FRAGMENTS = (
    "a",
    "bc",
    " ",
    "\t",
    "日本",
    "é",
    "\n",
    "\r\n",
    "\n\n",
    "\r\n\r\n",
    "\n \n",
    "\n\n\n",
    "\r",
    "\ufeff",
)


def whole(config: CorpusConfig) -> list[str]:
    return [
        text
        for portion in plan_portions(list_corpus(config), 1)
        for text in read_documents(config, portion, Tally())
    ]


def in_portions(config: CorpusConfig, num_portions: int) -> list[str]:
    portions = plan_portions(list_corpus(config), num_portions)
    assert len(portions) == num_portions
    return [text for portion in portions for text in read_documents(config, portion, Tally())]


def blocks_by_hand(text: str) -> list[str]:
    """The definition, written another way: split at lines of nothing but ASCII white space."""
    documents: list[list[str]] = [[]]
    for line in text.removeprefix("\ufeff").split("\n") if text.removeprefix("\ufeff") else []:
        if line.strip(" \t\r\v\f"):
            documents[-1].append(line)
        else:
            documents.append([])
    joined = ["\n".join(lines).removesuffix("\r").replace("\r\n", "\n") for lines in documents]
    return [document for document in joined if document.strip()]


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    texts=st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join), min_size=1, max_size=3),
    num_portions=st.integers(1, 60),
)
def test_blocks_are_read_once_wherever_the_cuts_fall(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], num_portions: int
) -> None:
    hypothesis.assume(any(texts))
    folder = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(texts):
        (folder / f"{number}.txt").write_bytes(text.encode())
    config = CorpusConfig(path=str(folder))
    expected = [document for text in texts for document in blocks_by_hand(text)]
    # A mark that stands alone on its line is text to the reader until it is decoded.
    if not any(text.startswith("\ufeff") for text in texts):
        assert whole(config) == expected
    assert in_portions(config, num_portions) == whole(config)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    records=st.lists(st.text(alphabet="ab\n\r \u3042\U0001f600", max_size=12), min_size=1, max_size=30),
    line_end=st.sampled_from(LINE_ENDS),
    blank_lines=st.booleans(),
    num_portions=st.integers(1, 50),
)
def test_json_lines_are_read_once_wherever_the_cuts_fall(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[str],
    line_end: str,
    blank_lines: bool,
    num_portions: int,
) -> None:
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    between = line_end * (2 if blank_lines else 1)
    lines = [json.dumps({"text": text}, ensure_ascii=len(text) % 2 == 0) for text in records]
    path.write_bytes(between.join(lines).encode())
    config = CorpusConfig(path=str(path), format="jsonl")
    expected = [text.replace("\r\n", "\n") for text in records if text.strip()]
    assert in_portions(config, num_portions) == expected


def test_every_cut_of_one_text(tmp_path: Path) -> None:
    text = "\n \r\none\r\ntwo\r\n\r\n \t\r\nthree\n\n\nfour\n   five\n\t\nsix"
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    config = CorpusConfig(path=str(path))
    for num_portions in range(1, len(text) + 5):
        assert in_portions(config, num_portions) == ["one\ntwo", "three", "four\n   five", "six"]


def test_the_portions_are_even_and_keep_the_order(tmp_path: Path) -> None:
    documents = [f"document {number} " + "x" * (number % 37) for number in range(2000)]
    for part in range(4):
        (tmp_path / f"{part}.txt").write_text("\n\n".join(documents[part * 500 : (part + 1) * 500]))
    config = CorpusConfig(path=str(tmp_path))
    sizes = [
        sum(extent.size_bytes for extent in portion) for portion in plan_portions(list_corpus(config), 7)
    ]
    assert max(sizes) - min(sizes) <= 1
    assert in_portions(config, 7) == documents


def test_files_that_cannot_be_split_belong_to_one_portion(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.gz").write_bytes(gzip.compress(f"a{number}\n\nb{number}".encode(), mtime=0))
    config = CorpusConfig(path=str(tmp_path))
    portions = plan_portions(list_corpus(config), 3)
    names = [[extent.file.name for extent in portion] for portion in portions]
    assert [name for portion in names for name in portion] == [f"{number}.gz" for number in range(5)]
    assert all(names)
    assert in_portions(config, 3) == [f"{letter}{number}" for number in range(5) for letter in "ab"]
    assert in_portions(config, 50) == whole(config)


def test_whole_files_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"x = 1\r\n\r\n\r\ny = 2\n")
    (tmp_path / "b.py").write_bytes(b"")
    (tmp_path / "c.py").write_bytes(b"\xef\xbb\xbfz = 3")
    config = CorpusConfig(path=str(tmp_path), documents="file")
    tally = Tally()
    for portions in (plan_portions(list_corpus(config), count) for count in (1, 2, 9)):
        tally = Tally()
        found = [text for portion in portions for text in read_documents(config, portion, tally)]
        assert found == ["x = 1\n\n\ny = 2\n", "z = 3"]
        assert (tally.documents, tally.empty_documents, tally.text_bytes) == (2, 1, 19)


def test_utf16_is_not_split_and_reads_the_same(tmp_path: Path) -> None:
    text = "ਊ one\r\n\r\n二\n\nĊ three"  # the code units of ਊ and Ċ hold the byte of a newline
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode("utf-16"))
    config = CorpusConfig(path=str(path), encoding="utf-16")
    assert list_corpus(config)[0].num_units == 1
    assert in_portions(config, 4) == ["ਊ one", "二", "Ċ three"]


@hypothesis.given(
    sizes=st.lists(st.lists(st.integers(1, 50), max_size=5), min_size=1, max_size=8),
    num_portions=st.integers(1, 40),
)
def test_units_are_dealt_out_once_and_in_order(sizes: list[list[int]], num_portions: int) -> None:
    files = [unit_file(number, units) for number, units in enumerate(sizes)]
    portions = plan_portions(files, num_portions)
    dealt = [(e.file.name, unit) for portion in portions for e in portion for unit in range(e.start, e.end)]
    assert dealt == [(file.name, unit) for file in files for unit in range(len(file.unit_bytes))]


def unit_file(number: int, units: Sequence[int]) -> CorpusFile:
    return CorpusFile(
        name=str(number),
        path="",
        size_bytes=sum(units),
        digest="",
        encoding="",
        num_units=len(units),
        unit_bytes=tuple(units),
    )


def test_the_digest_sees_a_change_of_content_and_no_change_of_place(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a.txt").write_text("some text")
    a, b = (list_corpus(CorpusConfig(path=str(folder)))[0] for folder in (first, second))
    assert (a.name, a.digest) == (b.name, b.digest)
    (second / "a.txt").write_text("some tExt")
    assert list_corpus(CorpusConfig(path=str(second)))[0].digest != a.digest


@pytest.mark.parametrize("content", ["", None])
def test_an_empty_corpus_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_text(content)
    with pytest.raises(CorpusError, match=r"The (corpus is empty|folder holds no file)"):
        list_corpus(CorpusConfig(path=str(tmp_path)))


def test_a_recipe_without_a_corpus_is_refused() -> None:
    with pytest.raises(CorpusError, match=r"no corpus[\s\S]*corpus.path"):
        list_corpus(CorpusConfig())
