"""The Example message: what TensorFlow wrote is taken apart and put together again to the same bytes."""

import hashlib
import itertools
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ShardError
from outlast.interchange.feature_sets import FEATURE_SETS, FeatureSet, Shape, to_batch, to_messages
from outlast.interchange.tf_example import (
    Kind,
    decode_example,
    encode_rows,
    example_class,
    kind_of,
    values_of,
)
from outlast.interchange.tfrecord import read_records
from support.records import masked_rows

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


def lists(payload: bytes) -> dict[str, tuple[Kind | None, list[Any]]]:
    """Return kind and values of each feature of a message."""
    features = decode_example(payload, "f")
    return {name: (kind_of(feature), list(values_of(feature))) for name, feature in features.items()}


def test_messages_of_tensorflow_come_out_as_they_were(test_data: Path) -> None:
    for name in ("a-cifar", "a-text"):
        path = test_data / "awkward" / "tfrecord" / f"{name}.tfrecord"
        with path.open("rb") as file:
            for record in read_records(file, where=name):
                message = example_class().FromString(record.payload)
                # TensorFlow wrote these with sorted keys.
                assert message.SerializeToString(deterministic=True) == record.payload


def test_values_of_tensorflow_are_read(test_data: Path) -> None:
    path = test_data / "awkward" / "tfrecord" / "a-cifar.tfrecord"
    with path.open("rb") as file:
        first = next(read_records(file, where="f"))
    found = lists(first.payload)
    assert found["image/key"] == ("bytes", [b"000000"])
    assert found["image/shape"] == ("int64", [32, 32, 3])
    assert found["empty"] == (None, [])
    assert (found["mean"][0], len(found["mean"][1])) == ("float", 3)
    assert found["neg"] == ("int64", [-1, -(2**63), 2**63 - 1])


