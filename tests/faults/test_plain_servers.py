"""Servers that give whole files whatever is asked: each crosses the network once, not once for each part."""

import errno
import json
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from outlast.corpus.config import CorpusConfig
from outlast.images.import_tars import import_tars
from outlast.images.manifest import read_image_manifest
from outlast.images.records import FieldRules
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.storage import LocalStore, Store, fetched, http, open_store
from outlast.storage.http import HttpStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.stream.remote import ranges
from outlast.tokenizer.config import TokenizerConfig
from support.canaries import files_of
from support.datasets import write_counting_data
from support.faults import FaultyProxy
from support.files import counting, serving_folder
from support.images import write_images

PROBES = 1
"""Requests that find out whether a server gives ranges."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, ranges that are small beside the files, and no patience."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(ranges, "RANGE_BYTES", 512)
    monkeypatch.setattr(http, "_SKIP_BYTES", 256)
    monkeypatch.setattr(Store, "first_pause_seconds", 0.01)
    monkeypatch.setattr(http, "_told", set())
    return tmp_path / "cache" / "outlast"


def test_each_shard_is_asked_for_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[3190]] * 6)
    caplog.set_level("INFO")

    def read(manifest: str) -> list[np.ndarray]:
        config = StreamConfig(manifest=manifest, global_batch_size=4, sequence_length=32)
        stream = TokenStream(config, seed=1)
        return [stream.batch(step)["input_ids"].copy() for step in range(2 * stream.num_examples // 4)]

    with counting(tmp_path / "data") as (url, asked):
        there = read(f"{url}/manifest.json")
    shards = {path.name for path in (tmp_path / "data").glob("train-*") if path.stat().st_size > 512}
    assert len(shards) >= 6
    counted = Counter(name for name in asked if name in shards)
    assert set(counted) == shards
    assert sum(counted.values()) == len(shards) + PROBES
    assert np.array_equal(there, read(str(tmp_path / "data" / "manifest.json")))
    told = [message for message in caplog.messages if "gives no ranges" in message]
    assert len(told) == 1


def test_a_download_that_is_cut_begins_again_and_is_checked(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[3190]])
    with (
        serving_folder(tmp_path / "data") as url,
        FaultyProxy("127.0.0.1", int(url.rpartition(":")[2])) as proxy,
    ):
        proxy.inject([None, "short", "503", None, "wrong", None], matching=lambda _, path: "train-" in path)
        config = StreamConfig(manifest=f"{proxy.url}/manifest.json", global_batch_size=4, sequence_length=32)
        batch = TokenStream(config, seed=1).batch(0)
        assert proxy.injected == ["short", "503"]
    here = StreamConfig(
        manifest=str(tmp_path / "data" / "manifest.json"), global_batch_size=4, sequence_length=32
    )
    assert np.array_equal(batch["input_ids"], TokenStream(here, seed=1).batch(0)["input_ids"])


def test_a_full_disk_is_not_taken_for_a_server_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc" * 1000)

    def full(start: int, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with serving_folder(tmp_path) as url, pytest.raises(OSError, match="No space left"):
        open_store(url).download("x", full)


def test_a_corpus_is_fetched_once_for_all_processes(tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    lines = [json.dumps({"text": " ".join(words[(n + k) % 9] for k in range(60))}) for n in range(400)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    shards, tokenizer = ShardsConfig(num_shards=5, num_processes=2), TokenizerConfig(vocab_size=40)

    def build(root: str, out: str) -> dict[str, bytes]:
        corpus = CorpusConfig(path=f"{root}/a.jsonl", format="jsonl")
        prepare_data(Recipe(corpus=corpus, tokenizer=tokenizer, shards=shards), str(tmp_path / out))
        return {
            name.removeprefix(str(tmp_path / out)): content
            for name, content in files_of(tmp_path / out).items()
        }

    with counting(folder) as (url, asked):
        assert build(url, "there") == build(str(folder), "here")
        assert asked.count("a.jsonl") <= 1 + PROBES
        (kept,) = (own_cache / "files").iterdir()
        assert kept.read_bytes() == (folder / "a.jsonl").read_bytes()
        (folder / "a.jsonl").write_text("\n".join(lines[:100]))
        os.utime(folder / "a.jsonl", (1, 1))
        with open_store(url).open("a.jsonl") as file:
            assert file.read() == (folder / "a.jsonl").read_bytes(), "another version is another file"


def test_ranges_are_read_from_the_copy_wherever_they_lie(tmp_path: Path) -> None:
    content = bytes(range(256)) * 64
    (tmp_path / "x").write_bytes(content)
    with counting(tmp_path) as (url, asked):
        store = open_store(url)
        for start in (9000, 16000, 3, 4096, 5000):
            assert store.read_range("x", start, 300) == content[start : start + 300]
    # The first one is how it is learned; after the fetch only what lies at the beginning is asked for.
    assert len(asked) <= 3


def test_what_nobody_uses_makes_room(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched, "_MOST_BYTES", 2500)
    for name in "abcd":
        (tmp_path / name).write_bytes(name.encode() * 1000)
    with serving_folder(tmp_path) as url:
        store = open_store(url)
        with store.open("a") as used:
            for name in "bcd":
                store.open(name).close()
            held = {path.read_bytes()[:1] for path in (own_cache / "files").iterdir()}
            assert held == {b"a", b"d"}, "in use, and the last one"
            assert used.read() == b"a" * 1000


def test_two_that_want_the_same_file_fetch_it_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 100_000)
    found: list[bytes] = []

    def read(store: HttpStore) -> None:
        with store.open("x") as file:
            found.append(file.read())

    with counting(tmp_path) as (url, asked):
        stores = [HttpStore(url) for _ in range(4)]
        for store in stores:
            assert not store.gives_ranges("x")
        asked.clear()
        threads = [threading.Thread(target=read, args=(store,)) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert asked == ["x"]
    assert found == [b"x" * 100_000] * 4


def test_an_import_reads_each_tar_once(tmp_path: Path) -> None:
    write_images(tmp_path / "tars", [40, 40, 4])
    names = sorted(path.name for path in (tmp_path / "tars").glob("*.tar"))
    with counting(tmp_path / "tars") as (url, asked):
        tars = {"train": [f"{url}/{name}" for name in names]}
        there = import_tars(tars, str(tmp_path / "out"), FieldRules(), copy=True, num_processes=1)
        assert all(asked.count(name) <= 1 + PROBES for name in names)
    assert len(read_image_manifest(there)[0].shards("train")) == len(names)
