"""The order of the data: which example stands in row r of step s. Pure, and frozen by golden vectors.

In: the number of examples of each shard, the global batch size, a seed, a step. Out: (shard, record) of every
row. Nothing is remembered between calls, so a run resumes anywhere at the same cost, and the number of
processes, threads or prefetched batches cannot change the order.

    epoch    the shards are permuted; their examples, end to end, are the epoch's sequence
    lane     lane l of L owns rows l*B/L .. (l+1)*B/L of every batch, and its own contiguous span of the
    sequence,
             floor(N/L) examples long; at most L-1 examples sit out an epoch, others each time
    window   a lane walks its span window by window; the examples of a window are permuted

Row r of step s: t = s*(B/L) + r mod (B/L); epoch, i = divmod(t, N//L); i is permuted within its window.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError, ShardError
from outlast.prng import derive_key, permutation

ORDER_VERSION = 1
_WHOLE_SET_EXAMPLES = 4 * 2**20
_WHOLE_SET_BYTES = 4 * 2**30
_WINDOW_EXAMPLES = 2**20
_WINDOW_BYTES = 2 * 2**30
_MOST_LANES = 64


class Placement(NamedTuple):
    """Where the examples of some rows lie: two int64 arrays of shape (rows,)."""

    shards: NDArray[np.int64]
    records: NDArray[np.int64]


class Span(NamedTuple):
    """A run of consecutive rows of a lane that one window fills."""

    num_rows: int
    epoch: int
    window: int
    offset: int
    """Index of the first row within the window."""


class LaneRows(NamedTuple):
    """The rows of a batch that one lane fills, or some of them."""

    lane: int
    first: int
    """Index of the first row within the lane's rows."""
    num_rows: int


class WindowKey(NamedTuple):
    """A window of a lane."""

    lane: int
    epoch: int
    window: int
    source: int = 0
    """Of a mixture."""


