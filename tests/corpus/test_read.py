"""Documents from every format, and a clear error for everything that is wrong with them."""

import gzip
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import zstandard
from hypothesis import strategies as st

from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents, split_chooser
from outlast.errors import ConfigError, CorpusError

BLOCKS = b"one\nstill one\n\n\ntwo\r\n\r\n \n"
DOCUMENTS = ["one\nstill one", "two"]


def read(config: CorpusConfig, tally: Tally | None = None, num_portions: int = 1) -> list[str]:
    tally = Tally() if tally is None else tally
    portions = plan_portions(list_corpus(config), num_portions)
    return [text for portion in portions for text in read_documents(config, portion, tally)]


def compress_frames(content: bytes) -> bytes:
    return zstandard.compress(content[:7]) + zstandard.compress(content[7:])


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.txt", bytes),
        ("a.gz", gzip.compress),
        ("a.zst", zstandard.compress),
        ("a.txt.zst", compress_frames),
    ],
)
def test_plain_and_compressed_text(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / name).write_bytes(pack(BLOCKS))
    tally = Tally()
    assert read(CorpusConfig(path=str(tmp_path)), tally) == DOCUMENTS
    assert (tally.documents, tally.text_bytes, tally.empty_documents) == (2, 16, 0)


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a.zst", zstandard.compress)])
def test_compressed_text_cut_anywhere_is_an_error(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    content = pack(b"some text " * 50)
    for length in range(1, len(content)):
        (tmp_path / name).write_bytes(content[:length])
        with pytest.raises(CorpusError, match=rf"damaged or cut short[\s\S]*{name}"):
            read(CorpusConfig(path=str(tmp_path)))


@pytest.mark.parametrize("name", ["a.gz", "a.zst"])
def test_what_is_not_compressed_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BLOCKS)
    with pytest.raises(CorpusError, match="damaged"):
        read(CorpusConfig(path=str(tmp_path)))


@pytest.mark.parametrize("documents", ["blank_line", "file"])
@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a.zst", zstandard.compress)])
def test_a_bomb_is_an_error_before_it_fills_the_memory(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], documents: Any
) -> None:
    (tmp_path / name).write_bytes(pack(b"x" * 200_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    config = CorpusConfig(path=str(tmp_path), documents=documents, max_document_bytes=1_000_000)
    with pytest.raises(CorpusError, match=r"longer than 1000000 bytes[\s\S]*corpus.max_document_bytes"):
        read(config)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@pytest.mark.parametrize("num_portions", [1, 3])
def test_a_giant_line_is_an_error_only_for_who_owns_it(tmp_path: Path, num_portions: int) -> None:
    (tmp_path / "a.txt").write_bytes(b"first\n\n" + b"x" * 300_000 + b"\n\nlast")
    config = CorpusConfig(path=str(tmp_path), max_document_bytes=1000)
    portions = plan_portions(list_corpus(config), num_portions)
    with pytest.raises(CorpusError, match="longer than 1000 bytes"):
        list(read_documents(config, portions[0], Tally()))
    if num_portions > 1:
        assert list(read_documents(config, portions[-1], Tally())) == ["last"]


@pytest.mark.parametrize("tail", [b"", b"\n", b"\r\n", b"\n\n", b"\r\n\r\nb", b"\n\nb"])
@pytest.mark.parametrize("lines", [[b"x" * 10], [b"xxxx", b"xxxxx"], [b"x"] * 5 + [b""]])
def test_a_document_of_just_the_longest_size_is_read(tmp_path: Path, tail: bytes, lines: list[bytes]) -> None:
    document = b"\n".join(line for line in lines if line)
    (tmp_path / "a.txt").write_bytes(document + tail)
    expected = [document.decode(), *(["b"] if tail.endswith(b"b") else [])]
    assert read(CorpusConfig(path=str(tmp_path), max_document_bytes=len(document))) == expected
    with pytest.raises(CorpusError, match="longer than"):
        read(CorpusConfig(path=str(tmp_path), max_document_bytes=len(document) - 1))


def test_odd_characters_are_kept(tmp_path: Path) -> None:
    text = "a\x85b\u2028d\x1ce\rf\vg"
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert read(CorpusConfig(path=str(tmp_path))) == [text]


def test_empty_documents_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": " \\n"}\n{"text": "a"}\n')
    tally = Tally()
    assert read(CorpusConfig(path=str(tmp_path), format="jsonl"), tally) == ["a"]
    assert (tally.documents, tally.empty_documents) == (1, 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"', r"not valid JSON"),
        ("[" * 100_000, r"not valid JSON"),
        ('["a"]', r"no JSON object"),
        ('{"body": "a"}', r"no field 'text'; it has 'body'[\s\S]*corpus.text_field"),
        ('{"text": null}', r"'text' is NoneType"),
        ('{"text": ["a"]}', r"'text' is list"),
        ('{"text": "\\ud83d"}', r"half of a surrogate pair"),
        ('{"text": ' + "9" * 5000 + "}", r"not valid JSON"),
    ],
)
@pytest.mark.parametrize("num_portions", [1, 3])
def test_a_wrong_json_line_is_named(tmp_path: Path, line: str, message: str, num_portions: int) -> None:
    lines = [json.dumps({"text": f"text {number}"}) for number in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:15], line, *lines[15:]]))
    where = r"a\.jsonl, byte" if "ud83d" in line else r"a\.jsonl, line 16"
    with pytest.raises(CorpusError, match=message) as caught:
        read(CorpusConfig(path=str(tmp_path), format="jsonl"), num_portions=num_portions)
    assert caught.match(where)


