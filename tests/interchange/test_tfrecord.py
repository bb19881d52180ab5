"""TFRecord framing: every file that TensorFlow wrote is read, and whatever is wrong is found where it is."""

import gzip
import hashlib
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import ShardError
from outlast.interchange.feature_sets import Shape, to_messages
from outlast.interchange.tfrecord import (
    Compression,
    Record,
    detect_compression,
    frame,
    make_compressor,
    masked_crc,
    open_object,
    read_records,
)
from outlast.storage import open_store
from support.files import serving_folder
from support.hostile import bounded_memory
from support.records import to_file_content

PAYLOADS = st.lists(st.binary(max_size=200) | st.just(b"x" * 70_000), max_size=6)
COMPRESSIONS: list[Compression] = ["none", "gzip", "zlib"]


def read(content: bytes, compression: Compression | None = None, **limits: int) -> list[Record]:
    return list(read_records(io.BytesIO(content), where="f", compression=compression, **limits))


def files_of_tensorflow(test_data: Path) -> dict[str, dict[str, Any]]:
    listed: dict[str, dict[str, Any]] = json.loads(
        (test_data / "awkward" / "tfrecord" / "MANIFEST.json").read_text()
    )
    return listed


def test_what_tensorflow_wrote_is_read(test_data: Path) -> None:
    for name, file in files_of_tensorflow(test_data).items():
        if "records" in file:
            records = read((test_data / "awkward" / "tfrecord" / name).read_bytes())
            digest = hashlib.sha256(b"".join(record.payload for record in records)).hexdigest()
            assert (len(records), digest) == (file["records"], file["sha256_of_concatenated_payloads"]), name
            lengths = file.get("payload_lengths", [len(record.payload) for record in records])
            assert [len(record.payload) for record in records] == lengths


@pytest.mark.parametrize(
    ("name", "message", "offset"),
    [
        ("truncated-in-data", "Record 7 is cut short: 50 bytes instead of 946.", 7868),
        ("truncated-in-header", "within the header of record 7: 5 bytes instead of 12", 7868),
        ("data-bit-flip", "The data of record 7 fail their checksum.", 7868),
        ("length-bit-flip", "The length of record 7 fails its checksum.", 7868),
        ("huge-length", "The length of record 7 fails its checksum.", 7868),
        ("trailing-garbage", "within the header of record 20: 7 bytes instead of 12", 22169),
    ],
)
def test_damage_is_found_where_it_is(test_data: Path, name: str, message: str, offset: int) -> None:
    path = test_data / "awkward" / "tfrecord" / f"a-bad-{name}.tfrecord"
    expected = files_of_tensorflow(test_data)[path.name]["tensorflow_reads_records"]
    whole: list[Record] = []
    with path.open("rb") as file, bounded_memory(2**22), pytest.raises(ShardError) as caught:
        whole.extend(read_records(file, where=str(path)))
    assert len(whole) == expected
    assert message in caught.value.message
    assert caught.value.where == f"{path}, byte {offset}"


def test_every_damaged_file_has_its_case(test_data: Path) -> None:
    damaged = {name for name, file in files_of_tensorflow(test_data).items() if "derived_from" in file}
    assert len(damaged) == 6, "a new damaged file: give it a case in the test above"


@given(PAYLOADS, st.sampled_from(COMPRESSIONS), st.booleans())
def test_what_is_written_is_read(payloads: list[bytes], compression: Compression, is_told: bool) -> None:
    content = to_file_content(payloads, compression)
    records = read(content, compression if is_told else None)
    assert [record.payload for record in records] == payloads
    assert [record.number for record in records] == list(range(len(payloads)))
    sizes = [len(frame(payload)) for payload in payloads]
    assert [record.offset for record in records] == [sum(sizes[:index]) for index in range(len(payloads))]


@given(st.binary(max_size=60), st.data())
def test_every_changed_bit_and_every_cut_is_seen(payload: bytes, data: st.DataObject) -> None:
    content = bytearray(frame(payload) + frame(b"second"))
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ShardError):
        read(bytes(content), "none")
    end = data.draw(st.integers(1, len(content) - 1).filter(lambda end: end != len(frame(payload))))
    with pytest.raises(ShardError):
        read((frame(payload) + frame(b"second"))[:end], "none")


def test_the_checksum_is_the_published_one() -> None:
    # RFC 3720, B.4: CRC-32C of 32 zero bytes is 0x8A9136AA; the mask is TensorFlow's.
    crc = 0x8A9136AA
    assert masked_crc(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def test_absurd_lengths_take_no_memory() -> None:
    for length in (2**62, 2**40, 2**31 - 1):
        head = length.to_bytes(8, "little")
        content = head + masked_crc(head).to_bytes(4, "little") + b"data"
        compressor = make_compressor("gzip")
        assert compressor is not None
        for file in (content, compressor.compress(content) + compressor.flush()):
            with bounded_memory(2**22), pytest.raises(ShardError, match="Record 0"):
                read(file)


def test_a_record_may_be_limited() -> None:
    with pytest.raises(ShardError, match="claims 100 bytes, more than 99"):
        read(frame(bytes(100)), max_record_bytes=99)


def test_a_length_that_looks_like_gzip_is_no_gzip() -> None:
    payload = bytes(0x8B1F)  # its length begins with gzip's signs
    content = frame(payload)
    assert content[:2] == b"\x1f\x8b"
    assert detect_compression(content[:12]) == "none"
    assert read(content)[0].payload == payload


def test_compressed_streams_are_read_to_their_ends() -> None:
    plain = frame(b"one") + frame(b"two")
    assert len(read(gzip.compress(plain) + gzip.compress(plain))) == 4
    for whole in (gzip.compress(plain), zlib.compress(plain)):
        for end in (len(whole) - 1, len(whole) - 6, len(whole) // 2):
            with pytest.raises(ShardError, match="cut short"):
                read(whole[:end], "gzip" if whole[:1] == b"\x1f" else "zlib")
        with pytest.raises(ShardError, match="damaged"):
            read(whole + b"stray")
        flipped = bytearray(whole)
        flipped[-2] ^= 1
        with pytest.raises(ShardError, match=r"damaged .*: Error -3"):
            read(bytes(flipped))
    with pytest.raises(ShardError, match="stray bytes follow"):
        read(zlib.compress(plain) + zlib.compress(plain))


def test_a_remote_file_is_read_chunk_by_chunk(tmp_path: Path) -> None:
    payloads = [b"x" * 3000, b"", b"y" * 5_000_000, b"z"]
    (tmp_path / "f").write_bytes(to_file_content(payloads))
    with serving_folder(tmp_path) as url:
        file = open_object(open_store(url), "f")
        with file:
            records = list(read_records(file, where="f"))
    assert [record.payload for record in records] == payloads


def test_the_worked_example_of_the_format_page() -> None:
    batch = {
        "input_ids": np.array([[2, 17, 300, 3, 0]]),
        "attention_mask": np.array([[1, 1, 1, 1, 0]]),
    }
    page = (Path(__file__).parents[2] / "docs" / "formats" / "tfrecord.md").read_text(encoding="utf-8")
    lines = page.split("```hexdump\n")[1].split("\n```")[0].splitlines()
    listed = bytes.fromhex("".join(line[10:58] for line in lines))
    assert listed == frame(to_messages(batch, Shape("tokens", 5, 0))[0])
