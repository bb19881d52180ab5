"""Tars, indexes, manifests, pictures from anybody: read, or refused by a typed error, in bounded memory."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.corpus.tar import read_members
from outlast.images.braces import expand_braces
from outlast.images.decode import Box, Undecodable, open_picture
from outlast.images.index import read_index
from outlast.images.manifest import parse_image_manifest, read_image_manifest
from outlast.images.records import FieldRules, Tally, read_examples
from support.hostile import (
    NOISE,
    accepts_or_refuses,
    bounded_memory,
    damaged,
    damaged_bytes,
    resealed,
)
from support.images import encoded, jpeg, picture, write_images

MAX_PIXELS = 10_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, [3, 2])
    return folder


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def read_tar(content: bytes) -> Any:
    file = io.BytesIO(content)
    members = list(read_members(file, where="x.tar"))
    return list(read_examples(file, members, FieldRules(on_bad="skip"), Tally(), where="x.tar"))


@given(data=st.data())
@settings(max_examples=250)
def test_damaged_tars(folder: Path, data: st.DataObject) -> None:
    sound = (folder / "shard-000001.tar").read_bytes()
    content = data.draw(damaged_bytes(sound) | NOISE)
    for example in accepts_or_refuses(lambda: read_tar(content)) or ():
        assert example.offset + example.size_bytes <= len(content)
        assert example.label >= 0


@given(data=st.data())
@settings(max_examples=150)
def test_headers_with_right_checksums_and_any_fields(data: st.DataObject) -> None:
    header = bytearray(512)
    for begin, length in ((0, 100), (124, 12), (156, 1), (257, 8), (345, 155)):
        field = data.draw(st.binary(max_size=length) | st.sampled_from([b"a.jpg", b"0000017", b"\x80", b"x"]))
        header[begin : begin + len(field[:length])] = field[:length]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content = bytes(header) + data.draw(st.binary(max_size=600)) + bytes(1024)
    accepts_or_refuses(lambda: read_tar(content))


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_indexes(folder: Path, data: st.DataObject) -> None:
    entry = read_image_manifest(str(folder / "manifest.json"))[0].shards("train")[0]
    content = data.draw(damaged_bytes((folder / entry.index.name).read_bytes()) | NOISE)
    index = accepts_or_refuses(lambda: read_index(content, entry, where="x"))
    if index is not None:
        assert (index.offset + index.size_bytes <= entry.size_bytes).all()


@given(data=st.data())
@settings(max_examples=150)
def test_damaged_manifests(document: dict[str, Any], data: st.DataObject) -> None:
    content = data.draw(damaged(document).map(resealed) | NOISE)
    accepts_or_refuses(lambda: parse_image_manifest(content, where="x"))


@given(data=st.data())
@settings(max_examples=200)
def test_damaged_pictures(data: st.DataObject) -> None:
    sound = data.draw(
        st.sampled_from(
            [jpeg(1), jpeg(2, progressive=True), encoded(picture(3), "PNG"), encoded(picture(4), "PPM")]
        )
    )
    content = data.draw(damaged_bytes(sound))
    with bounded_memory(64 * 2**20):
        try:
            found = open_picture(memoryview(content), max_pixels=MAX_PIXELS)
            region = found.region(Box(0, 0, found.width, found.height), found.width, found.height)
        except Undecodable:
            return
    assert region.shape == (found.height, found.width, 3)
    assert found.width * found.height <= MAX_PIXELS


@given(st.text(alphabet="{},.-0123456789ab", max_size=40))
@settings(max_examples=200)
def test_any_braces(text: str) -> None:
    names = accepts_or_refuses(lambda: expand_braces(text), limit_bytes=400 * 2**20)
    assert names is None or len(names) >= 1
