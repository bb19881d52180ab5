"""Manifests and shard headers from anybody: read, or refused by a typed error, in bounded memory."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.errors import ShardError
from outlast.shards.manifest import PairTableEntry, parse_manifest, read_manifest
from outlast.shards.pair_table import PairTableWriter, TableIdentity, read_pair_table
from outlast.shards.pairs import Pairs
from outlast.shards.read import read_shard_bytes
from outlast.shards.token_format import make_header, parse_header
from outlast.shards.verify import verify_manifest
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from support.datasets import write_counting_data
from support.hostile import NOISE, accepts_or_refuses, damaged, damaged_bytes, nested, resealed, to_json

LENGTHS = [[40, 9], [25]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_counting_data(LocalStore(folder), LENGTHS)
    (folder.parent / "outside").write_bytes(b"secret")
    return folder


SOUND: dict[str, Any] = {
    "format": "outlast-manifest",
    "version": 2,
    "fingerprint": "",
    "token_dtype": "uint16",
    "tokenizer": {
        "path": "tokenizer",
        "fingerprint": "f",
        "vocab_size": 60000,
        "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
    },
    "splits": {
        "train": [
            {
                "name": f"train-{number:05d}.safetensors",
                "size_bytes": 700,
                "sha256": "0" * 64,
                "num_tokens": 50,
                "num_documents": 2,
            }
            for number in range(2)
        ]
    },
    "pairs": [
        {
            "path": "pairs-16",
            "sequence_length": 16,
            "num_passes": 1,
            "short_probability": 0.1,
            "seed": 0,
            "splits": {
                "train": [
                    {
                        "name": f"train-{number:05d}.safetensors",
                        "size_bytes": 700,
                        "sha256": "0" * 64,
                        "num_examples": 3,
                        "num_random": 1,
                    }
                    for number in range(2)
                ]
            },
        }
    ],
    "provenance": {"counts": {"train": {"text_bytes": 1000}}, "undecodable_bytes": 0},
}


def sealed(document: dict[str, Any]) -> bytes:
    """Return a manifest whose fingerprint and digest fit its content."""
    identity = {key: document.get(key) for key in ("token_dtype", "tokenizer", "splits") if key in document}
    seals = {"fingerprint": digest(identity)}
    if document.get("pairs"):
        seals["pairs_fingerprint"] = digest(document["pairs"])
    return resealed({**document, **seals})


def digest(value: Any) -> str:
    try:
        text = json.dumps(value, sort_keys=True)
    except (ValueError, TypeError):
        text = ""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


@given(damaged(SOUND))
def test_manifests_with_something_wrong(document: dict[str, Any]) -> None:
    accepts_or_refuses(lambda: parse_manifest(sealed(document), where="m"))


@given(NOISE | damaged_bytes(to_json(SOUND)))
def test_bytes_that_are_no_manifest(content: bytes) -> None:
    assert accepts_or_refuses(lambda: parse_manifest(content, where="m")) is None


def test_the_sound_one_is_read() -> None:
    manifest = parse_manifest(sealed(SOUND), where="m")
    assert manifest.num_tokens("train") == 100
    assert manifest.pair_set(16).num_examples == 6


@settings(max_examples=60)
@given(st.data())
def test_a_stream_and_a_check_over_any_manifest(folder: Path, data: st.DataObject) -> None:
    """What was accepted goes on to the stream: no wrong token comes out, nor anything from outside."""
    sound = json.loads((folder / "manifest.json").read_bytes())
    document = data.draw(damaged(sound))
    url = folder / "hostile.json"
    url.write_bytes(sealed(document))
    accepts_or_refuses(lambda: verify_manifest(str(url)))
    config = StreamConfig(manifest=str(url), global_batch_size=2, sequence_length=16)
    batch = accepts_or_refuses(lambda: TokenStream(config, seed=1).batch(0), limit_bytes=200 * 2**20)
    assert batch is None or batch["input_ids"].max() < 60_000


@pytest.mark.parametrize("name", [".", "..", "../outside", "/etc/passwd", "a\0b", "", "a/b", "x" * 5000])
def test_a_shard_s_name_stays_in_the_folder(folder: Path, name: str) -> None:
    document = json.loads((folder / "manifest.json").read_bytes())
    document["splits"]["train"][0]["name"] = name
    url = folder / "hostile.json"
    url.write_bytes(sealed(document))
    with pytest.raises(ShardError):
        read_manifest(str(url))


@pytest.mark.parametrize("path", ["..", "../outside", "/etc", "a\0b", ".", ""])
def test_a_tokenizer_s_folder_stays_beside_the_manifest(folder: Path, path: str) -> None:
    document = json.loads((folder / "manifest.json").read_bytes())
    document["tokenizer"]["path"] = path
    url = folder / "hostile.json"
    url.write_bytes(sealed(document))
    with pytest.raises(ShardError):
        read_manifest(str(url))


HEADER = make_header(
    num_tokens=50, num_documents=2, vocab_size=60_000, separator_id=3, tokenizer_fingerprint="f"
)
BODY = bytes(24 + 100)


@given(NOISE | damaged_bytes(HEADER + BODY) | damaged_bytes(HEADER))
@example(b"\xff" * 8)
@example((2**63).to_bytes(8, "little") + b"{}")
@example((100_000).to_bytes(8, "little") + b"[" * 100_000)
def test_bytes_that_are_no_shard(content: bytes) -> None:
    accepts_or_refuses(lambda: read_shard_bytes(content, where="s"))
    accepts_or_refuses(lambda: parse_header(content, file_size=len(content), where="s"))


@given(damaged(json.loads(HEADER[8:])))
def test_headers_with_something_wrong(header: dict[str, Any]) -> None:
    text = to_json(header)
    content = len(text).to_bytes(8, "little") + text + BODY
    accepts_or_refuses(lambda: read_shard_bytes(content, where="s"))


TABLE = TableIdentity(
    data="f", split="train", shard=0, sequence_length=16, num_passes=1, short_probability=0.1, seed=0
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, PairTableEntry]:
    folder = tmp_path_factory.mktemp("table")
    with PairTableWriter(TABLE) as writer:
        columns = ([0, 9], [4, 5], [0, 1], [4, 0], [3, 8], [0, 1])
        writer.add(Pairs(*map(np.array, columns)))
        writer.end_pass()
        entry = writer.write(LocalStore(folder), "t.safetensors")
    return (folder / "t.safetensors").read_bytes(), entry


@given(st.data())
def test_bytes_that_are_no_pair_table(table: tuple[bytes, PairTableEntry], data: st.DataObject) -> None:
    """What is accepted can be followed: no row leads out of its shard."""
    content, entry = table
    hostile = data.draw(NOISE | damaged_bytes(content))
    pairs = accepts_or_refuses(
        lambda: read_pair_table(hostile, entry, identity=TABLE, shard_tokens=(50, 30), where="t")
    )
    if pairs is not None:
        ends = pairs.second_begin.astype(int) + pairs.second_length
        assert (ends <= np.array((50, 30))[pairs.second_shard]).all()
        assert (pairs.first_begin.astype(int) + pairs.first_length <= 50).all()


@pytest.mark.parametrize("depth", [100, 300, 900, 5000, 100_000])
def test_deep_json_is_refused(depth: int) -> None:
    deep = to_json({"provenance": 0})[:-2] + b"[" * depth + b"]" * depth + b"}"
    accepts_or_refuses(lambda: parse_manifest(deep, where="m"))
    document = {**SOUND, "provenance": {"a": nested(min(depth, 900))}}
    accepts_or_refuses(lambda: parse_manifest(sealed(document), where="m"))
