"""Hostile input for parsers: sound documents with something wrong in them, at any place and depth.

In: a sound document. Out: hypothesis strategies over documents and bytes that are almost right, which get
deeper into a parser than noise does.
"""

import copy
import json
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from outlast.errors import OutlastError, SealError
from outlast.storage.checksummed_json import DIGEST_KEY, seal


def nested(depth: int) -> list[Any]:
    """Return a list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE_VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**64, 10**30, -(2**63), 1e308, 1.5, -0.0,
    float("nan"), float("inf"), "", "x", ".", "..", "../outside", "/etc/passwd", "a/b", "a\\b", "a\0b",
    "\ud800", "\n", "é" * 40, "x" * 5000, "9" * 5000, "0" * 64, [], {}, [[]], {"": ""}, nested(80),
    nested(400), ["x"] * 3000, {"..": 1}, {"__class__": "x"},
]  # fmt: skip
"""What no honest writer puts there."""


def resealed(document: dict[str, Any]) -> bytes:
    """Return a document with a digest that fits it, indented: an attacker can compute one, too."""
    try:
        return seal({key: value for key, value in document.items() if key != DIGEST_KEY}, "indented")
    except SealError:
        return to_json(document)


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every value in a JSON document, the document itself not counted."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        inner = list(document.items())
    elif isinstance(document, list):
        inner = list(enumerate(document))
    found: list[tuple[Any, ...]] = []
    for key, value in inner:
        found += [(*path, key), *places(value, (*path, key))]
    return found


@st.composite
def damaged(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw the document with one to three values replaced, removed, copied or added."""
    result = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        known = places(result)
        if not known:
            return result
        path = draw(st.sampled_from(known))
        parent = result
        for key in path[:-1]:
            parent = parent[key]
        hostile = copy.deepcopy(draw(st.sampled_from(HOSTILE_VALUES)))
        match draw(st.sampled_from(["replace", "replace", "remove", "copy", "add"])):
            case "replace":
                parent[path[-1]] = hostile
            case "remove":
                del parent[path[-1]]
            case "copy":
                parent[path[-1]] = copy.deepcopy(_at(result, draw(st.sampled_from(known))))
            case _:
                if isinstance(parent, dict):
                    parent["unknown"] = hostile
                else:
                    parent.append(hostile)
    return result


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            document = document[key]
        except (KeyError, IndexError, TypeError):
            return None
    return document


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw the content with bytes changed, cut out, doubled or put in."""
    result = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(result)))
        end = min(len(result), begin + draw(st.sampled_from([0, 1, 1, 2, 8, 100])))
        match draw(st.sampled_from(["put", "put", "cut", "double", "end"])):
            case "put":
                result[begin:end] = draw(
                    st.sampled_from([b"\xff" * 8, b"\0", b"\x80", b"[" * 3000, b'{"a":' * 2000, b"9" * 5000])
                    | st.binary(max_size=9)
                )
            case "cut":
                del result[begin:end]
            case "double":
                result[begin:begin] = result[begin:end]
            case _:
                del result[begin:]
    return bytes(result)


def to_json(document: Any) -> bytes:
    """Return a document as JSON, NaN and all."""
    return json.dumps(document).encode()


RAW_JSON: list[bytes] = [
    b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000,
    b'{"format": 1e999}', b'"\\ud800"', b"\xef\xbb\xbf{}", b'{"a": NaN}', b"\0" * 100,
]  # fmt: skip
"""What is hardly JSON at all."""

NOISE = st.binary(max_size=300) | st.sampled_from(RAW_JSON)


def accepts_or_refuses(parse: Callable[[], Any], *, limit_bytes: int = 64 * 2**20) -> Any:
    """Call a parser: its result, or None where it refused with a typed error. Anything else raises.

    Memory stays below the limit, whatever the input claims.
    """
    with bounded_memory(limit_bytes):
        try:
            return parse()
        except OutlastError:
            return None


@contextmanager
def bounded_memory(limit_bytes: int) -> Generator[None]:
    """Fail where Python's allocations inside the block rise above the limit."""
    nested_already = tracemalloc.is_tracing()
    if not nested_already:
        tracemalloc.start(1)
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1] - before
        assert peak < limit_bytes, f"{peak} bytes were taken"
    finally:
        if not nested_already:
            tracemalloc.stop()
