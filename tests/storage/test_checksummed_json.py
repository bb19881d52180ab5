"""The sealed form of JSON: every changed byte is noticed, on one line or indented for people."""

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import SealError
from outlast.storage.checksummed_json import Layout, canonical, digest, has_seal, seal, unseal

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
