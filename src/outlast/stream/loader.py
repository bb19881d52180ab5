"""Batches by step: ``TokenStream`` turns a manifest, a seed and a step into arrays, read ahead by threads.

In: the URL of a manifest. Out: dicts of numpy arrays, ``input_ids`` int32 and ``attention_mask`` int8 of
shape (process_batch_size, sequence_length), and what pairs and static examples have besides. Invariant:
``batch(step)`` is a pure function, so any thread may make any batch, a resume starts anywhere, and nothing
about the data needs saving.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError, ShardError
from outlast.shards.example_shard import open_examples
from outlast.shards.manifest import Manifest, ShardEntry, read_manifest
from outlast.shards.read import open_tokens
from outlast.storage import Store
from outlast.stream.blocks import Batch, Blocks
from outlast.stream.config import StreamConfig
from outlast.stream.files import OpenFiles
from outlast.stream.memory import Empty, RecycledMemory
from outlast.stream.order import ORDER_VERSION, Order, check_divides, default_lanes_and_window
from outlast.stream.pairs import PairRows, open_pairs
from outlast.stream.rows import StaticRows

_GATHERED_BYTES = 8 * 2**20
_GATHERED_STEPS = 32


class TokenStream:
    """The examples of one split of a data set, as this process sees them.

    Args:
        config: the ``[stream]`` table; ``manifest`` must be set.
        seed: of the run.
        split: of the manifest.
        process_index, process_count: this process reads its own share of every batch's rows.

    Raises:
        ConfigError: no manifest named, or a batch that does not divide.
        ShardError: a manifest or a shard that is missing, damaged or empty.
    """

    def __init__(
        self,
        config: StreamConfig,
        *,
        seed: int,
        split: str = "train",
        process_index: int = 0,
        process_count: int = 1,
    ) -> None:
        if config.manifest is None:
            raise ConfigError(
                "The recipe names no data.",
                where="stream.manifest",
                remedy="`outlast prepare RUN.toml --out DIR`, then --set stream.manifest=DIR/manifest.json",
            )
        self.config = config
        self.manifest, self.store = read_manifest(config.manifest)
        self.split = split
        entries = self.manifest.shards(split)
        self._shards = OpenFiles[Any](
            self.store, entries, config, partial(_open_shard, self.manifest, entries)
        )
        self.packing = _make_packing(self.manifest, self.store, config, split)
        examples = self.packing.examples_of(entries)
        self.order = _make_order(config, examples, entries, seed, self.manifest.dtype.itemsize)
        check_divides("the number of processes", process_count, config.global_batch_size)
        self.process_batch_size = config.global_batch_size // process_count
        self.first_row = process_index * self.process_batch_size

    @property
    def num_examples(self) -> int:
        return self.order.num_examples

    @property
    def identity(self) -> dict[str, Any]:
        """What the order depends on: a resume that would change any of it is refused."""
        return {
            "manifest": self.manifest.fingerprint,
            "split": self.split,
            "sequence_length": self.config.sequence_length,
            "special_tokens": self.config.special_tokens,
            **self.packing.identity,
            "global_batch_size": self.config.global_batch_size,
            "num_lanes": self.order.num_lanes,
            "window_examples": self.order.window_examples,
            "order_version": ORDER_VERSION,
        }

    def batch(self, step: int) -> Batch:
        """Return this process's rows of the batch of a step."""
        return self.batches(step, 1)[0]

    def batches(self, step: int, num_steps: int) -> list[Batch]:
        """Return this process's rows of the batches of consecutive steps, gathered together.

        The batches are views of common arrays: visiting a shard costs the same for one batch as for many.
        """
        return self._batches(step, num_steps, np.empty)

    def _batches(self, step: int, num_steps: int, empty: Empty) -> list[Batch]:
        size = self.process_batch_size
        shards, records = self.order.rows(step, self.first_row, self.first_row + size, num_steps)
        together = self.packing.gather(shards, records, self._shards.get, empty)
        return [
            {name: array[first : first + size] for name, array in together.items()}
            for first in range(0, num_steps * size, size)
        ]

    def batches_from(self, step: int) -> Iterator[Batch]:
        """Yield the batches of step, step + 1, ... without end, read ahead by threads.

        An array of a batch stays as it is for as long as anything refers to it or to a part of it; then its
        memory is used again.
        """
        num_steps = self._steps_together()
        most = max(self.config.reader_threads, -(-self.config.prefetch_batches // num_steps)) + 1
        readers = ThreadPoolExecutor(self.config.reader_threads, "outlast-reader")
        # Apart from the readers: a window may be many downloads, and no batch waits behind them.
        warmer = ThreadPoolExecutor(1, "outlast-warmer")
        closing = threading.Event()
        warmed: dict[int, tuple[int, int]] = {}
        memory = RecycledMemory(most + 1)
        ahead: deque[Future[list[Batch]]] = deque()
        try:
            while True:
                while len(ahead) < most:
                    ahead.append(readers.submit(self._batches, step, num_steps, memory.empty))
                    step += num_steps
                    for lane, window in self._half_walked(step - 1):
                        if warmed.get(lane) != window:
                            warmed[lane] = window
                            warmer.submit(self._open_window, lane, *window, closing)
                yield from ahead.popleft().result()
        finally:
            closing.set()
            for pool in (readers, warmer):
                pool.shutdown(wait=False, cancel_futures=True)

    def _steps_together(self) -> int:
        """Return how many steps a reader gathers at once, sharing what a visit to the shards costs."""
        batch_bytes = self.process_batch_size * self.config.sequence_length * np.dtype(np.int32).itemsize
        return max(1, min(_GATHERED_STEPS, _GATHERED_BYTES // batch_bytes))

    def evaluation_batches(self, limit: int | None = None) -> Iterator[Batch]:
        """Yield every example of the split once, in manifest order, in batches of ``process_batch_size``.

        ``example_index`` int32 names each row's example; ``example_weights`` float32 is 0 for the rows that
        fill up the last batch. With a limit, the examples are spread evenly over the split.
        """
        total = self.num_examples
        chosen = np.arange(total) if limit is None or limit >= total else np.arange(limit) * total // limit
        for first in range(0, len(chosen), self.process_batch_size):
            indices = chosen[first : first + self.process_batch_size]
            missing = self.process_batch_size - len(indices)
            batch = self.examples(indices)
            if missing:
                padding = self.packing.padding(missing)
                batch = {name: np.concatenate((batch[name], padding[name])) for name in batch}
            batch["example_index"] = np.concatenate((indices, np.zeros(missing))).astype(np.int32)
            is_there = (np.arange(self.process_batch_size) < len(indices)).astype(np.float32)
            batch["example_weights"] = is_there * batch.get("example_weights", np.float32(1))
            yield batch

    def examples(self, indices: NDArray[np.int64]) -> Batch:
        """Return examples by their numbers in manifest order, which the order knows as shard and record."""
        ends = np.cumsum(self.order.shard_examples)
        shards = np.searchsorted(ends, indices, side="right")
        records = indices - np.concatenate(([0], ends))[shards]
        return self.packing.gather(shards, records, self._shards.get)

    def _half_walked(self, step: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the lanes whose window is half walked at a step, each with its next (epoch, window).

        That window is sorted and its shards are opened ahead of need: nobody waits at the border.
        """
        order = self.order
        for lane, first, num_rows in order.lanes(self.first_row, self.first_row + self.process_batch_size):
            for span in order.spans(step * order.lane_rows + first, num_rows):
                if span.offset * 2 >= order.lane_window:
                    yield lane, order.next_window(lane, span.epoch, span.window)

    def _open_window(self, lane: int, epoch: int, window: int, closing: threading.Event) -> None:
        counts = np.bincount(self.order.window(lane, epoch, window).shards)
        for shard in np.flatnonzero(counts).tolist():
            if closing.is_set():
                return
            self._shards.get(shard)
            self.packing.open(shard)


def open_stream(
    manifest: str,
    *,
    global_batch_size: int,
    seed: int = 0,
    start_step: int = 0,
    sequence_length: int = 128,
    packing: Literal["blocks", "pairs"] = "blocks",
    split: str = "train",
    process_index: int = 0,
    process_count: int = 1,
) -> Iterator[Batch]:
    """Yield the batches of a data set from a step on, without end.

    The state of the stream is the number of the step: to resume, pass it as ``start_step``.

    Args:
        manifest: URL of the ``manifest.json`` that ``outlast prepare`` wrote.
        global_batch_size: examples in a step, over all processes.
        seed: of the order.
        start_step: the first step to yield.
        sequence_length: tokens in an example.
        packing: runs of tokens, or the data set's pairs of this length.
        split: ``train`` or ``validation``.
        process_index, process_count: this process's share of every batch's rows.

    Returns:
        an iterator of dicts: ``input_ids`` int32 and ``attention_mask`` int8, (process_batch_size,
            sequence_length); with pairs also ``token_type_ids`` int8 of that shape and
            ``next_sentence_label`` int32, (process_batch_size,); static examples have further arrays
            (docs/formats/example_shard.md). A batch that is kept stays as it is; the memory of one that is
            dropped is used again.

    Raises:
        ConfigError: a batch that does not divide.
        ShardError: a manifest or a shard that is missing or damaged.
    """
    config = StreamConfig(
        manifest=manifest,
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        packing=packing,
    )
    stream = TokenStream(
        config, seed=seed, split=split, process_index=process_index, process_count=process_count
    )
    return stream.batches_from(start_step)


def _open_shard(manifest: Manifest, entries: Sequence[ShardEntry], index: int, path: Path) -> Any:
    """Open a token shard as its tokens, an example shard as its arrays by name."""
    if manifest.examples is not None:
        return open_examples(path, entries[index], manifest.examples, manifest.tokenizer)
    return open_tokens(path, entries[index], tokenizer_fingerprint=manifest.tokenizer.fingerprint)


def _make_packing(
    manifest: Manifest, store: Store, config: StreamConfig, split: str
) -> Blocks | PairRows | StaticRows:
    special_ids = manifest.tokenizer.special_ids
    if manifest.examples is not None:
        return StaticRows(manifest.examples, config, special_ids["pad"])
    if config.packing == "pairs":
        return open_pairs(manifest, store, config, split)
    return Blocks(config.sequence_length, config.special_tokens, special_ids)


def _make_order(
    config: StreamConfig,
    examples: tuple[int, ...],
    entries: tuple[ShardEntry, ...],
    seed: int,
    token_bytes: int,
) -> Order:
    if not sum(examples):
        raise ShardError("The split holds no tokens.", remedy="prepare the data again with more text")
    num_bytes = token_bytes * sum(entry.num_tokens for entry in entries)
    num_lanes, window = default_lanes_and_window(
        sum(examples), num_bytes, len(entries), config.global_batch_size
    )
    return Order(
        examples,
        global_batch_size=config.global_batch_size,
        num_lanes=config.num_lanes or num_lanes,
        window_examples=config.window_examples or window,
        seed=seed,
    )
