"""The machine behind every stream: from an order and a packing to batches by step, read ahead by threads.

In: the opened shards of a split, what an example is, and the order of examples. Out: dicts of numpy arrays.
Invariant: ``batch(step)`` is a pure function, so any thread may make any batch, a resume starts anywhere, and
nothing about the data needs saving.
"""

from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain, takewhile
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError, ShardError
from outlast.storage import Store
from outlast.stream.blocks import Batch, Packing
from outlast.stream.config import StreamConfig
from outlast.stream.files import Shards, fetch_together
from outlast.stream.memory import Empty, RecycledMemory
from outlast.stream.mixture import Mixture
from outlast.stream.order import Order, Placement, WindowKey, check_divides, default_lanes_and_window
from outlast.stream.readers import read_alone
from outlast.stream.remote.ahead import Needs, ReadAhead
from outlast.stream.remote.cancel import Cancellation, work_for

_SIGNAL_SECONDS = 1.0


class DataSet(NamedTuple):
    """A data set of a stream, of text or of images, as far as a run has to know it.

    Attributes:
        label: what metrics and evaluations call it; None where it is the only one.
        store: where the manifest lies.
    """

    label: str | None
    url: str
    store: Store
    splits: Collection[str]


class ExampleStream:
    """The examples of one split, as this process sees them: of text, or of images.

    Args:
        config: the ``[stream]`` table.
        split: of the manifest.
        shards: of the split.
        packing: what an example is.
        order: of the examples.
        process_index, process_count: this process reads its own share of every batch's rows.

    A stream belongs to the process that opened it: it cannot be pickled, and what is forked opens its own.

    Raises:
        ConfigError: a batch that does not divide, or a process that is none of them.
    """

    def __init__(
        self,
        config: StreamConfig,
        *,
        split: str,
        shards: Shards,
        packing: Packing,
        order: Order | Mixture,
        process_index: int,
        process_count: int,
    ) -> None:
        self.config = config
        self.split = split
        self.packing = packing
        self.order = order
        self._shards = shards
        _check_process(process_index, process_count)
        check_divides("the number of processes", process_count, config.global_batch_size)
        self.process_batch_size = config.global_batch_size // process_count
        self.first_row = process_index * self.process_batch_size
        self.own_rows = (self.first_row, self.first_row + self.process_batch_size)

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "A stream cannot be sent to another process.",
            remedy="open it there, with the same manifest and seed; its state is the number of the step",
        )

    @property
    def identity(self) -> dict[str, Any]:
        """What the order depends on: a resume that would change any of it is refused."""
        raise NotImplementedError

    @property
    def data_sets(self) -> tuple[DataSet, ...]:
        """What is read."""
        raise NotImplementedError

    @property
    def num_examples(self) -> int:
        return self.order.num_examples

    def epochs_of(self, step: int) -> dict[str, float]:
        """Return how many epochs of each source of a mixture are consumed before a step; else nothing."""
        del step
        return {}

    def batch(self, step: int) -> Batch:
        """Return this process's rows of the batch of a step."""
        return self.batches(step, 1)[0]

    def batches(self, step: int, num_steps: int) -> list[Batch]:
        """Return this process's rows of the batches of consecutive steps, gathered together.

        The batches are views of common arrays: visiting a shard costs the same for one batch as for many.
        Raises ConfigError for a step below 0.
        """
        _check_step(step)
        return self._batches(step, num_steps, np.empty)

    def _batches(self, step: int, num_steps: int, empty: Empty) -> list[Batch]:
        size = self.process_batch_size
        together = self._gather_steps(step, num_steps, empty)
        return [
            {name: array[first : first + size] for name, array in together.items()}
            for first in range(0, num_steps * size, size)
        ]

    def _gather_steps(self, step: int, num_steps: int, empty: Empty) -> Batch:
        """Return this process's rows of the batches of consecutive steps, end to end."""
        shards, records = self.order.rows(step, *self.own_rows, num_steps)
        self._fetch_together(shards)
        return self.packing.gather(shards, records, self._shards.get, empty)

    def read(self, start_step: int, *, evaluation: bool = False, every: int = 1) -> Generator[Batch]:
        """Yield the batches of ``batches_from`` or ``evaluation_batches`` for a single reader
        (``read_alone``).
        """
        _check_step(start_step)
        batches = (
            self.evaluation_batches(first=start_step, every=every)
            if evaluation
            else self.batches_from(start_step, every)
        )
        return read_alone(batches, every=every)

    def batches_from(self, step: int, every: int = 1) -> Generator[Batch]:
        """Yield the batches of step, step + every, ... without end, read ahead by threads.

        An array of a batch stays as it is for as long as anything refers to it or to a part of it; then its
        memory is used again. Raises ConfigError for a step below 0.
        """
        _check_step(step)
        return self._batches_from(step, every)

    def _batches_from(self, step: int, every: int) -> Generator[Batch]:
        num_steps = self._steps_together() if every == 1 else 1
        most = max(self.config.reader_threads, -(-self.config.prefetch_batches // num_steps)) + 1
        closing = Cancellation()
        readers = ThreadPoolExecutor(self.config.reader_threads, "outlast-reader", work_for, (closing,))
        # Apart from the readers: a window may be many downloads, and no batch waits behind them.
        warmer = ThreadPoolExecutor(1, "outlast-warmer")
        warmed: dict[tuple[int, int], WindowKey] = {}
        memory = RecycledMemory(most + 1)
        ahead: deque[Future[list[Batch]]] = deque()
        read_ahead = self._read_ahead(self._needs)
        try:
            while True:
                read_ahead.advance(step - len(ahead) * num_steps * every)
                while len(ahead) < most:
                    ahead.append(readers.submit(self._batches, step, num_steps, memory.empty))
                    step += num_steps * every
                    # Sorted and opened ahead of need: nobody waits at the border of a window.
                    for key in self.order.upcoming(step - every, *self.own_rows):
                        if warmed.get((key.source, key.lane)) != key:
                            warmed[key.source, key.lane] = key
                            warmer.submit(self._open_window, key, closing)
                yield from _result(ahead.popleft())
        finally:
            closing.cancel()
            read_ahead.close()
            for pool in (readers, warmer):
                pool.shutdown(wait=False, cancel_futures=True)

    def _steps_together(self) -> int:
        """Return how many steps a reader gathers at once, sharing what a visit to the shards costs."""
        return 1

    def evaluation_batches(
        self, limit: int | None = None, *, first: int = 0, every: int = 1
    ) -> Generator[Batch]:
        """Yield every example of the split once, in manifest order: this process's rows of each batch.

        ``example_index`` int32 names each row's example; ``example_weights`` float32 is 0 for the rows that
        fill up the last batch. With a limit, the examples are spread evenly over the split. The batches are
        ``first``, ``first + every``, ...; all processes have equally many.
        """
        total, size = self.num_examples, self.config.global_batch_size
        chosen = np.arange(total) if limit is None or limit >= total else np.arange(limit) * total // limit
        shards, _ = self._places(chosen)
        begins = np.flatnonzero(np.diff(shards, prepend=-1))
        needed = [(int(begin) // size, int(shards[begin])) for begin in begins]
        read_ahead = self._read_ahead(lambda batch: _needed_from(needed, batch))
        try:
            for number in range(first, -(-len(chosen) // size), every):
                read_ahead.advance(number)
                begin = number * size + self.first_row
                yield self._evaluation_batch(chosen[begin : begin + self.process_batch_size])
        finally:
            read_ahead.close()

    def _evaluation_batch(self, indices: NDArray[np.int64]) -> Batch:
        missing = self.process_batch_size - len(indices)
        parts = [self.examples(indices)] if len(indices) else []
        parts += [self.packing.padding(missing)] if missing else []
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        batch["example_index"] = np.concatenate((indices, np.zeros(missing))).astype(np.int32)
        is_there = (np.arange(self.process_batch_size) < len(indices)).astype(np.float32)
        batch["example_weights"] = is_there * batch.get("example_weights", np.float32(1))
        return batch

    def examples(self, indices: NDArray[np.int64]) -> Batch:
        """Return examples by their numbers in manifest order, which the order knows as shard and record."""
        shards, records = self._places(indices)
        self._fetch_together(shards)
        return self.packing.gather(shards, records, self._shards.get)

    def _places(self, indices: NDArray[np.int64]) -> Placement:
        """Return where examples lie, by their numbers in manifest order."""
        ends = np.cumsum(self.order.shard_examples)
        shards = np.searchsorted(ends, indices, side="right")
        return Placement(shards, indices - np.concatenate(([0], ends))[shards])

    def _open_window(self, key: WindowKey, closing: Cancellation) -> None:
        shards = self.order.shards_of(key)
        if self._shards.is_remote:
            return  # sorted, and opened by those who fetch ahead
        for shard in shards:
            if closing.is_cancelled():
                return
            self._open(shard)

    def _open(self, shard: int) -> None:
        self._shards.get(shard)
        self.packing.open(shard)

    def _needs(self, step: int) -> Iterable[tuple[int, int]]:
        """Yield (step, shard) for what this process's rows need from a step on, by rising step."""
        needed = self.order.shards_from(step, *self.own_rows)
        if not self.packing.reads_any_shard:
            return needed
        now = takewhile(lambda need: need[0] <= step, needed)
        return chain(now, ((step, shard) for shard in range(len(self.order.shard_examples))))

    def _read_ahead(self, needs: Needs) -> ReadAhead:
        num_shards = len(self.order.shard_examples)
        return ReadAhead(self._shards, num_shards, needs, self._open, self.config.cache_bytes)

    def _fetch_together(self, shards: NDArray[np.int64]) -> None:
        """Fetch what rows need of a remote data set, side by side."""
        if self._shards.is_remote:
            is_any = self.packing.reads_any_shard
            wanted = range(len(self.order.shard_examples)) if is_any else np.flatnonzero(np.bincount(shards))
            fetch_together(self._shards, map(int, wanted), self._open, self.config.cache_bytes)


def _result(future: Future[list[Batch]]) -> list[Batch]:
    """Wait for batches, a little at a time: a signal that comes as a wait begins is noticed when it ends."""
    while not future.done():
        wait((future,), _SIGNAL_SECONDS)
    return future.result()


def _check_process(index: int, count: int) -> None:
    if count < 1:
        raise ConfigError(f"There are {count} processes.", where="process_count", expected="1 or more")
    if not 0 <= index < count:
        raise ConfigError(
            f"Process {index} is none of {count} processes.",
            where="process_index",
            expected=f"0 to {count - 1}",
        )


def _check_step(step: int) -> None:
    if step < 0:
        raise ConfigError(f"There is no step {step}.", where="start_step", expected="0 or more")


def _needed_from(needed: Sequence[tuple[int, int]], batch: int) -> Iterator[tuple[int, int]]:
    """Yield (batch, shard): from which batch on each shard is needed. It is until its source goes on to the
    next.
    """
    for (need, shard), (until, _) in zip(needed, [*needed[1:], (batch, 0)], strict=True):
        if until >= batch:
            yield need, shard


def make_order(config: StreamConfig, examples: tuple[int, ...], num_bytes: int, seed: int) -> Order:
    """Return the order of a split. Raises ConfigError, or ShardError where the split is empty.

    Args:
        config: of the stream.
        examples: of each shard.
        num_bytes: that reading all examples once touches.
        seed: of the run.
    """
    if not sum(examples):
        raise ShardError("The split holds no examples.", remedy="prepare the data again with more of it")
    num_lanes, window = default_lanes_and_window(
        sum(examples), num_bytes, len(examples), config.global_batch_size
    )
    return Order(
        examples,
        global_batch_size=config.global_batch_size,
        num_lanes=config.num_lanes or num_lanes,
        window_examples=config.window_examples or window,
        seed=seed,
    )
