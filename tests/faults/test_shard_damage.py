"""Damaged data sets: every flipped bit, cut, missing, exchanged or older shard is noticed by the check and by
the stream, before a wrong token is handed on.
"""

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.errors import OutlastError, ShardError
from outlast.shards.manifest import read_manifest
from outlast.shards.verify import verify_manifest
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from support.damage import KINDS, damage
from support.datasets import write_counting_data
from support.files import serving_folder

LENGTHS = [[120, 30], [90, 60], [33, 117]]
"""Shards of one size, so that an exchange is noticed by its bytes alone."""

Batches = list[NDArray[Any]]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A data set, and an older one with the same names and sizes."""
    new, old = tmp_path / "new", tmp_path / "old"
    write_counting_data(LocalStore(new), LENGTHS)
    write_counting_data(LocalStore(old), LENGTHS, first_token=9000)
    return new, old


def read_epoch(url: str, cache: Path) -> tuple[Batches, OutlastError | None]:
    """Return the batches of an epoch up to the first error, and the error."""
    batches: Batches = []
    try:
        config = StreamConfig(
            manifest=url, global_batch_size=4, sequence_length=16, cache_dir=str(cache), special_tokens=False
        )
        stream = TokenStream(config, seed=3)
        for step in range(-(-stream.num_examples // 4)):
            batches.append(stream.batch(step)["input_ids"])
    except OutlastError as error:
        return batches, error
    return batches, None


def check_many(folders: tuple[Path, Path], seeds: range, *, over_http: bool) -> Counter[str]:
    """Damage the data set once for each seed; assert that nothing wrong comes out. Return what was done."""
    whole, older = folders
    cache = whole.with_name("cache")
    expected, error = read_epoch(f"{whole}/manifest.json", cache)
    assert error is None
    fingerprint = read_manifest(f"{whole}/manifest.json")[0].fingerprint
    done: Counter[str] = Counter()
    broken = whole.with_name("broken")
    for seed in seeds:
        shutil.copytree(whole, broken)
        kind = damage(broken, older, random.Random(seed))
        done[kind] += 1
        local = f"{broken}/manifest.json"
        assert problems_of(local), f"seed {seed}: verify did not notice: {kind}"
        if over_http:
            with serving_folder(broken) as url:
                batches, error = read_epoch(f"{url}/manifest.json", cache)
        else:
            batches, error = read_epoch(local, cache)
        lengthened = kind == "lengthen" and over_http  # what follows the shard's bytes is never asked for
        assert lengthened or isinstance(error, ShardError), f"seed {seed}: the stream did not notice: {kind}"
        assert all(map(np.array_equal, batches, expected)), f"seed {seed}: wrong tokens after {kind}"
        shutil.rmtree(broken)
        shutil.rmtree(cache, ignore_errors=True)
    assert read_manifest(f"{whole}/manifest.json")[0].fingerprint == fingerprint
    return done


def problems_of(url: str) -> list[str]:
    try:
        return verify_manifest(url)
    except ShardError as error:
        return [str(error)]


def test_damage_is_noticed_and_nothing_wrong_handed_on(folders: tuple[Path, Path]) -> None:
    done = check_many(folders, range(240), over_http=False)
    assert set(done) == set(KINDS)


def test_damage_behind_a_cache_is_noticed(folders: tuple[Path, Path]) -> None:
    done = check_many(folders, range(240, 300), over_http=True)
    assert sum(done.values()) == 60


@pytest.mark.long
@pytest.mark.timeout(900)
def test_damage_is_noticed_two_thousand_times(folders: tuple[Path, Path]) -> None:
    done = check_many(folders, range(300, 2300), over_http=False)
    assert set(done) == set(KINDS)


def test_the_test_can_fail(folders: tuple[Path, Path]) -> None:
    """Without the check of the digests, a flipped token does come out of the stream."""
    whole, _ = folders
    expected, _ = read_epoch(f"{whole}/manifest.json", whole)
    shard = whole / "train-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-40] ^= 1
    shard.write_bytes(content)
    config = StreamConfig(
        manifest=f"{whole}/manifest.json",
        global_batch_size=4,
        sequence_length=16,
        special_tokens=False,
        verify=False,
    )
    stream = TokenStream(config, seed=3)
    batches = [stream.batch(step)["input_ids"] for step in range(len(expected))]
    assert not all(map(np.array_equal, batches, expected))