def test_half_a_surrogate_pair_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud83db \\ud83d\\ude00"}')
    tally = Tally()
    config = CorpusConfig(path=str(tmp_path), format="jsonl", undecodable="replace")
    assert read(config, tally) == ["a\ufffdb \U0001f600"]
    assert tally.undecodable_bytes == 1


def test_a_file_that_changed_after_it_was_listed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(BLOCKS)
    config = CorpusConfig(path=str(tmp_path))
    portions = plan_portions(list_corpus(config), 1)
    path.write_bytes(BLOCKS + b"more")
    with pytest.raises(CorpusError, match="has changed"):
        list(read_documents(config, portions[0], Tally()))
    path.unlink()
    with pytest.raises(CorpusError, match="cannot be read"):
        list(read_documents(config, portions[0], Tally()))


@pytest.mark.parametrize("moment", ["before it is read", "while it is read"])
def test_an_edit_of_the_same_length_is_an_error(tmp_path: Path, moment: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(BLOCKS)
    config = CorpusConfig(path=str(tmp_path))
    portions = plan_portions(list_corpus(config), 1)
    documents = read_documents(config, portions[0], Tally())
    if moment == "while it is read":
        next(documents)
    path.write_bytes(BLOCKS.swapcase())
    with pytest.raises(CorpusError, match=r"has changed[\s\S]*as when the corpus was listed"):
        list(documents)


def test_equal_documents_never_straddle_the_splits(tmp_path: Path) -> None:
    choose = split_chooser(CorpusConfig(validation_fraction=0.25, seed=1))
    texts = [f"document {number}".encode() for number in range(4000)]
    held_out = [text for text in texts if choose(text) == "validation"]
    assert 850 < len(held_out) < 1150
    assert [choose(text) for text in texts] == [choose(bytes(bytearray(text))) for text in texts]
    other = split_chooser(CorpusConfig(validation_fraction=0.25, seed=2))
    assert held_out != [text for text in texts if other(text) == "validation"]
    larger = split_chooser(CorpusConfig(validation_fraction=0.5, seed=1))
    assert all(larger(text) == "validation" for text in held_out)
    assert {split_chooser(CorpusConfig(validation_fraction=0))(text) for text in texts} == {"train"}


def test_parquet_by_row_groups(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [f"row {number}\r\nsecond line" for number in range(1000)]
    table = pyarrow.table({"body": [*texts, None, ""], "other": list(range(1002))})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    config = CorpusConfig(path=str(tmp_path), format="parquet", text_field="body")
    expected = [text.replace("\r\n", "\n") for text in texts]
    for num_portions in (1, 2, 5, 40):
        tally = Tally()
        assert read(config, tally, num_portions) == expected
        assert tally.empty_documents == 2
    with pytest.raises(CorpusError, match=r"no column 'text'[\s\S]*body, other"):
        list_corpus(CorpusConfig(path=str(tmp_path), format="parquet"))
    with pytest.raises(CorpusError, match=r"'other' is int64, not text"):
        list_corpus(CorpusConfig(path=str(tmp_path), format="parquet", text_field="other"))


def test_a_damaged_parquet_file_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(CorpusError, match="cannot be read"):
        list_corpus(CorpusConfig(path=str(tmp_path), format="parquet"))


def test_a_hugging_face_data_set_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    texts = [f"row {number}" for number in range(700)]
    datasets.Dataset.from_dict({"text": [*texts, None]}).save_to_disk(str(tmp_path / "set"))
    config = CorpusConfig(path=str(tmp_path / "set"), format="huggingface")
    for num_portions in (1, 3):
        tally = Tally()
        assert read(config, tally, num_portions) == texts
        assert tally.empty_documents == 1
    with pytest.raises(CorpusError, match="no field 'body'"):
        list_corpus(CorpusConfig(path=str(tmp_path / "set"), format="huggingface", text_field="body"))


@pytest.mark.parametrize(
    ("format", "module", "extra"), [("parquet", "pyarrow", "parquet"), ("huggingface", "datasets", "hub")]
)
def test_a_missing_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any, module: str, extra: str
) -> None:
    import sys

    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.parquet", None)
    with pytest.raises(CorpusError, match=rf"needs the library {module}[\s\S]*outlast\[{extra}\]"):
        list_corpus(CorpusConfig(path=str(tmp_path), format=format))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoding": "utf-9"}, "'utf-9' is no text encoding"),
        ({"encoding": "base64"}, "no text encoding"),
        ({"validation_fraction": 1.0}, "less than 1"),
        ({"format": "jsonl", "documents": "file"}, 'documents = "file"'),
        ({"path": []}, "path is empty"),
        ({"pth": "x"}, "did you mean 'path'"),
        ({"max_document_bytes": 0}, "greater than or equal to 1"),
    ],
)
def test_a_wrong_configuration_is_refused(values: dict[str, object], message: str) -> None:
    from outlast.config import build

    with pytest.raises(ConfigError, match=message):
        build(CorpusConfig, values, where="test")


