"""Marks become documents and lines; no article is lost or joined to another."""

import json
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from outlast.config import build
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.markup import read_wiki40b
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.errors import ConfigError, CorpusError

ARTICLES = [
    "\n_START_ARTICLE_\nビートたけしの教科書に載らない日本人の謎\n_START_PARAGRAPH_\n「教科書には決して載らない」。"
    "_NEWLINE_新春番組。\n_START_SECTION_\n放送\n_START_PARAGRAPH_\n2008年。",
    "\n_START_ARTICLE_\nSecond\n_START_PARAGRAPH_\nOne._NEWLINE__NEWLINE_Two.",
]
WITH_TITLES = [
    "ビートたけしの教科書に載らない日本人の謎\n「教科書には決して載らない」。\n新春番組。\n放送\n2008年。",
    "Second\nOne.\nTwo.",
]
WITHOUT_TITLES = ["「教科書には決して載らない」。\n新春番組。\n2008年。", "One.\nTwo."]


def read(config: CorpusConfig, num_portions: int = 1) -> list[str]:
    portions = plan_portions(list_corpus(config), num_portions)
    return [text for portion in portions for text in read_documents(config, portion, Tally())]


def write(folder: Path, kind: str, records: list[str]) -> dict[str, Any]:
    if kind == "text":
        (folder / "a.txt").write_text("".join(records), encoding="utf-8")
    elif kind == "jsonl":
        lines = [json.dumps({"text": record}) for record in records]
        (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    elif kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"text": records}), folder / "a.parquet")
    else:
        pytest.importorskip("datasets").Dataset.from_dict({"text": records}).save_to_disk(str(folder / "set"))
        return {"path": str(folder / "set"), "format": kind, "markup": "wiki40b"}
    return {"path": str(folder), "format": kind, "markup": "wiki40b"}


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet", "huggingface"])
def test_wiki40b_in_every_format(tmp_path: Path, kind: str) -> None:
    values = write(tmp_path, kind, ARTICLES)
    assert read(build(CorpusConfig, values, where="")) == WITH_TITLES
    assert read(build(CorpusConfig, {**values, "keep_titles": False}, where="")) == WITHOUT_TITLES


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_articles_in_one_record_and_text_before_the_first_mark(tmp_path: Path, kind: str) -> None:
    config = build(CorpusConfig, write(tmp_path, kind, ["before\n\n it" + "".join(ARTICLES)]), where="")
    assert read(config) == ["before\nit", *WITH_TITLES]


def test_marks_in_running_text_are_marks() -> None:
    """As pipelines that fold all white space write them."""
    folded = " ".join("".join(ARTICLES).split())
    assert read_wiki40b(folded, keep_titles=True) == WITH_TITLES


@hypothesis.given(
    articles=st.lists(st.lists(st.sampled_from(["あ。", "b c", " "]), max_size=3), max_size=6),
    before=st.sampled_from(["", "\n", "x", "x\n\n"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    num_portions=st.integers(1, 9),
)
def test_articles_of_a_text_are_the_same_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory,
    articles: list[list[str]],
    before: str,
    line_end: str,
    num_portions: int,
) -> None:
    text = before + "".join(
        f"\n_START_ARTICLE_\nt{number}\n_START_PARAGRAPH_\n" + "_NEWLINE_".join(lines)
        for number, lines in enumerate(articles)
    )
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.txt").write_bytes((text + "\n").replace("\n", line_end).encode())
    expected = [
        "\n".join([f"t{number}", *(line for line in lines if line.strip())])
        for number, lines in enumerate(articles)
    ]
    expected = ["x", *expected] if "x" in before else expected
    config = CorpusConfig(path=str(folder), markup="wiki40b")
    assert read(config, num_portions) == expected


@pytest.mark.parametrize("line", ["x", "x\n"])
def test_a_giant_article_is_an_error_only_for_who_owns_it(tmp_path: Path, line: str) -> None:
    giant = "\n_START_ARTICLE_\n" + line * 100_000
    (tmp_path / "a.txt").write_text(ARTICLES[1] + giant + ARTICLES[1], encoding="utf-8")
    config = CorpusConfig(path=str(tmp_path), markup="wiki40b", max_document_bytes=1000)
    portions = plan_portions(list_corpus(config), 3)
    # The whole path says that it was told while the article was read, before it filled the memory.
    with pytest.raises(CorpusError, match=f"longer than 1000 bytes[\\s\\S]*{tmp_path}"):
        list(read_documents(config, portions[0], Tally()))
    assert list(read_documents(config, portions[2], Tally())) == [WITH_TITLES[1]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"markup": "wiki40b", "documents": "file"}, 'goes with documents = "blank_line"'),
        ({"markup": "aozora", "documents": "blank_line"}, 'goes with documents = "file"'),
        ({"keep_titles": False}, "keep_titles = false needs a markup"),
        ({"ruby": "keep", "markup": "wiki40b"}, 'needs markup = "aozora"'),
    ],
)
def test_settings_that_do_nothing_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(CorpusConfig, values, where="test")
