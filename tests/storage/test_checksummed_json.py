"""The sealed form of JSON: every changed byte is noticed, on one line or indented for people."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import SealError, ShardError
from outlast.storage.checksummed_json import (
    Kind,
    Layout,
    canonical,
    digest,
    encode,
    has_seal,
    parse,
    seal,
    unseal,
)

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@given(document=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()), data=st.data())
def test_a_sealed_document_notices_every_changed_byte(
    layout: Layout, document: dict[str, object], data: st.DataObject
) -> None:
    document.pop("sha256", None)
    content = seal(document, layout)
    found = unseal(content, where="", layout=layout)
    assert {key: value for key, value in found.items() if key != "sha256"} == document
    assert list(json.loads(seal(document, "indented"))) == [*document, "sha256"]
    position = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SealError):
        unseal(bytes(changed), where="", layout=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b'{"a":NaN}'])
def test_what_is_no_sealed_document_is_refused(content: bytes, layout: Layout) -> None:
    with pytest.raises(SealError):
        unseal(content, where="", layout=layout)


def test_a_layout_is_part_of_the_seal_and_the_digest_is_the_same() -> None:
    document = {"b": "é", "a": [1, 2.5]}
    line, indented = (seal(document, layout) for layout in LAYOUTS)
    assert json.loads(line)["sha256"] == json.loads(indented)["sha256"] == digest(document)
    assert indented.decode().splitlines()[1] == ' "b": "é",'
    assert not has_seal(json.loads(line), line, "indented")
    assert not has_seal(json.loads(indented), indented)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "\ud800"])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(SealError, match="not plain JSON"):
        canonical({"a": value}, "indented")


LIST = Kind("outlast-list", (1, 2), "list", "make it again", ShardError)


@pytest.mark.parametrize(
    ("change", "message", "expected", "remedy"),
    [
        (
            {"format": "outlast-other"},
            "no list: its format is 'outlast-other'",
            '"outlast-list"',
            "make it",
        ),
        ({"format": None}, "is no list: its format is None", '"outlast-list"', "make it"),
        (
            {"version": 3},
            "The list has version 3",
            "version 1 or 2",
            "newer version of this package",
        ),
        ({"version": 0}, "The list has version 0", "version 1 or 2", "make it again"),
        ({"version": "x"}, "The list has version 'x'", "version 1 or 2", "make it again"),
        ({"names": ["b"]}, "does not match the sha256 it carries", None, "make it again"),
        ({"version": 1}, "does not match the sha256 it carries", None, "make it again"),
        ({"version": 1, "names": ["b"], "sha256": None}, None, None, None),
    ],
)
def test_a_document_of_another_kind_version_or_content_is_told_apart(
    change: dict[str, object], message: str | None, expected: str | None, remedy: str
) -> None:
    content = encode(LIST, {"names": ["a"]})
    assert {**parse(content, LIST, where=""), "sha256": ""} == {"names": ["a"], "sha256": ""}
    changed = canonical({**json.loads(content), **change}, "indented")
    if message is None:
        assert parse(changed, LIST, where="")["names"] == ["b"]
        return
    with pytest.raises(ShardError, match=message) as caught:
        parse(changed, LIST, where="there")
    assert caught.value.where == "there"
    assert expected is None or expected in str(caught.value.expected)
    assert remedy in str(caught.value.remedy)


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b"[" * 100_000, b"\xff"])
def test_what_is_no_document_is_of_no_kind(content: bytes) -> None:
    with pytest.raises(ShardError, match=r"is not JSON|is no list"):
        parse(content, LIST, where="")