LINES = st.one_of(
    st.dictionaries(st.text(), st.text() | st.none() | st.floats() | st.integers(), max_size=3).map(
        json.dumps
    ),
    st.text().map(lambda text: json.dumps({"text": text}, ensure_ascii=False)),
    st.sampled_from(
        ['{"text": "\\ud800"}', '{"text": "a", "text": "b"}', '{"x": NaN, "text": "a"}', '{"text": 1}']
    ),
    st.sampled_from(
        ['{"text": "\\ud83d\\ude00"}', '{"text": "\\u0000"}', "[" * 3000, '{"text": "a"', '"text"']
    ),
    st.sampled_from(
        ['{"text": "a\tb"}', '{"n": 123456789012345678901234567890, "text": "a"}', '{"text":\x0c"a"}']
    ),
)


@hypothesis.given(LINES.map(str.encode), st.integers(0, 60), st.binary(max_size=2))
def test_a_line_is_read_as_json_reads_it(
    tmp_path_factory: pytest.TempPathFactory, line: bytes, place: int, noise: bytes
) -> None:
    """Also where bytes in it are exchanged: a document, or an error of the same kind."""
    line = (line[:place] + noise + line[place + len(noise) :]).replace(b"\n", b" ").replace(b"\r", b" ")

    def slow() -> str | None:
        text = line.decode("utf-8", "replace").removeprefix("\ufeff")
        try:
            record: Any = json.loads(text)
        except (ValueError, RecursionError):
            return None
        found: Any = record.get("text") if isinstance(record, dict) else None
        return found if isinstance(found, str) else None

    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    path.write_bytes(line + b"\n")
    config = CorpusConfig(path=str(path), format="jsonl", encoding="utf-8", undecodable="replace")
    expected = slow()
    try:
        found = read(config)
    except CorpusError:
        found = None
    if expected is None:
        assert not found
    else:
        clean = expected.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        assert found == ([clean] if clean.strip() else [])