@pytest.mark.parametrize(
    ("features", "digest"),
    [
        ("bert", "92680e4350aa4b4191f19f8111c7e10759ea97efd86019cc0878923d883d4c67"),
        ("bigbird", "ee17bba70a3f8d0fdabf84b13a3fd7cb144d0fc74b071ef61e032e35ff5b6aee"),
        ("classifier", "476b8d5263f8d0149825a2b8d198af2f27f7968bb0642dfa9102847b818f4b61"),
        ("tokens", "81adf3495b47997ed68cc7cd70608f3be7fae5ba124601a01911118fef27d760"),
    ],
)
def test_the_bytes_of_every_set_stay_for_ever(features: FeatureSet, digest: str) -> None:
    """The digests are of what was written before a library wrote it; values of one byte to all ten."""
    batch = masked_rows(40, 64)
    batch["labels"] = np.array([(-1) ** row * 2 ** (row * 63 // 40) for row in range(40)])
    batch["example_weights"] = np.ones(40, np.int64)
    messages = to_messages(batch, Shape(features, 64, 5))
    assert hashlib.sha256(b"".join(messages)).hexdigest() == digest


def test_no_name_of_a_set_begins_another() -> None:
    """The library sorts names, but for such ones, of which it writes the longer first."""
    for columns in FEATURE_SETS.values():
        names = sorted(column.feature for column in columns)
        assert not any(later.startswith(earlier) for earlier, later in itertools.pairwise(names))


@given(st.lists(st.lists(INTEGERS, min_size=3, max_size=3), min_size=1, max_size=5))
def test_integers_go_there_and_back(rows: list[list[int]]) -> None:
    encoded = encode_rows({"a": ("int64", np.array(rows, np.int64))})
    assert encoded == [
        message(entry("a", field(3, field(1, b"".join(varint(value) for value in row))))) for row in rows
    ]
    assert [lists(content) for content in encoded] == [{"a": ("int64", row)} for row in rows]


@given(st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=1, max_size=4))
def test_floats_go_there_and_back(rows: list[list[float]]) -> None:
    values = np.array(rows, np.float32)
    encoded = encode_rows({"a": ("float", values)})
    assert encoded == [message(entry("a", field(2, field(1, struct.pack("<2f", *row))))) for row in rows]
    np.testing.assert_array_equal([lists(content)["a"][1] for content in encoded], values)


def test_rows_are_encoded_with_their_names_in_order() -> None:
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
    assert lists(message(entry("a", packed))) == {"a": ("int64", [1, 2])}
    assert lists(message(entry("a", unpacked))) == {"a": ("int64", [1, 2])}
    assert lists(message(entry("a", field(3, field(1, b"\x01") + b"\x08\x02")))) == {"a": ("int64", [1, 2])}
    float_one = struct.pack("<f", 1.0)
    assert lists(message(entry("a", field(2, b"\x0d" + float_one)))) == {"a": ("float", [1.0])}
    # A repeated key: the last. A list in two parts: joined. Another kind: the last. No list: none.
    twice = message(entry("a", packed), entry("a", field(3, field(1, b"\x09"))))
    assert lists(twice) == {"a": ("int64", [9])}
    assert lists(message(entry("a", packed, packed))) == {"a": ("int64", [1, 2, 1, 2])}
    assert lists(message(entry("a", packed, field(1, field(1, b"x"))))) == {"a": ("bytes", [b"x"])}
    assert lists(message(entry("a"))) == {"a": (None, [])}
    # Fields that nobody knows, and fields in two messages.
    unknown = varint(9 << 3) + b"\x05" + varint(8 << 3 | 1) + bytes(8) + varint(7 << 3 | 5) + bytes(4)
    both = unknown + message(entry("a", packed)) + field(2, b"x") + message(entry("b", packed))
    assert set(lists(both)) == {"a", "b"}
    assert lists(b"") == {}


@pytest.mark.parametrize(
    "payload",
    [
        b"\x0a",
        b"\x0a\x05\x0a",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff" * 11,
        b"\x00",
        b"\x0b",
        message(field(1, b"\xff\xfe")),
        message(entry("a", field(3, field(1, b"\x80")))),
        message(entry("a", field(2, field(1, b"\0\0\0")))),
        message(entry("a", field(3, field(1, b"\x80" * 10 + b"\x01")))),
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(ShardError, match=r"no tf\.train\.Example: Error parsing") as caught:
        decode_example(payload, "file, record 3")
    assert caught.value.where == "file, record 3"


@pytest.mark.parametrize(("lengths", "row"), [([2, 1], 1), ([3, 2], 0), ([0, 2], 0), ([2, 0], 1)], ids=str)
def test_records_of_another_length_are_named(lengths: list[int], row: int) -> None:
    def record(length: int) -> bytes:
        ids = np.ones((1, length), np.int64)
        return encode_rows({"input_ids": ("int64", ids), "attention_mask": ("int64", np.ones((1, 2)))})[0]

    records = [decode_example(record(length), "f") for length in lengths]
    problem = f"The feature input_ids holds {lengths[row]} values instead of 2."
    with pytest.raises(ShardError, match=problem) as caught:
        to_batch(records, Shape("tokens", 2, 0), ["first", "second"], pad_id=0)
    assert caught.value.where == ["first", "second"][row]


def test_empty_columns_are_lists_without_values() -> None:
    columns: dict[str, Any] = {"a": ("int64", np.zeros((2, 0), np.int64))}
    assert encode_rows(columns) == [message(entry("a", field(3, b"")))] * 2
    assert lists(encode_rows(columns)[0]) == {"a": ("int64", [])}


def test_the_message_is_nobody_elses() -> None:
    """A pool of our own: another library's example.proto of the same process is not met, nor ours by it."""
    from google.protobuf import descriptor_pool

    name = example_class().DESCRIPTOR.full_name
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName(name)


def test_nothing_is_loaded_before_it_is_needed() -> None:
    line = "import sys, outlast, outlast.cli.main, outlast.interchange.import_tfrecord; "
    line += "sys.exit('google.protobuf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
