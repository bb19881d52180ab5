"""Where words begin, a bit for each token, as token shards keep it (docs/formats/token_shard.md).

In: bools, or the bytes of a shard. Out: the other. Bit k % 8 of byte k // 8, counted from the lowest, is that
of token k; the bits behind the last token are 0.
"""

import numpy as np
from numpy.typing import NDArray

_PACKED_TOGETHER = 2**16
_READ_TOGETHER = 2**20


class WordBits:
    """Packs what comes in runs of any length; ``num_ones`` counts what was packed."""

    def __init__(self) -> None:
        self.num_ones = 0
        self._waiting: list[NDArray[np.bool_]] = []
        self._num_waiting = 0

    def add(self, starts: NDArray[np.bool_]) -> None:
        """Append bools of shape (num_tokens,)."""
        self._waiting.append(starts)
        self._num_waiting += len(starts)

    def take(self) -> bytes:
        """Return the whole bytes there are, perhaps none: many documents are packed together."""
        return self._pack(self._num_waiting // 8 * 8) if self._num_waiting >= _PACKED_TOGETHER else b""

    def finish(self) -> bytes:
        """Return all that is left, the last byte filled up with 0."""
        return self._pack(self._num_waiting)

    def _pack(self, count: int) -> bytes:
        together = np.concatenate([np.zeros(0, np.bool_), *self._waiting])
        self._waiting = [together[count:]]
        self._num_waiting = len(together) - count
        self.num_ones += int(np.count_nonzero(together[:count]))
        return np.packbits(together[:count], bitorder="little").tobytes()


def count_ones(packed: NDArray[np.uint8]) -> int:
    """Return how many bits are 1."""
    blocks = (packed[begin : begin + _READ_TOGETHER] for begin in range(0, len(packed), _READ_TOGETHER))
    return sum(int(np.bitwise_count(block).sum(dtype=np.int64)) for block in blocks)


def bits_at(packed: NDArray[np.uint8], places: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return the bits of tokens, bool of the shape of ``places``."""
    places = places.astype(np.int64)
    return (packed[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(np.bool_)


def window_bytes(length: int) -> int:
    """Return how many bytes hold a run of so many bits wherever it begins, and one more."""
    return -(-(length + 7) // 8) + 1


def read_runs(windows: NDArray[np.uint8], origins: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    """Return runs of bits, uint8 of shape (rows, length), 0 or 1: those of tokens origin, origin + 1, ...

    Args:
        windows: the bytes around each run, (rows, bytes); the token of the first bit of each is 0.
        origins: int64 of shape (rows,). Where a run leaves its window, in front or behind, its bits mean
            nothing.
    """
    columns = np.arange(window_bytes(length))
    index = np.clip((origins >> 3)[:, None] + columns, 0, windows.shape[1] - 1)
    window = np.take_along_axis(windows, index, axis=1).astype(np.uint16)
    window = (window[:, :-1] | (window[:, 1:] << 8)) >> (origins & 7).astype(np.uint16)[:, None]
    return np.unpackbits(window.astype(np.uint8), axis=1, count=length, bitorder="little")
