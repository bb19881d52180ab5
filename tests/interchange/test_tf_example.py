"""The Example message: what TensorFlow wrote is taken apart and put together again to the same bytes."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ShardError
from outlast.interchange.tf_example import (
    Feature,
    RowError,
    count_values,
    decode_example,
    encode_example,
    encode_rows,
    pack_floats,
    pack_integers,
    unpack_floats,
    unpack_integers,
)
from outlast.interchange.tfrecord import read_records

INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)


def varint(number: int) -> bytes:
    """One integer as a protocol buffer writes it: 7 bits a byte, the lowest first."""
    number %= 2**64
    content = b""
    while number >= 128:
        content, number = content + bytes([number % 128 + 128]), number // 128
    return content + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def message(*entries: bytes) -> bytes:
    return field(1, b"".join(field(1, entry) for entry in entries))


def entry(name: str, *lists: bytes) -> bytes:
    return field(1, name.encode()) + b"".join(field(2, content) for content in lists)


def test_messages_of_tensorflow_come_out_as_they_were(test_data: Path) -> None:
    for name in ("a-cifar", "a-text"):
        path = test_data / "awkward" / "tfrecord" / f"{name}.tfrecord"
        with path.open("rb") as file:
            for record in read_records(file, where=name):
                features = decode_example(record.payload, name)
                # TensorFlow wrote these with sorted keys.
                assert encode_example(features) == record.payload


def test_values_of_tensorflow_are_read(test_data: Path) -> None:
    path = test_data / "awkward" / "tfrecord" / "a-cifar.tfrecord"
    with path.open("rb") as file:
        first = next(read_records(file, where="f"))
    features = decode_example(first.payload, "f")
    assert features["image/key"] == Feature("bytes", [b"000000"])
    assert unpack_integers([bytes_of(features["image/shape"])], 3).tolist() == [[32, 32, 3]]
    assert features["empty"].kind is None
    assert count_values(features["mean"]) == 3
    assert unpack_integers([bytes_of(features["neg"])], 3).tolist() == [[-1, -(2**63), 2**63 - 1]]


def bytes_of(feature: Feature) -> bytes:
    assert isinstance(feature.content, bytes)
    return feature.content


@given(st.lists(st.lists(INTEGERS, min_size=3, max_size=3), max_size=5))
def test_integers_go_there_and_back(rows: list[list[int]]) -> None:
    values = np.array(rows, np.int64).reshape(len(rows), 3)
    packed = pack_integers(values)
    assert packed == [b"".join(varint(value) for value in row) for row in rows]
    np.testing.assert_array_equal(unpack_integers(packed, 3), values)


@given(st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), max_size=4))
def test_floats_go_there_and_back(rows: list[list[float]]) -> None:
    values = np.array(rows, np.float32).reshape(len(rows), 2)
    packed = pack_floats(values)
    assert packed == [struct.pack("<2f", *row) for row in rows]
    np.testing.assert_array_equal(unpack_floats(packed, 2), values)


@given(
    st.dictionaries(
        st.text(max_size=200),
        st.lists(INTEGERS, max_size=40).map(
            lambda values: Feature("int64", b"".join(varint(value) for value in values))
        )
        | st.lists(st.binary(max_size=150), max_size=4).map(lambda texts: Feature("bytes", texts))
        | st.binary(max_size=160).map(lambda content: Feature("float", content[: len(content) // 4 * 4])),
        max_size=6,
    )
)
def test_any_features_go_there_and_back(features: dict[str, Feature]) -> None:
    encoded = encode_example(features)
    assert decode_example(encoded, "f") == features
    assert encode_example(dict(reversed(features.items()))) == encoded


def test_rows_are_encoded_as_single_messages_are() -> None:
    ids = np.array([[1, 300, -1], [5, 6, 7]])
    weights = np.array([[1.0, 0.5], [0.0, 2.0]], np.float32)
    rows = encode_rows({"ids": ("int64", ids), "a": ("float", weights)})
    for row, encoded in enumerate(rows):
        integers = b"".join(varint(int(value)) for value in ids[row])
        floats = struct.pack("<2f", *weights[row])
        assert encoded == message(
            entry("a", field(2, field(1, floats))), entry("ids", field(3, field(1, integers)))
        )


def test_what_other_writers_may_do_is_read() -> None:
    packed = field(3, field(1, b"\x01\x02"))
    unpacked = field(3, b"\x08\x01" + b"\x08\x02")
    assert decode_example(message(entry("a", packed)), "f") == {"a": Feature("int64", b"\x01\x02")}
    assert decode_example(message(entry("a", unpacked)), "f") == {"a": Feature("int64", b"\x01\x02")}
    assert decode_example(message(entry("a", field(3, field(1, b"\x01") + b"\x08\x02"))), "f") == {
        "a": Feature("int64", b"\x01\x02")
    }
    float_one = struct.pack("<f", 1.0)
    assert decode_example(message(entry("a", field(2, b"\x0d" + float_one))), "f") == {
        "a": Feature("float", float_one)
    }
    # A repeated key: the last. A list in two parts: joined. Another kind: the last. No list: none.
    twice = message(entry("a", packed), entry("a", field(3, field(1, b"\x09"))))
    assert decode_example(twice, "f") == {"a": Feature("int64", b"\x09")}
    assert decode_example(message(entry("a", packed, packed)), "f")["a"].content == b"\x01\x02\x01\x02"
    assert decode_example(message(entry("a", packed, field(1, field(1, b"x")))), "f") == {
        "a": Feature("bytes", [b"x"])
    }
    assert decode_example(message(entry("a")), "f") == {"a": Feature(None, b"")}
    # Fields that nobody knows, and fields in two messages.
    unknown = varint(9 << 3) + b"\x05" + varint(8 << 3 | 1) + bytes(8) + varint(7 << 3 | 5) + bytes(4)
    both = unknown + message(entry("a", packed)) + field(2, b"x") + message(entry("b", packed))
    assert set(decode_example(both, "f")) == {"a", "b"}
    assert decode_example(b"", "f") == {}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x0a", "cut short"),
        (b"\x0a\x05\x0a", "cut short"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "cut short"),
        (b"\xff" * 11, "more than 10 bytes"),
        (b"\x00", "field number 0"),
        (b"\x0b", "wire type 3"),
        (message(field(1, b"\xff\xfe")), "utf-8"),
        (message(entry("a", field(3, field(1, b"\x80")))), "ends within a value"),
        (message(entry("a", field(2, field(1, b"\0\0\0")))), "ends within a value"),
    ],
)
def test_what_is_no_message_is_refused(payload: bytes, reason: str) -> None:
    with pytest.raises(ShardError, match=reason) as caught:
        decode_example(payload, "file, record 3")
    assert caught.value.where == "file, record 3"


@pytest.mark.parametrize(
    ("rows", "row", "reason"),
    [
        ([b"\x01\x02", b"\x01"], 1, "1 values instead of 2"),
        ([b"\x01\x02\x03", b"\x01\x02"], 0, "3 values instead of 2"),
        ([b"", b"\x01\x02"], 0, "0 values instead of 2"),
        ([b"\x01\x02", b"\x01\x02\x80"], 1, "2 values instead of 2"),
        ([b"\x01\x02", b"\x01" + b"\x80" * 10 + b"\x01"], 1, "an integer of more than 10 bytes"),
    ],
)
def test_rows_of_another_length_are_named(rows: list[bytes], row: int, reason: str) -> None:
    with pytest.raises(RowError, match=reason) as caught:
        unpack_integers(rows, 2)
    assert caught.value.row == row


def test_floats_of_another_length_are_named() -> None:
    with pytest.raises(RowError) as caught:
        unpack_floats([bytes(8), bytes(12)], 2)
    assert caught.value.row == 1


def test_empty_columns_are_lists_without_values() -> None:
    columns: dict[str, Any] = {"a": ("int64", np.zeros((2, 0), np.int64))}
    assert encode_rows(columns) == [message(entry("a", field(3, b"")))] * 2
