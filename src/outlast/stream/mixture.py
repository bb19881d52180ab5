"""The order of a mixture: which example of which source stands in row r of step s. Pure, as ``order`` is.

In: the order of each source, their shares, a step. Out: (shard, record) of every row; the shards of all
sources are numbered one after the other. Every source keeps its own place and its own epochs, and both follow
from the step alone.

    position  s*B + j, for j from 0 to B-1; ``turns`` gives its source i, and its number n within the source
    example   of source i: its lane is n mod L, and it is the (n div L)-th that this lane shows
    row       the examples of a step are sorted by lane, those of one lane stay as they were

So with one source the order is the one that ``order`` has without a mixture. The lanes of a source share its
examples evenly, whatever the batch, and a process whose rows are whole lanes opens the shards of those lanes
and of their neighbours.
"""

import heapq
from collections.abc import Iterator, Sequence
from fractions import Fraction
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from outlast.prng import derive_key
from outlast.stream.order import Order, Placement, WindowKey
from outlast.stream.turns import Turns

MIXTURE_VERSION = 1


class Mixture:
    """The order of several sources together.

    Args:
        orders: of the sources, each made for a batch of ``num_lanes`` rows, one for each of its lanes; all
            have the same number of lanes.
        shares: of the sources; they add up to 1.
        global_batch_size: rows of a batch (B).
    """

    def __init__(self, orders: Sequence[Order], shares: Sequence[Fraction], global_batch_size: int) -> None:
        self.orders = tuple(orders)
        self.shares = tuple(shares)
        self.global_batch_size = global_batch_size
        self.num_lanes = orders[0].num_lanes
        self.shard_examples = tuple(count for order in orders for count in order.shard_examples)
        self._turns = Turns(shares)
        num_shards = [len(order.shard_examples) for order in orders]
        self._first_shards = np.concatenate(([0], np.cumsum(num_shards))).tolist()

    @property
    def num_examples(self) -> int:
        return sum(self.shard_examples)

    @property
    def window_examples(self) -> tuple[int, ...]:
        """Examples shuffled together, of each source."""
        return tuple(order.window_examples for order in self.orders)

    def epoch_of(self, step: int) -> float:
        """Return how many examples are consumed before a step, per example that there is."""
        return step * self.global_batch_size / self.num_examples

    def source_epochs(self, step: int) -> tuple[float, ...]:
        """Return how many epochs of each source are consumed before a step."""
        counts = self._turns.counts(step * self.global_batch_size)
        return tuple(
            count / (order.lane_examples * self.num_lanes)
            for count, order in zip(counts, self.orders, strict=True)
        )

    def rows(self, step: int, first: int = 0, stop: int | None = None, num_steps: int = 1) -> Placement:
        """Return the placement of rows ``first .. stop`` of the batches of consecutive steps, end to end."""
        size = self.global_batch_size
        stop = size if stop is None else stop
        sources, numbers = self._turns.turns(step * size, num_steps * size)
        shape = (num_steps, size)
        if self.num_lanes > 1:
            # 16-bit integers are sorted by radix.
            lanes = (numbers % self.num_lanes).astype(np.uint16).reshape(shape)
            by_lane = np.argsort(lanes, axis=1, kind="stable")
            sources = np.take_along_axis(sources.reshape(shape), by_lane, axis=1)
            numbers = np.take_along_axis(numbers.reshape(shape), by_lane, axis=1)
        sources = sources.reshape(shape)[:, first:stop].reshape(-1)
        numbers = numbers.reshape(shape)[:, first:stop].reshape(-1)
        shards, records = np.empty((2, len(sources)), np.int64)
        for source, order in enumerate(self.orders):
            rows = np.flatnonzero(sources == source)
            if len(rows):
                found = _place(order, numbers[rows])
                # One array at a time: four times as fast as both together.
                shards[rows] = found[0] + self._first_shards[source]
                records[rows] = found[1]
        return Placement(shards, records)

    def upcoming(self, step: int, first: int, stop: int) -> Iterator[WindowKey]:
        """Yield the windows that are next where a lane's window is half walked, for rows of a batch."""
        size, num_lanes = self.global_batch_size, self.num_lanes
        before = self._turns.counts(step * size)
        after = self._turns.counts((step + 1) * size)
        for source, order in enumerate(self.orders):
            start = before[source] // num_lanes
            num_rows = -(-after[source] // num_lanes) - start
            for lane in self._lanes(first, stop):
                for key in order.upcoming_in(lane, start, num_rows):
                    yield key._replace(source=source)

    def shards_from(self, step: int, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield (step, shard) without end, as ``Order.shards_from``; the step is exact to the next one or so,
        for it is computed from the sources' shares.
        """
        return heapq.merge(
            *(
                self._source_shards(source, step, lane)
                for source in range(len(self.orders))
                for lane in self._lanes(first, stop)
            ),
            key=itemgetter(0),
        )

    def _source_shards(self, source: int, step: int, lane: int) -> Iterator[tuple[int, int]]:
        start = self._turns.counts(step * self.global_batch_size)[source] // self.num_lanes
        steps_per_row = self.num_lanes / float(self.shares[source]) / self.global_batch_size
        for row, shard in self.orders[source].lane_shards(lane, start):
            yield step + int(max(0, row - start) * steps_per_row), self._first_shards[source] + shard

    def _lanes(self, first: int, stop: int) -> range:
        """Return the lanes that fill rows ``first .. stop``; the outer ones perhaps with their neighbours."""
        size, num_lanes = self.global_batch_size, self.num_lanes
        return range(first * num_lanes // size, -(-stop * num_lanes // size))

    def shards_of(self, key: WindowKey) -> list[int]:
        """Return the shards that hold the examples of a window. Sorts the window."""
        first = self._first_shards[key.source]
        return [first + shard for shard in self.orders[key.source].shards_of(key)]


def source_seed(seed: int, source: int) -> int:
    """Return the seed of a source's order: the run's own for the first.

    Shuffles with one key are alike for sets of nearly the same size: two corpora that are translations of
    each other would be read side by side.
    """
    return derive_key(seed, "source", source) if source else seed


def _place(order: Order, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return shards and records of examples by their numbers in a source: int64 (2, len(numbers))."""
    if order.num_lanes == 1:  # the numbers rise, and mostly without a gap
        start, num_rows = int(numbers[0]), int(numbers[-1] - numbers[0]) + 1
        walked = order.walk(0, start, num_rows)
        return walked if num_rows == len(numbers) else walked[:, numbers - start]
    clocks, lanes = np.divmod(numbers, order.num_lanes)
    start = int(clocks.min())
    num_rows = int(clocks.max()) + 1 - start
    walked = np.empty((2, order.num_lanes, num_rows), np.int64)
    for lane in np.flatnonzero(np.bincount(lanes)).tolist():
        walked[:, lane] = order.walk(lane, start, num_rows)
    return walked[:, lanes, clocks - start]
