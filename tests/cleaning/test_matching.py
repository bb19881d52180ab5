"""Equal keys: found across chunks, each later record with an earlier one."""

import random

import numpy as np
import pytest

from outlast.cleaning.grouping import Records
from outlast.cleaning.matching import candidates, different, repeats


def make_keys(num_records: int) -> list[int]:
    rng = random.Random(num_records)
    return [rng.choice([7, 8, rng.randrange(40)]) for _ in range(num_records)]


def in_chunks(records: Records, size: int) -> list[Records]:
    return [records[begin : begin + size] for begin in range(0, len(records), size)]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("num_records", [0, 1, 300])
def test_every_later_record_is_found_with_the_first_of_its_key(num_records: int, size: int) -> None:
    keys = make_keys(num_records)
    columns = [(key // 2, key % 2, number) for number, key in enumerate(keys)]
    records = np.array(columns, np.uint64).reshape(-1, 3)
    found = {
        (int(later), int(first))
        for several, firsts in repeats(in_chunks(records, size))
        for later, first in zip(several, firsts, strict=True)
    }
    assert found == {(number, keys.index(key)) for number, key in enumerate(keys) if keys.index(key) < number}


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_later_record_meets_the_first_and_the_one_before(size: int) -> None:
    keys = make_keys(300)
    records = np.array(list(zip(keys, range(300), strict=True)), np.uint64)
    pairs = {tuple(pair) for chunk in candidates(in_chunks(records, size)) for pair in chunk.tolist()}
    expected: set[tuple[int, int]] = set()
    for number, key in enumerate(keys):
        earlier = [other for other in range(number) if keys[other] == key]
        expected |= {(number, other) for other in (*earlier[:1], *earlier[-1:])}
    assert pairs == expected


def test_pairs_are_kept_once_and_in_order() -> None:
    pairs = np.array([[5, 1], [2, 9], [5, 1], [5, 0]], np.uint64)
    assert different(pairs).tolist() == [[2, 9], [5, 0], [5, 1]]
