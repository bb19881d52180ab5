"""Records grouped on disk: none lost, equal keys together, the order kept; and sets of bits."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.cleaning.grouping import BitSet, Grouper


@pytest.mark.parametrize(
    ("num_records", "run_bytes"), [(0, 64), (1, 64), (5000, 64), (5000, 4096), (5000, 2**20)]
)
def test_records_come_back_grouped_and_in_order(num_records: int, run_bytes: int) -> None:
    rng = np.random.default_rng(num_records)
    keys = rng.choice(rng.integers(0, 2**64, 700, dtype=np.uint64), num_records)
    records = np.column_stack([keys, np.arange(num_records, dtype=np.uint64)])
    with Grouper(2, num_records=num_records, spool_folder=None, run_bytes=run_bytes) as grouper:
        for begin in range(0, num_records, 333):
            grouper.add(records[begin : begin + 333])
        buckets = [np.concatenate(chunks) for bucket in grouper.buckets() if (chunks := list(bucket))]
    together = np.concatenate([np.empty((0, 2), np.uint64), *buckets])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, records.tolist()))
    owners = [set(bucket[:, 0].tolist()) for bucket in buckets]
    assert sum(map(len, owners)) == len(set(keys.tolist()))  # no key in two buckets
    assert all((np.diff(bucket[:, 1].astype(np.int64)) > 0).all() for bucket in buckets)
    if num_records * 16 > 4 * run_bytes:
        assert len(buckets) > 4
        assert max(map(len, buckets)) < num_records / 2


def test_a_key_with_most_of_the_records_comes_in_chunks() -> None:
    records = np.column_stack([np.full(5000, 7, np.uint64), np.arange(5000, dtype=np.uint64)])
    with Grouper(2, num_records=5000, spool_folder=None, run_bytes=1024) as grouper:
        for begin in range(0, 5000, 50):
            grouper.add(records[begin : begin + 50])
        chunks = [chunk for bucket in grouper.buckets() for chunk in bucket]
    assert np.array_equal(np.concatenate(chunks), records)
    assert max(chunk.nbytes for chunk in chunks) <= 4 * 1024


@given(st.integers(0, 300), st.randoms(use_true_random=False))
def test_a_set_of_bits_is_a_set(size: int, rng: random.Random) -> None:
    numbers = [number for number in range(size) if rng.random() < 0.3]
    bits = BitSet(size)
    for begin in range(0, len(numbers), 7):
        some = np.array(numbers[begin : begin + 7] * 2, np.uint64)
        bits.add(some)
    assert len(bits) == len(numbers)
    first = rng.randrange(size + 1)
    assert bits.range(first, size).tolist() == [number in numbers for number in range(first, size)]
