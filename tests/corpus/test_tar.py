"""Tars of every writer: read as Python's tarfile reads them, or refused with the place."""

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from outlast.corpus.tar import BLOCK, Member, read_members
from outlast.errors import ShardError

# What must be refused, and a word of the message. Everything else is read as the manifest of the data says.
REFUSED = {
    "absolute-paths": "absolute name",
    "acl_oob_read": "pax header is malformed",
    "bad-checksum": "checksum",
    "concatenated": "behind the end",
    "cpython__testtar": "a hard link",
    "cut-in-member": "within a header",
    "dotdot-paths": "`..`",
    "gtar_1.tar": "a symbolic link",
    "gtar_filename_eucjp": "compressed with compress",
    "hardlink": "a hard link",
    "links": "link",
    "long-linkname": "a symbolic link",
    "mac-1": "compressed with compress",
    "next-file-has-long": "a symbolic link",
    "path-missing": "no name",
    "pax2": "a symbolic link",
    "pax_empty_val_no_nl": "pax header is malformed",
    "pax_g_large": "claims 4294967296 bytes",
    "plexus_archiver": "behind the end",
    "sparse": "a sparse file",
    "V_negative_size": "size is",
    "zero-bytes": "empty",
    ".lz4": "compressed with lz4",
    ".tar.gz": "compressed with gzip",
    ".Z": "compressed with compress",
    ".zst": "compressed with zstd",
    "zstd_2": "within a header",
}


def members(content: bytes, where: str = "x.tar") -> list[Member]:
    return list(read_members(io.BytesIO(content), where=where))


def test_real_tars_are_read_as_they_are_or_refused(test_data: Path) -> None:
    folder = test_data / "awkward"
    tars: dict[str, Any] = json.loads((folder / "MANIFEST.json").read_text())["tars"]
    num_read = 0
    for name, expected in tars.items():
        content = (folder / name).read_bytes()
        words = [word for part, word in REFUSED.items() if part in name]
        if words:
            with pytest.raises(ShardError) as caught:
                members(content, name)
            assert any(word in caught.value.message for word in words), (name, caught.value.message)
            assert caught.value.where is not None
            assert caught.value.where.startswith(name)
            continue
        found = members(content, name)
        num_read += 1
        files = [entry for entry in expected["members_python"] if entry["type"] in ("file", "contiguous")]
        digests = [hashlib.sha256(content[m.offset : m.offset + m.size_bytes]).hexdigest() for m in found]
        # The manifest of the data lists the first 60 members.
        assert digests[: len(files)] == [entry["sha256"] for entry in files], name
        if "filename_encoding" not in name:  # tarfile reads a name that is no UTF-8 in another way
            assert [m.name for m in found[: len(files)]] == [entry["name"] for entry in files], name
    assert num_read > 30


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_and_places_of_every_format(kind: int) -> None:
    buffer = io.BytesIO()
    names = ["a.jpg", "dir/" * 30 + "b.cls", "日本.jpg"]
    if kind != tarfile.USTAR_FORMAT:
        names.append("x" * 300 + ".jpg")
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = 600 * number
            tar.addfile(info, io.BytesIO(bytes([65 + number]) * info.size))
    content = buffer.getvalue()
    found = members(content)
    assert [member.name for member in found] == names
    for number, member in enumerate(found):
        assert (
            content[member.offset : member.offset + member.size_bytes] == bytes([65 + number]) * 600 * number
        )


def header(name: str = "a.jpg", size: int = 0, kind: bytes = b"0") -> bytearray:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return bytearray(info.tobuf(tarfile.GNU_FORMAT))


def summed(block: bytearray, *, signed: bool = False) -> bytes:
    block[148:156] = b" " * 8
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in block)
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def test_sizes_in_base_256_and_checksums_of_signed_bytes() -> None:
    block = header()
    block[124:136] = b"\x80" + (700).to_bytes(11, "big")
    assert members(summed(block) + bytes(1024))[0].size_bytes == 700
    block = header("\xe9.jpg")
    assert members(summed(block, signed=True))[0].name == "\xe9.jpg"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(kind=b"Q"), "unknown type"),
        (header(kind=b"M"), "another volume"),
        (header(size=5) + b"1234", "ends within the member"),
        (header(size=2**30, kind=b"L"), "claims 1073741824 bytes"),
        (header(size=5, kind=b"x") + b"5 a=b".ljust(BLOCK, b"\0") + header(), "malformed"),
        (header(size=9, kind=b"x") + b"9 size=x\n".ljust(BLOCK, b"\0") + header(), "size="),
        (header(size=10, kind=b"g") + b"10 path=a\n".ljust(BLOCK, b"\0") + header(), "for all members"),
        (header(size=3, kind=b"L") + b"abc".ljust(BLOCK, b"\0"), "followed by no member"),
        (b"\0" * 511, "ends within a header"),
        (b"x" * 512, "no tar file"),
    ],
)
def test_damaged_and_odd_headers_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ShardError, match=message) as caught:
        members(bytes(content))
    assert caught.value.where is not None
    assert "x.tar" in caught.value.where


def test_a_pax_size_counts_and_members_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    record = b"11 size=3\n".replace(b"11", b"10")
    content = header(size=10, kind=b"x") + record.ljust(BLOCK, b"\0") + header() + b"abc".ljust(BLOCK, b"\0")
    assert members(bytes(content))[0].size_bytes == 3
    monkeypatch.setattr("outlast.corpus.tar._MOST_MEMBERS", 3)
    with pytest.raises(ShardError, match="more members"):
        members(bytes(header() * 4))


def test_links_devices_and_names_that_lead_elsewhere_may_be_passed_over() -> None:
    kinds = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a character device", b"6": "a named pipe"}
    plain = bytes(header(size=3)) + b"abc".ljust(BLOCK, b"\0")
    elsewhere = b"".join(bytes(header(name, 3)) + bytes(BLOCK) for name in ("/a.jpg", "b/../a.jpg"))
    content = b"".join(bytes(header("odd", kind=kind)) for kind in kinds) + elsewhere + plain + bytes(1024)
    told: list[tuple[int, str]] = []
    found = list(read_members(io.BytesIO(content), where="x", on_odd=lambda *what: told.append(what)))
    assert found == [Member("a.jpg", 9 * BLOCK, 3, 8 * BLOCK)], "what follows is where it is"
    assert told == [
        *((number * BLOCK, f"'odd' is {what}") for number, what in enumerate(kinds.values())),
        (4 * BLOCK, "'/a.jpg' has an absolute name"),
        (6 * BLOCK, "'b/../a.jpg' has a name with `..` in it"),
    ]


@pytest.mark.parametrize(("kind", "size"), [(b"1", 700), (b"2", 1), (b"S", 0), (b"Q", 0), (b"M", 0)])
def test_what_hides_the_next_header_is_never_passed_over(kind: bytes, size: int) -> None:
    content = bytes(header(size=size, kind=kind)) + bytes(4096)
    with pytest.raises(ShardError, match=r"The member 'a\.jpg' is "):
        list(read_members(io.BytesIO(content), where="x", on_odd=lambda *_: None))
