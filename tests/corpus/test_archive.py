"""Tars of texts: the documents of the folder that was packed, whatever packed it and however it is cut."""

import bz2
import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import zstandard

from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_documents
from outlast.errors import CorpusError

TEXTS = {"b/two.txt": "二\n\nzwei", "a/one.txt": "one\r\nand more", "README": "read me"}
DOCUMENTS = ["二\n\nzwei", "one\nand more", "read me"]
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "x.tar": bytes,
    "x.tar.gz": gzip.compress,
    "x.TGZ": gzip.compress,
    "x.tar.bz2": bz2.compress,
    "x.tar.xz": lzma.compress,
    "x.tar.zst": zstandard.compress,
    "x.gz": gzip.compress,
    "x": bytes,
}


def pack(members: Mapping[str, str | bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, text in members.items():
            content = text if isinstance(text, bytes) else text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def read(config: CorpusConfig, tally: Tally | None = None, num_portions: int = 1) -> list[str]:
    tally = Tally() if tally is None else tally
    portions = plan_portions(list_corpus(config), num_portions)
    return [text for portion in portions for text in read_documents(config, portion, tally)]


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_each_member_is_a_document_plain_or_compressed(tmp_path: Path, name: str, format: int) -> None:
    (tmp_path / name).write_bytes(PACKED[name](pack(TEXTS, format)))
    for path in (tmp_path, tmp_path / name):
        tally = Tally()
        assert read(CorpusConfig(path=str(path)), tally) == DOCUMENTS
        assert tally.members == {"read": 3}
    blocks = CorpusConfig(path=str(tmp_path), documents="blank_line")
    assert read(blocks) == ["二", "zwei", "one\nand more", "read me"]


@pytest.mark.parametrize("num_portions", [2, 3, 7, 100])
def test_a_plain_tar_is_cut_between_members(tmp_path: Path, num_portions: int) -> None:
    texts = {f"{'folder/' * 20}{number}.txt": f"text {number} " * (number * 7) for number in range(1, 60)}
    (tmp_path / "x.tar").write_bytes(pack(texts))
    config = CorpusConfig(path=str(tmp_path / "x.tar"))
    portions = plan_portions(list_corpus(config), num_portions)
    assert sum(bool(portion) for portion in portions) > 1
    tally = Tally()
    assert [text for portion in portions for text in read_documents(config, portion, tally)] == [
        *texts.values()
    ]
    assert tally.members == {"read": 59}


def test_what_is_no_file_is_passed_over_and_counted(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for kind, name in [
            (tarfile.DIRTYPE, "a"),
            (tarfile.SYMTYPE, "a/link"),
            (tarfile.LNKTYPE, "a/hard"),
            (tarfile.CHRTYPE, "null"),
            (tarfile.FIFOTYPE, "pipe"),
        ]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        for name in ("../../etc/one.txt", "/two.txt", "./._two.txt", "./.hidden/x.txt"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    for name, content in (("x.tar", buffer.getvalue()), ("y.tar.gz", gzip.compress(buffer.getvalue()))):
        (tmp_path / name).write_bytes(content)
        tally = Tally()
        assert read(CorpusConfig(path=str(tmp_path / name)), tally) == ["abc", "abc"]
        assert tally.members == {"folders": 1, "links": 2, "devices": 2, "read": 2, "left_out": 2}


@pytest.mark.parametrize(
    ("named", "include", "exclude", "expected"),
    [
        ("", "**/*", (), ["a", "b", "c", "plain"]),
        ("", "**/*.txt", (), ["a", "c", "plain"]),
        ("", "**/*.tar", (), ["a", "b", "c"]),
        ("", "sub/**", (), ["a", "b", "c"]),
        ("", "*.txt", (), ["plain"]),
        ("", "**/*", ("**/b.md",), ["a", "c", "plain"]),
        ("", "**/*", ("sub/x.tar/deep/**",), ["a", "b", "plain"]),
        ("", "**/*", ("**/*.tar",), ["plain"]),
        ("sub/x.tar", "**/*.txt", (), ["a", "c"]),
        ("sub/x.tar", "*.txt", (), ["a"]),
        ("sub/x.tar", "**/*", ("deep/**",), ["a", "b"]),
        ("sub/*.tar", "**/*.txt", (), ["a", "c"]),
    ],
)
def test_patterns_choose_members_as_they_choose_files(
    tmp_path: Path, named: str, include: str, exclude: tuple[str, ...], expected: list[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.tar").write_bytes(pack({"a.txt": "a", "./b.md": "b", "deep/c.txt": "c"}))
    (tmp_path / "plain.txt").write_text("plain")
    config = CorpusConfig(path=str(tmp_path / named), include=include, exclude=exclude)
    assert sorted(read(config)) == expected


def test_a_tar_without_a_wanted_member_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(pack({"a.md": "a"}))
    with pytest.raises(
        CorpusError, match=r"no file that matches '\*\*/\*.txt'[\s\S]*x.tar[\s\S]*corpus.include"
    ):
        read(CorpusConfig(path=str(tmp_path / "x.tar"), include="**/*.txt"))


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_the_encoding_is_told_member_by_member(tmp_path: Path, name: str) -> None:
    text = "これは日本語の文章です。ひらがながおおい。" * 3
    encodings = ["cp932", "utf-8", "euc_jp", "utf-16"]
    members = {f"{encoding}.txt": text.encode(encoding) for encoding in encodings}
    (tmp_path / name).write_bytes(PACKED[name](pack(members)))
    tally = Tally()
    assert read(CorpusConfig(path=str(tmp_path), encoding="auto"), tally) == [text] * 4
    assert tally.encodings == dict.fromkeys(encodings, 1)
    assert read(CorpusConfig(path=str(tmp_path), encoding="cp932", include="**/cp932.txt")) == [text]
    with pytest.raises(CorpusError, match=r"no text in utf-8[\s\S]*cp932.txt"):
        read(CorpusConfig(path=str(tmp_path)))


@pytest.mark.parametrize("name", ["x.tar", "x.tar.xz"])
def test_json_lines_and_compressed_members(tmp_path: Path, name: str) -> None:
    lines = b'{"text": "a"}\n{"text": "b"}\n'
    members = {"1.jsonl": lines, "2.jsonl.gz": gzip.compress(lines), "3.jsonl.zst": zstandard.compress(lines)}
    (tmp_path / name).write_bytes(PACKED.get(name, lzma.compress)(pack(members)))
    assert read(CorpusConfig(path=str(tmp_path))) == ["a", "b"] * 3
    (tmp_path / name).write_bytes(PACKED.get(name, lzma.compress)(pack({**members, "4.txt": "text"})))
    with pytest.raises(CorpusError, match=r"several formats[\s\S]*4.txt[\s\S]*corpus.exclude"):
        read(CorpusConfig(path=str(tmp_path)))
    assert read(CorpusConfig(path=str(tmp_path), exclude=("**/4.txt",))) == ["a", "b"] * 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n\x1a\n", r"PNG image[\s\S]*x.tar: b.bin, byte 0[\s\S]*corpus.exclude"),
        (b"some\0thing", r"NUL byte[\s\S]*x.tar: b.bin, byte 4"),
        (pack({"a": "a"}), r"a tar, which cannot be read within a tar[\s\S]*b.bin"),
        (b"PAR1\x15\0", r"a Parquet file, which cannot be read within a tar[\s\S]*b.bin"),
    ],
)
def test_a_member_that_is_no_text_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.tar").write_bytes(pack({"a.txt": "a", "b.bin": content}))
    with pytest.raises(CorpusError, match=message):
        read(CorpusConfig(path=str(tmp_path / "x.tar")))
    assert read(CorpusConfig(path=str(tmp_path / "x.tar"), exclude=("**/*.bin",))) == ["a"]


def test_a_damaged_tar_is_an_error_with_its_place(tmp_path: Path) -> None:
    content = pack({"a.txt": "a" * 2000, "b.txt": "b" * 2000}, tarfile.USTAR_FORMAT)
    flipped = bytearray(content)
    flipped[2560 + 100] ^= 1
    for name, damaged, message in [
        ("cut.tar", content[:3000], r"ends within[\s\S]*cut.tar"),
        ("cut.tar.gz", gzip.compress(content[:3000]), r"ends within[\s\S]*cut.tar.gz"),
        ("header.tar", bytes(flipped), r"checksum[\s\S]*header.tar, byte 2560"),
        ("header.tgz", gzip.compress(bytes(flipped)), r"checksum[\s\S]*header.tgz, byte 2560"),
        ("cut2.tar.gz", gzip.compress(content)[:-9], r"damaged or cut short[\s\S]*cut2.tar.gz"),
        ("more.tar", content + b"more", r"behind the end[\s\S]*more.tar, byte 10240"),
        ("none.tar", b"no tar at all" * 99, r"no tar file[\s\S]*none.tar, byte 0"),
        ("empty.tar", b"", r"tar is empty[\s\S]*empty.tar"),
    ]:
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(CorpusError, match=message):
            read(CorpusConfig(path=str(tmp_path / name)))


def test_a_compressed_tar_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    for name in ("x.tar.gz", "x.tar.bz2", "x.tar.xz", "x.tar.zst"):
        content = PACKED[name](pack(TEXTS))
        for length in range(1, len(content), 3):
            (tmp_path / name).write_bytes(content[:length])
            with pytest.raises(CorpusError, match=re.escape(name)):
                read(CorpusConfig(path=str(tmp_path / name)))


def test_livedoor_is_its_articles(test_data: Path) -> None:
    path = test_data / "text-ja-livedoor" / "livedoor-train.tar.gz"
    with tarfile.open(path) as tar:
        files = {info.name: tar.extractfile(info) for info in tar if info.isfile()}
        expected = [file.read().decode() for file in files.values() if file]
    tally = Tally()
    found = read(CorpusConfig(path=str(path)), tally)
    assert found == [text.replace("\r\n", "\n") for text in expected]
    assert tally.members["read"] == len(files) > 6631
    articles = read(CorpusConfig(path=str(path), exclude=("**/LICENSE.txt", "**/README*", "**/CHANGES*")))
    assert len(articles) == 6631
