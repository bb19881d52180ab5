"""Pairs of a data set in an object store: built there, the same bytes, streamed from there."""

from pathlib import Path

import numpy as np
import pytest

from outlast.errors import ShardError
from outlast.prepare.pairs import add_pairs
from outlast.shards import offsets as offsets_module
from outlast.shards.config import PairsConfig
from outlast.shards.manifest import read_manifest
from outlast.shards.offsets import open_offsets
from outlast.shards.verify import verify_manifest
from outlast.storage import LocalStore, open_store
from outlast.stream.loader import open_stream
from support.datasets import draw_documents, write_sentence_data
from support.s3 import S3Server

SPLITS = {"train": [draw_documents(seed, 40) for seed in range(3)]}
CONFIG = PairsConfig(lengths=(32,), num_passes=2)


@pytest.fixture
def bucket(s3_server: S3Server, s3_environment: pytest.MonkeyPatch) -> str:
    """A bucket that holds the data set."""
    url = s3_server.new_bucket()
    write_sentence_data(open_store(url), SPLITS)
    return url


def test_pairs_in_a_bucket_are_those_of_a_folder(bucket: str, tmp_path: Path) -> None:
    local, remote = str(tmp_path / "manifest.json"), f"{bucket}/manifest.json"
    write_sentence_data(LocalStore(tmp_path), SPLITS)
    for url in (local, remote):
        assert add_pairs(url, CONFIG, num_processes=1)
    store = open_store(bucket)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert store.read(path.relative_to(tmp_path).as_posix()) == path.read_bytes(), path
    assert verify_manifest(remote) == []
    found, expected = (
        next(open_stream(url, global_batch_size=16, sequence_length=32, packing="pairs"))
        for url in (remote, local)
    )
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_only_the_offsets_are_fetched(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "_RANGE_BYTES", 100)
    monkeypatch.setattr(offsets_module, "_HEAD_BYTES", 64)  # less than the header
    local = write_sentence_data(LocalStore(tmp_path), SPLITS)
    manifest, store = read_manifest(f"{bucket}/manifest.json")
    assert manifest == local
    read: list[int] = []
    read_range = store.read_range

    def counted(name: str, start: int, length: int) -> bytes:
        read.append(length)
        return read_range(name, start, length)

    monkeypatch.setattr(store, "read_range", counted)
    for entry in manifest.shards("train"):
        found, expected = open_offsets(store, entry), open_offsets(LocalStore(tmp_path), entry)
        assert np.array_equal(found.documents, expected.documents)
        assert np.array_equal(found.sentences, expected.sentences)
    tokens = 2 * manifest.num_tokens("train")
    assert sum(read) <= sum(entry.size_bytes for entry in manifest.shards("train")) - tokens


def test_a_shard_that_is_missing_there_is_named(bucket: str) -> None:
    name = "train-00001-of-00003.safetensors"
    open_store(bucket).delete(name)
    with pytest.raises(ShardError, match=rf"missing[\s\S]*{bucket}/{name}"):
        add_pairs(f"{bucket}/manifest.json", CONFIG, num_processes=1)