@dataclass(frozen=True, eq=False)
class Order:
    """The order of one split under one seed.

    Args:
        shard_examples: number of examples of each shard, in manifest order.
        global_batch_size: rows of a batch (B).
        num_lanes: lanes (L), a divisor of B.
        window_examples: examples shuffled together, over all lanes.
        seed: of the run.

    Raises:
        ConfigError: a batch that the lanes do not divide.
        ShardError: fewer examples than lanes.
    """

    shard_examples: tuple[int, ...]
    global_batch_size: int
    num_lanes: int
    window_examples: int
    seed: int
    _cached_window: Callable[[int, int, int], Placement] = field(init=False, repr=False)
    _cached_epoch: Callable[[int], tuple[NDArray[np.int64], NDArray[np.int64]]] = field(
        init=False, repr=False
    )

    def __post_init__(self) -> None:
        # A walk needs a lane's current window, the one sorted ahead of need, and one that a slower thread
        # still reads.
        object.__setattr__(self, "_cached_window", lru_cache(maxsize=3 * self.num_lanes)(self._sorted_window))
        object.__setattr__(self, "_cached_epoch", lru_cache(maxsize=3)(self._sorted_epoch))
        check_divides("stream.num_lanes", self.num_lanes, self.global_batch_size)
        if self.num_examples < self.num_lanes:
            raise ShardError(
                f"The split has {self.num_examples} examples, {self.num_lanes} lanes need one each.",
                remedy="prepare more text, or set stream.num_lanes lower",
            )

    @property
    def num_examples(self) -> int:
        return sum(self.shard_examples)

    @property
    def lane_examples(self) -> int:
        """Examples of a lane in one epoch."""
        return self.num_examples // self.num_lanes

    @property
    def lane_window(self) -> int:
        """Examples of a lane's window."""
        return max(1, min(self.lane_examples, self.window_examples // self.num_lanes))

    @property
    def lane_rows(self) -> int:
        """Rows of a batch that one lane fills."""
        return self.global_batch_size // self.num_lanes

    def epoch_of(self, step: int) -> float:
        """Return how many epochs are consumed before a step."""
        return step * self.lane_rows / self.lane_examples

    def rows(self, step: int, first: int = 0, stop: int | None = None, num_steps: int = 1) -> Placement:
        """Return the placement of rows ``first .. stop`` of the batches of consecutive steps, end to end."""
        stop = self.global_batch_size if stop is None else stop
        placed = np.empty((2, num_steps, stop - first), np.int64)
        done = 0
        for lane, lane_first, num_rows in self.lanes(first, stop):
            columns = placed[:, :, done : done + num_rows]
            start = step * self.lane_rows + lane_first
            if num_rows == self.lane_rows:
                # A lane's steps follow each other without a gap: one walk for all of them.
                columns[...] = self.walk(lane, start, num_steps * num_rows).reshape(columns.shape)
            else:
                for ahead in range(num_steps):
                    columns[:, ahead] = self.walk(lane, start + ahead * self.lane_rows, num_rows)
            done += num_rows
        return Placement(*placed.reshape(2, -1))

    def lanes(self, first: int, stop: int) -> Iterator[LaneRows]:
        """Cut rows ``first .. stop`` of a batch at the borders of lanes."""
        row = first
        while row < stop:
            lane, lane_first = divmod(row, self.lane_rows)
            num_rows = min(stop - row, self.lane_rows - lane_first)
            yield LaneRows(lane, lane_first, num_rows)
            row += num_rows

    def spans(self, start: int, num_rows: int) -> Iterator[Span]:
        """Cut consecutive rows of any lane, the first being its row ``start``, at epochs and windows."""
        stop = start + num_rows
        while start < stop:
            epoch, index = divmod(start, self.lane_examples)
            window, offset = divmod(index, self.lane_window)
            num_rows = min(stop - start, self.lane_examples - index, self.lane_window - offset)
            yield Span(num_rows, epoch, window, offset)
            start += num_rows

    def walk(self, lane: int, start: int, num_rows: int) -> NDArray[np.int64]:
        """Return shards and records of consecutive rows of a lane: int64 (2, num_rows)."""
        walked = np.empty((2, num_rows), np.int64)
        done = 0
        for span in self.spans(start, num_rows):
            placed = self.window(lane, span.epoch, span.window)
            taken = slice(span.offset, span.offset + span.num_rows)
            walked[0, done : done + span.num_rows] = placed.shards[taken]
            walked[1, done : done + span.num_rows] = placed.records[taken]
            done += span.num_rows
        return walked

    def window(self, lane: int, epoch: int, window: int) -> Placement:
        """Return the placement of a window's examples in the order they are seen. Cached: it is a sort."""
        return self._cached_window(lane, epoch, window)

    def next_window(self, lane: int, epoch: int, window: int) -> tuple[int, int]:
        """Return (epoch, window) of the window that a lane walks after this one."""
        if (window + 1) * self.lane_window < self.lane_examples:
            return epoch, window + 1
        return epoch + 1, 0

    def upcoming(self, step: int, first: int, stop: int) -> Iterator[WindowKey]:
        """Yield the windows that are next where a lane's window is half walked, for rows of a batch."""
        for lane, lane_first, num_rows in self.lanes(first, stop):
            yield from self.upcoming_in(lane, step * self.lane_rows + lane_first, num_rows)

    def upcoming_in(self, lane: int, start: int, num_rows: int) -> Iterator[WindowKey]:
        """Yield the next window for each half walked one among consecutive rows of a lane."""
        for span in self.spans(start, num_rows):
            if span.offset * 2 >= self.lane_window:
                yield WindowKey(lane, *self.next_window(lane, span.epoch, span.window))

    def shards_of(self, key: WindowKey) -> list[int]:
        """Return the shards that hold the examples of a window. Sorts the window."""
        counts = np.bincount(self.window(key.lane, key.epoch, key.window).shards)
        return np.flatnonzero(counts).tolist()

    def shards_from(self, step: int, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (step, shard) without end: the shards of rows ``first .. stop`` by the step from which on
        they are needed, which is the first one of their window. Nothing is sorted.
        """
        lanes = [self.lane_shards(lane, step * self.lane_rows) for lane, _, _ in self.lanes(first, stop)]
        return ((clock // self.lane_rows, shard) for clock, shard in heapq.merge(*lanes, key=itemgetter(0)))

    def lane_shards(self, lane: int, start: int) -> Iterator[tuple[int, int]]:
        """Yield (row, shard) without end: the shards of a lane from the window on that its row ``start`` lies
        in, each with the lane's first row of the window that needs it.
        """
        epoch, index = divmod(start, self.lane_examples)
        place = index // self.lane_window * self.lane_window
        while True:
            shard_order, ends = self._cached_epoch(epoch)
            first = lane * self.lane_examples
            for number in range(int(np.searchsorted(ends, first + place, side="right")), len(ends)):
                begin = int(ends[number - 1]) - first if number else 0
                if begin >= self.lane_examples:
                    break
                if self.shard_examples[shard_order[number]]:
                    window = max(begin, place) // self.lane_window * self.lane_window
                    yield epoch * self.lane_examples + window, int(shard_order[number])
            epoch, place = epoch + 1, 0

    # Why the order is computed and not kept: a saved iterator has to be saved by every process, at the same
    # step, and fits the next run only if that has as many processes and threads. A function of (seed, step,
    # row) fits any. What it costs is randomness: shards are permuted whole and examples within a window only,
    # so that a process opens no shard but those of its lanes' windows. The keys name what is drawn, so that
    # no two permutations share their numbers and a new one leaves the old ones as they were
    # (docs/design/order.md).

    def _sorted_window(self, lane: int, epoch: int, window: int) -> Placement:
        shard_order, ends = self._cached_epoch(epoch)
        start = window * self.lane_window
        length = min(self.lane_window, self.lane_examples - start)
        shuffled = permutation(length, derive_key(self.seed, epoch, "window", lane, window))
        first = lane * self.lane_examples + start
        # A table of the window's shards is three times as fast as a binary search for each example.
        counts = np.diff(np.clip(ends, first, first + length), prepend=first)
        position = np.repeat(np.arange(len(ends), dtype=np.int32), counts)[shuffled]
        begins = ends - np.asarray(self.shard_examples, np.int64)[shard_order]
        return Placement(shard_order[position], first + shuffled - begins[position])

    def _sorted_epoch(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the epoch's shard permutation, and where each shard of it ends in the epoch's sequence."""
        shard_order = permutation(len(self.shard_examples), derive_key(self.seed, epoch, "shards"))
        return shard_order, np.cumsum(np.asarray(self.shard_examples, np.int64)[shard_order])


def default_lanes_and_window(
    num_examples: int, num_bytes: int, num_shards: int, global_batch_size: int
) -> tuple[int, int]:
    """Return (num_lanes, window_examples) for a data set, from the manifest and the batch alone.

    A set of at most 4M examples and 4 GiB is shuffled whole. A larger one has as many lanes as divide the
    batch, up to 64 and a quarter of the shards, and windows of 1M examples or as many as 2 GiB hold.
    """
    if num_examples <= _WHOLE_SET_EXAMPLES and num_bytes <= _WHOLE_SET_BYTES:
        return 1, max(1, num_examples)
    limit = max(1, min(_MOST_LANES, num_shards // 4))
    num_lanes = max(lanes for lanes in range(1, limit + 1) if global_batch_size % lanes == 0)
    fitting = _WINDOW_BYTES * num_examples // num_bytes
    return num_lanes, max(num_lanes, min(_WINDOW_EXAMPLES, fitting))


def check_divides(
    name: str, divisor: int, global_batch_size: int, *, where: str = "stream.global_batch_size"
) -> None:
    """Check that a batch divides evenly. Raises ConfigError naming the nearest batches that do."""
    if global_batch_size % divisor:
        below = global_batch_size // divisor * divisor
        nearest = f"{below} or {below + divisor}" if below else str(divisor)
        raise ConfigError(
            f"The batch of {global_batch_size} examples cannot be divided by {name} = {divisor}.",
            where=where,
            remedy=f"set {where} to {nearest}"
            if where == "stream.global_batch_size"
            else f"set its global_batch_size to {nearest}",
        )
