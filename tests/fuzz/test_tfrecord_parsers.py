"""TFRecord files from anybody: read, or refused by a typed error, in bounded memory."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.interchange.import_tfrecord import ImportConfig, import_tfrecord
from outlast.interchange.tf_example import decode_example, kind_of, values_of
from outlast.interchange.tfrecord import Compression, frame, masked_crc, read_records
from outlast.shards.example_shard import ExampleShardWriter, read_examples
from outlast.shards.manifest import StaticExamples, TokenizerEntry
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from support.datasets import SPECIAL_IDS
from support.hostile import NOISE, accepts_or_refuses, damaged_bytes
from support.records import VOCAB_SIZE, masked_rows, to_file_content, write_bert_file, write_tokenizer_folder

KINDS: list[Compression] = ["none", "gzip", "zlib"]
FILES = [to_file_content([b"one", b"", b"three" * 30], kind) for kind in KINDS]


def read(content: bytes) -> list[bytes]:
    records = read_records(io.BytesIO(content), where="f")
    return [record.payload for record in records]


@given(NOISE | damaged_bytes(FILES[0]) | damaged_bytes(FILES[1]) | damaged_bytes(FILES[2]))
@example(b"\x1f\x8b" + bytes(20))
@example(b"\x78\x9c" + bytes(20))
@example(bytes(12))
def test_bytes_that_are_no_tfrecord(content: bytes) -> None:
    payloads = accepts_or_refuses(lambda: read(content))
    if payloads and content[:2] not in (b"\x1f\x8b", b"\x78\x9c"):
        assert b"".join(map(frame, payloads)) == content, "what is read is what is there"


@given(st.integers(0, 2**64 - 1), st.binary(max_size=40))
def test_lengths_with_right_checksums(length: int, rest: bytes) -> None:
    head = length.to_bytes(8, "little")
    content = head + masked_crc(head).to_bytes(4, "little") + rest
    accepts_or_refuses(lambda: read(content), limit_bytes=2**21)


@pytest.fixture(scope="module")
def message(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("records") / "f"
    write_bert_file(file, masked_rows(1))
    return read(file.read_bytes())[0]


@given(st.data())
def test_bytes_that_are_no_example(message: bytes, data: st.DataObject) -> None:
    content = data.draw(NOISE | damaged_bytes(message))
    features = accepts_or_refuses(lambda: decode_example(content, "f"))
    if features is not None:
        for feature in features.values():
            assert (kind_of(feature) is None) <= (len(values_of(feature)) == 0)


@settings(max_examples=60)
@given(st.data())
def test_an_import_of_records_with_something_wrong(
    message: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The framing is right, the message is not: what was accepted is a batch that cannot harm."""
    folder = tmp_path_factory.mktemp("import")
    hostile = data.draw(damaged_bytes(message))
    (folder / "f").write_bytes(to_file_content([hostile, message]))
    tokenizer = write_tokenizer_folder(folder / "tokenizer")

    def bring_in() -> dict[str, Any]:
        url = import_tfrecord(
            [str(folder / "f")],
            str(folder / "out"),
            ImportConfig(),
            tokenizer=str(tokenizer),
            num_processes=1,
        )
        config = StreamConfig(manifest=url, sequence_length=32, global_batch_size=2)
        return TokenStream(config, seed=0).examples(np.arange(2))

    batch = accepts_or_refuses(bring_in)
    if batch is not None:
        assert 0 <= batch["input_ids"].min() <= batch["input_ids"].max() < VOCAB_SIZE
        if "masked_positions" in batch:
            assert 0 <= batch["masked_positions"].min() <= batch["masked_positions"].max() < 32


EXAMPLES = StaticExamples(
    sequence_length=8, num_predictions=0, arrays=("input_ids", "attention_mask", "labels")
)
TOKENIZER = TokenizerEntry(path="t", fingerprint="f", vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Any]:
    store = LocalStore(tmp_path_factory.mktemp("shard"))
    with ExampleShardWriter(EXAMPLES, vocab_size=VOCAB_SIZE, tokenizer_fingerprint="f") as writer:
        writer.add(
            {
                "input_ids": np.arange(24).reshape(3, 8),
                "attention_mask": np.ones((3, 8), np.int8),
                "labels": np.arange(3),
            }
        )
        entry = writer.write(store, "s")
    return Path(store.url, "s").read_bytes(), entry


@given(st.data())
def test_bytes_that_are_no_example_shard(shard: tuple[bytes, Any], data: st.DataObject) -> None:
    content = data.draw(NOISE | damaged_bytes(shard[0]))
    arrays = accepts_or_refuses(lambda: read_examples(content, shard[1], EXAMPLES, TOKENIZER, where="s"))
    if arrays is not None:
        assert {name: array.shape for name, array in arrays.items()} == {
            "input_ids": (3, 8),
            "attention_mask": (3, 8),
            "labels": (3,),
        }
