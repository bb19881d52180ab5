"""Which records of a bucket have the same key.

In: the chunks of a bucket (``grouping.py``), each sorted by the records' numbers. Out: pairs of numbers, of a
record and an earlier one with its key, however the bucket is cut into chunks.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from outlast.cleaning.grouping import Records


def repeats(bucket: Iterable[Records]) -> Iterator[tuple[Records, Records]]:
    """Yield the numbers of the records whose key has been there before, beside each the first of that key.

    Records are (key, key, number) with rising numbers.
    """
    known = np.empty((0, 3), np.uint64)
    for chunk in bucket:
        records = np.concatenate([known, chunk])
        records = records[np.lexsort((records[:, 1], records[:, 0]))]
        is_first = _begins(records[:, :2])
        first = np.maximum.accumulate(np.where(is_first, np.arange(len(records)), 0))
        yield records[~is_first, 2], records[first[~is_first], 2]
        known = records[is_first]


def candidates(bucket: Iterable[Records]) -> Iterator[Records]:
    """Yield the pairs (later number, earlier number) that are to be compared; one may come again.

    Records are (hash of a band, number) with rising numbers. Each is compared with the first that has the
    band and with the one before it, so there are at most twice as many pairs as records.
    """
    known = np.empty((0, 2), np.uint64)
    for chunk in bucket:
        records = np.concatenate([known, chunk])
        records = records[np.argsort(records[:, 0], kind="stable")]
        is_first = _begins(records[:, :1])
        first = np.maximum.accumulate(np.where(is_first, np.arange(len(records)), 0))
        later = np.flatnonzero(~is_first)
        yield columns(records[later, 1:], records[first[later], 1])
        later = later[first[later] != later - 1]
        yield columns(records[later, 1:], records[later - 1, 1])
        is_last = np.append(is_first[1:], True)
        known = records[is_first | is_last]


def _begins(keys: Records) -> NDArray[np.bool_]:
    """Return for each of some sorted keys whether it differs from the one before."""
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return begins


def different(records: Records) -> Records:
    """Return the pairs in order, each once."""
    records = records[np.lexsort((records[:, 1], records[:, 0]))]
    return records[_begins(records)]


def columns(keys: NDArray[np.uint64], numbers: Records) -> Records:
    """Return records of keys, uint64 of shape (records, columns), and numbers."""
    return np.column_stack([keys.astype(np.uint64, copy=False), numbers])
