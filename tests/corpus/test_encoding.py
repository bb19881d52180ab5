"""Bytes become text, and every byte that does not is told by file and offset."""

import gzip
import io
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import MAX_LISTED, Decoder, Tally, detect
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.errors import CorpusError

TEXTS = {
    "shift_jis": "吾輩は猫である。\n名前はまだ無い。\n\nどこで生れたかとんと見当がつかぬ。",
    "euc_jp": "吾輩は猫である。\n\n名前はまだ無い。",
    "gb18030": "白日依山尽，\n黄河入海流。\n\n欲穷千里目",
    "utf-16": "a ਊ b\n\nĊ c",
    "utf-32": "a ਊ b\n\nĊ c",
    "utf-16-le": "plain\n\nĊ text",
    "iso2022_jp": "吾輩は猫\n\nである",
    "latin-1": "naïve café\n\nÜber",
    "cp1252": "“quoted”\n\n–",
    "utf-8-sig": "marked\n\ntext",
}


def read(config: CorpusConfig, tally: Tally | None = None, num_portions: int = 1) -> list[str]:
    tally = Tally() if tally is None else tally
    portions = plan_portions(list_corpus(config), num_portions)
    return [text for portion in portions for text in read_documents(config, portion, tally)]


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("num_portions", [1, 4])
def test_every_kind_of_encoding_is_read(tmp_path: Path, encoding: str, num_portions: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(TEXTS[encoding].encode(encoding))
    expected = TEXTS[encoding].split("\n\n")
    assert read(CorpusConfig(path=str(path), encoding=encoding), num_portions=num_portions) == expected


@pytest.mark.parametrize(
    ("encoding", "content", "places"),
    [
        ("utf-8", b"ab\n\nc\xffd\xe3\x81 e", [(5, 1), (7, 2)]),
        ("ascii", b"ab\n\ncaf\xe9", [(7, 1)]),
        ("cp1252", b"ab\n\n\x81", [(4, 1)]),
        ("utf-16-le", "ab\n\nc".encode("utf-16-le") + b"\x00\xd8" + "d".encode("utf-16-le"), [(10, 2)]),
        ("shift_jis", "猫\n\n".encode("shift_jis") + b"\xfda\x82", [(4, 1), (6, 1)]),
        ("utf-16-le", "a".encode("utf-16-le") * 40_000 + b"\x00\xd8b\x00\x41", [(80_000, 2), (80_004, 1)]),
    ],
)
def test_undecodable_bytes_are_placed(
    tmp_path: Path, encoding: str, content: bytes, places: list[tuple[int, int]]
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    tally = Tally()
    text = "".join(read(CorpusConfig(path=str(path), encoding=encoding, undecodable="replace"), tally))
    assert [(place.offset, place.num_bytes) for place in tally.undecodable] == places
    assert {place.file for place in tally.undecodable} == {"a.txt"}
    assert tally.undecodable_bytes == sum(count for _, count in places)
    assert text.count("\ufffd") == len(places)
    with pytest.raises(CorpusError, match=rf"no text in {encoding}, at byte {places[0][0]}[\s\S]*a.txt"):
        read(CorpusConfig(path=str(path), encoding=encoding))


def test_the_list_of_places_is_bounded_and_the_count_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff" * 5000 + b"\n\n" + b"\xfe" * 5000)
    tally = Tally()
    read(CorpusConfig(path=str(path), undecodable="replace"), tally)
    assert len(tally.undecodable) == MAX_LISTED
    assert tally.undecodable_bytes == 10_000


@hypothesis.given(
    content=st.binary(max_size=80), encoding=st.sampled_from(["utf-8", "shift_jis", "utf-16-le", "euc_kr"])
)
def test_a_stream_decodes_as_the_codec_does(content: bytes, encoding: str) -> None:
    tally = Tally()
    stream = Decoder("a", encoding, "replace", tally).stream(io.BytesIO(content))
    expected = content.decode(encoding, "replace").replace("\0", "\ufffd")
    assert stream.read().decode("utf-8", "surrogatepass") == expected
    assert all(0 <= place.offset < len(content) for place in tally.undecodable)


@pytest.mark.parametrize("encoding", ["shift_jis", "euc_jp", "gb18030", "utf-16", "utf-32", "utf-8-sig"])
def test_an_encoding_is_detected(encoding: str) -> None:
    text = TEXTS[encoding] * 20
    name = detect(io.BytesIO(text.encode(encoding)), where="a")
    assert text.encode(encoding).decode(name).lstrip("\ufeff") == text


def test_utf16_without_its_mark_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("text".encode("utf-16-le"))
    with pytest.raises(CorpusError, match=r"BOM[\s\S]*a.txt[\s\S]*utf-16-le"):
        read(CorpusConfig(path=str(tmp_path), encoding="utf-16"))


def test_utf8_with_a_flaw_is_still_utf8() -> None:
    content = ("名前はまだ無い。" * 20).encode() + b"\xff"
    assert detect(io.BytesIO(content), where="a") == "utf-8"


@pytest.mark.parametrize("content", [bytes(range(256)) * 40, b"\0" * 1000, b""])
def test_noise_is_refused_or_taken_for_some_encoding(content: bytes) -> None:
    try:
        encoding = detect(io.BytesIO(content), where="noise")
    except CorpusError:
        return
    content.decode(encoding, "replace")


def test_a_book_in_latin_1_is_detected_and_read(test_data: Path) -> None:
    folder = test_data / "text-en-gutenberg"
    latin = read(CorpusConfig(path=str(folder / "1661-8.txt"), encoding="iso-8859-1"))
    assert any("é" in document for document in latin)
    assert read(CorpusConfig(path=str(folder / "1661-8.txt"), encoding="auto")) == latin
    with pytest.raises(CorpusError, match=r"no text in utf-8, at byte \d+[\s\S]*1661-8.txt[\s\S]*auto"):
        read(CorpusConfig(path=str(folder / "1661-8.txt")))


def test_aozora_books_are_detected_as_shift_jis(test_data: Path) -> None:
    paths = sorted((test_data / "text-ja-aozora-sjis").rglob("*.txt"))[:10]
    assert paths
    for path in paths:
        documents = read(CorpusConfig(path=str(path), encoding="auto", documents="file"))
        assert documents == [path.read_bytes().decode("cp932").replace("\r\n", "\n")]


def test_the_utf8_stress_test_reads_as_python_reads_it(test_data: Path) -> None:
    path = test_data / "awkward" / "text" / "kuhn__UTF-8-test.txt"
    config = CorpusConfig(path=str(path), documents="file", undecodable="replace")
    expected = path.read_bytes().decode("utf-8", "replace")
    assert read(config) == [expected.replace("\r\n", "\n")]


def test_samples_in_many_languages_are_detected(test_data: Path) -> None:
    paths = sorted((test_data / "awkward" / "text").glob("charset_normalizer__*"))
    assert paths
    for path in paths:
        config = CorpusConfig(path=str(path), encoding="auto", undecodable="replace")
        tally = Tally()
        assert read(config, tally)
        assert tally.undecodable_bytes * 100 < path.stat().st_size


def test_compressed_text_gives_offsets_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"ab\n\nc\xff"))
    with pytest.raises(CorpusError, match="at byte 5"):
        read(CorpusConfig(path=str(path)))
