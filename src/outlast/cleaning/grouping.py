"""Records brought together by their key on disk, for more of them than memory holds.

In: arrays of records whose first column is a well spread 64-bit key. Out: the records again, a bucket of keys
at a time, in the order in which they were added. Memory is bounded by about four times ``RUN_BYTES``, also
where one key has most of the records.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.storage.spool import spool_failed

RUN_BYTES = 32 * 2**20
_MAX_BITS = 12

Records = NDArray[np.uint64]
"""uint64 of shape (records, columns)."""


class Grouper:
    """Collects records, then gives them back by buckets of their keys.

    Args:
        columns: of a record.
        num_records: about how many there will be; it decides how many buckets there are.
        spool_folder: where the nameless temporary file lies; None for the system's folder.
    """

    def __init__(
        self, columns: int, *, num_records: int, spool_folder: Path | None, run_bytes: int = RUN_BYTES
    ) -> None:
        self.columns = columns
        num_buckets = -(-num_records * columns * 8 // run_bytes)
        self._bits = min(max(num_buckets - 1, 0).bit_length(), _MAX_BITS)
        self._run_bytes = run_bytes
        self._waiting: list[Records] = []
        self._waiting_bytes = 0
        self._runs: list[tuple[int, NDArray[np.intp]]] = []
        self._file = open_spool(spool_folder)
        self._end = 0

    def __enter__(self) -> "Grouper":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, records: Records) -> None:
        """Add records. Raises StorageError where the temporary file cannot be written."""
        if not len(records):
            return
        self._waiting.append(records)
        self._waiting_bytes += records.nbytes
        if self._waiting_bytes >= self._run_bytes:
            self._flush()

    def buckets(self) -> Iterator[Iterator[Records]]:
        """Yield the buckets, each as chunks of records in the order in which they were added.

        Records with equal keys are in one bucket; only a key with very many has them in several chunks.
        """
        self._flush()
        for bucket in range(2**self._bits):
            yield self._chunks(bucket)

    def _chunks(self, bucket: int) -> Iterator[Records]:
        parts: list[Records] = []
        size_bytes = 0
        for offset, bounds in self._runs:
            part = self._read(offset, bounds[bucket], bounds[bucket + 1])
            if size_bytes and size_bytes + part.nbytes > 2 * self._run_bytes:
                yield np.concatenate(parts)
                parts, size_bytes = [], 0
            parts.append(part)
            size_bytes += part.nbytes
        if size_bytes:
            yield np.concatenate(parts)

    def _flush(self) -> None:
        """Write what waits as a run: sorted by bucket, with the bounds of the buckets."""
        if not self._waiting:
            return
        records = np.concatenate(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        buckets = (records[:, 0] >> np.uint64(52)) >> np.uint64(_MAX_BITS - self._bits)
        buckets = buckets.astype(np.uint16)
        order = np.argsort(buckets, kind="stable")
        bounds = np.searchsorted(buckets[order], np.arange(2**self._bits + 1, dtype=np.uint32))
        try:
            self._file.seek(self._end)
            self._file.write(records[order].data)
        except OSError as error:
            raise spool_failed(error) from error
        self._runs.append((self._end, bounds))
        self._end += records.nbytes

    def _read(self, offset: int, begin: np.intp, end: np.intp) -> Records:
        width = 8 * self.columns
        self._file.seek(offset + int(begin) * width)
        content = self._file.read(int(end - begin) * width)
        return np.frombuffer(content, np.uint64).reshape(-1, self.columns)


class BitSet:
    """A set of the numbers below ``size``, one bit each."""

    def __init__(self, size: int) -> None:
        self._bits = np.zeros(size // 8 + 1, np.uint8)

    def add(self, numbers: NDArray[np.integer[Any]]) -> None:
        """Add numbers, integers of shape (count,)."""
        numbers = numbers.astype(np.int64)
        np.bitwise_or.at(self._bits, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8))

    def range(self, begin: int, end: int) -> NDArray[np.bool_]:
        """Return for each number from begin to end whether it is in the set."""
        first = begin // 8
        bits = np.unpackbits(self._bits[first : end // 8 + 1], bitorder="little").astype(np.bool_)
        return bits[begin - 8 * first : end - 8 * first]

    def __len__(self) -> int:
        return int(np.bitwise_count(self._bits).sum(dtype=np.int64))


def open_spool(folder: Path | None):
    """Open a nameless temporary file. Raises StorageError."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise spool_failed(error) from error
