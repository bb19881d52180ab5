"""What a file is read as: told by its name and its first bytes, or refused; never one format for another."""

import gzip
import json
import logging
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.formats import describe_corpus
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.errors import CorpusError

LINES = b'{"text": "a"}\n{"text": "b"}\n'


def read(config: CorpusConfig, tally: Tally | None = None) -> list[str]:
    tally = Tally() if tally is None else tally
    [portion] = plan_portions(list_corpus(config), 1)
    return list(read_documents(config, portion, tally))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", LINES, ["a", "b"]),
        ("a.ndjson", LINES, ["a", "b"]),
        ("a.jsonl.gz", gzip.compress(LINES, mtime=0), ["a", "b"]),
        ("a.json", LINES, ["a", "b"]),
        ("a.json.gz", gzip.compress(LINES, mtime=0), ["a", "b"]),
        ("part-00000", LINES, ["a", "b"]),
        ("a.txt", b"\xef\xbb\xbf" + LINES, ["a", "b"]),
        ("a", json.dumps({"text": "long " * 9000}).encode(), ["long " * 9000]),
        ("a.txt", b"{a}\n\nb", ["{a}", "b"]),
        ("a.txt", b'{"a"}: no object\n', ['{"a"}: no object']),
        ("a.md", b"text", ["text"]),
        ("a.txt", "text".encode("utf-16"), ["text"]),
    ],
)
def test_text_and_json_lines_are_told_apart(
    tmp_path: Path, name: str, content: bytes, expected: list[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert read(CorpusConfig(path=str(tmp_path), encoding="auto")) == expected


def test_parquet_and_saved_data_sets_are_told(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    datasets = pytest.importorskip("datasets")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", "b\0"]}), tmp_path / "a.bin")
    assert read(CorpusConfig(path=str(tmp_path / "a.bin"))) == ["a", "b\0"]
    saved = datasets.Dataset.from_dict({"text": ["c"]})
    saved.save_to_disk(str(tmp_path / "set"))
    datasets.DatasetDict({"train": saved}).save_to_disk(str(tmp_path / "sets"))
    both = CorpusConfig(path=(str(tmp_path / "set"), str(tmp_path / "sets")))
    assert read(both) == ["c", "c"]
    assert describe_corpus(list_corpus(both)) == "2 data sets of the library datasets"
    for wrong in ({"format": "text"}, {"path": (str(tmp_path / "set"), str(tmp_path / "a.bin"))}):
        values: Any = {"path": str(tmp_path / "set"), **wrong}
        with pytest.raises(CorpusError, match=r"save_to_disk[\s\S]*corpus.format = \"huggingface\""):
            list_corpus(CorpusConfig(**values))


def sqlite(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("create table a (b)")
    connection.commit()
    connection.close()


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "text")


def safetensors(path: Path) -> None:
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"a")


@pytest.mark.parametrize("format", ["auto", "text", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-8", "auto", "cp932"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (sqlite, r"an SQLite database[\s\S]*x.txt, byte 0"),
        (zipped, r"a zip archive[\s\S]*x.txt, byte 0[\s\S]*unpack it"),
        (safetensors, r"a safetensors file[\s\S]*x.txt, byte 0"),
        (lambda path: path.write_bytes(gzip.compress(b"a", mtime=0)), r"compressed with gzip[\s\S]*\.gz"),
        (lambda path: path.write_bytes(b"%PDF-1.7\n%\xe2\xe3"), r"a PDF document[\s\S]*x.txt"),
        (lambda path: path.write_bytes(b"\xff\xd8\xff\xe0"), r"a JPEG image"),
    ],
)
def test_what_is_binary_is_named_before_anything_is_built(
    tmp_path: Path, make: Any, message: str, format: Any, encoding: str
) -> None:
    make(tmp_path / "x.txt")
    with pytest.raises(CorpusError, match=message):
        list_corpus(CorpusConfig(path=str(tmp_path), format=format, encoding=encoding))


@pytest.mark.parametrize("documents", ["blank_line", "file"])
@pytest.mark.parametrize(
    ("encoding", "place", "width"),
    [("utf-8", 20_003, 1), ("cp932", 20_003, 1), ("utf-16-le", 40_006, 2), ("utf-16", 40_008, 2)],
)
def test_a_nul_byte_is_refused_with_its_place_or_replaced_and_counted(
    tmp_path: Path, encoding: str, place: int, width: int, documents: Any
) -> None:
    (tmp_path / "x.txt").write_bytes(("a" * 20_000 + "\nbc\0d").encode(encoding))
    config = CorpusConfig(path=str(tmp_path), encoding=encoding, documents=documents)
    with pytest.raises(CorpusError, match=rf"NUL byte[\s\S]*x.txt, byte {place}\n[\s\S]*corpus.exclude"):
        read(config)
    tally = Tally()
    replaced = CorpusConfig(path=str(tmp_path), encoding=encoding, documents=documents, undecodable="replace")
    assert read(replaced, tally) == ["a" * 20_000 + "\nbc\ufffdd"]
    assert [tuple(found) for found in tally.undecodable] == [("x.txt", place, width)]


def test_a_nul_that_json_spells_out_is_text(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a\\u0000b"}\n')
    assert read(CorpusConfig(path=str(tmp_path))) == ["a\0b"]


def test_utf16_read_as_utf8_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("text".encode("utf-16"))
    with pytest.raises(CorpusError, match=r"text in UTF-16, and is read as utf-8[\s\S]*\"auto\""):
        list_corpus(CorpusConfig(path=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\na,1\n", "a table of separated values"),
        ("a.json", b'[\n {"text": "a"}\n]', "a JSON document that is no JSON lines"),
        ("a.xml", b'<mediawiki xmlns="x">', "a dump of MediaWiki"),
    ],
)
def test_text_in_which_the_text_is_not_all_is_asked_about(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=rf'{message}[\s\S]*{name}[\s\S]*corpus.format = "text"'):
        list_corpus(CorpusConfig(path=str(tmp_path)))
    assert read(CorpusConfig(path=str(tmp_path), format="text")) == [content.decode().rstrip("\n")]
    assert read(CorpusConfig(path=str(tmp_path), documents="file"))


def test_formats_are_not_mixed_within_a_path_but_between_paths(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "README.md").write_text("read me")
    (tmp_path / "empty.txt").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"several formats: text: README.md; JSON lines: a.jsonl"):
        list_corpus(CorpusConfig(path=str(tmp_path)))
    paths = (str(tmp_path / "a.jsonl"), str(tmp_path / "README.md"))
    config = CorpusConfig(path=paths)
    assert read(config) == ["a", "b", "read me"]
    said = describe_corpus(list_corpus(config))
    assert said == "1 file of JSON lines; 1 file of text (documents between blank lines)"


@pytest.mark.parametrize("values", [{"format": "text"}, {"documents": "file"}])
def test_json_lines_read_as_text_are_warned_of(
    tmp_path: Path, values: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    with caplog.at_level(logging.WARNING, "outlast"):
        assert read(CorpusConfig(path=str(tmp_path), **values)) == [LINES.decode().strip()] or values
    assert "a.jsonl: its lines are JSON objects" in caplog.text
    caplog.clear()
    read(CorpusConfig(path=str(tmp_path), format="jsonl"))
    assert not caplog.text


@pytest.mark.parametrize(
    ("record", "nearest"),
    [
        ({"id": "1", "texts": "a", "title": "long title"}, "texts"),
        ({"id": "1", "body": "a long text", "url": "http"}, "body"),
        ({"id": 1, "content": "a"}, "content"),
    ],
)
def test_another_field_is_suggested(tmp_path: Path, record: dict[str, Any], nearest: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    fields = ", ".join(map(repr, record))
    message = rf"no field 'text'; it has {fields}\.[\s\S]*set corpus.text_field = \"{nearest}\""
    with pytest.raises(CorpusError, match=message):
        read(CorpusConfig(path=str(tmp_path)))
