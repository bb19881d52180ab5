"""Batches by step: ``TokenStream`` turns a manifest, a seed and a step into arrays, read ahead by threads.

In: the URL of a manifest. Out: dicts of numpy arrays, ``input_ids`` int32 and ``attention_mask`` int8 of
shape (process_batch_size, sequence_length). Invariant: ``batch(step)`` is a pure function, so any thread may
make any batch, a resume starts anywhere, and nothing about the data needs saving.
"""

import hashlib
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError, ShardError
from outlast.shards.manifest import ShardEntry, read_manifest
from outlast.shards.read import open_tokens
from outlast.shards.token_format import SHARD_REMEDY
from outlast.stream.blocks import Batch, Blocks
from outlast.stream.cache import ShardCache, default_cache_folder
from outlast.stream.config import StreamConfig
from outlast.stream.order import ORDER_VERSION, Order, check_divides, default_lanes_and_window

_GATHERED_BYTES = 4 * 2**20
_GATHERED_STEPS = 32
_MOST_OPEN = 512


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
        self.blocks = Blocks(
            config.sequence_length, config.special_tokens, self.manifest.tokenizer.special_ids
        )
        self.order = _make_order(config, entries, self.blocks, seed, self.manifest.dtype.itemsize)
        check_divides("the number of processes", process_count, config.global_batch_size)
        self.process_batch_size = config.global_batch_size // process_count
        self.first_row = process_index * self.process_batch_size
        self._shards = _OpenShards(self, entries)

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
        stop = self.first_row + self.process_batch_size
        placed = [self.order.rows(step + ahead, self.first_row, stop) for ahead in range(num_steps)]
        shards = np.concatenate([rows.shards for rows in placed])
        records = np.concatenate([rows.records for rows in placed])
        together = self.blocks.gather(shards, records, self._shards.tokens)
        size = self.process_batch_size
        return [
            {name: array[first : first + size] for name, array in together.items()}
            for first in range(0, num_steps * size, size)
        ]

    def batches_from(self, step: int) -> Iterator[Batch]:
        """Yield the batches of step, step + 1, ... without end, read ahead by threads."""
        num_steps = self._steps_together()
        most = max(self.config.reader_threads, -(-self.config.prefetch_batches // num_steps)) + 1
        readers = ThreadPoolExecutor(self.config.reader_threads, "outlast-reader")
        # Apart from the readers: a window may be many downloads, and no batch waits behind them.
        warmer = ThreadPoolExecutor(1, "outlast-warmer")
        closing = threading.Event()
        warmed: dict[int, tuple[int, int]] = {}
        ahead: deque[Future[list[Batch]]] = deque()
        try:
            while True:
                while len(ahead) < most:
                    ahead.append(readers.submit(self.batches, step, num_steps))
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
        """Return how many steps a reader gathers at once: as many as stay in the processor's cache."""
        batch_bytes = self.process_batch_size * self.config.sequence_length * np.dtype(np.int32).itemsize
        return max(1, min(_GATHERED_STEPS, _GATHERED_BYTES // batch_bytes))

    def evaluation_batches(self, limit: int | None = None) -> Iterator[Batch]:
        """Yield every example of the split once, in manifest order, in batches of ``process_batch_size``.

        ``example_index`` int32 names each row's example; ``example_weights`` float32 is 0 for the rows that
        fill up the last batch. With a limit, the examples are spread evenly over the split.
        """
        total = self.num_examples
        chosen = np.arange(total) if limit is None or limit >= total else np.arange(limit) * total // limit
        ends = np.cumsum(self.order.shard_examples)
        for first in range(0, len(chosen), self.process_batch_size):
            indices = chosen[first : first + self.process_batch_size]
            missing = self.process_batch_size - len(indices)
            shards = np.searchsorted(ends, indices, side="right")
            records = indices - np.concatenate(([0], ends))[shards]
            batch = self.blocks.gather(shards, records, self._shards.tokens)
            if missing:
                padding = self.blocks.padding(missing)
                batch = {name: np.concatenate((batch[name], padding[name])) for name in batch}
            batch["example_index"] = np.concatenate((indices, np.zeros(missing))).astype(np.int32)
            batch["example_weights"] = (np.arange(self.process_batch_size) < len(indices)).astype(np.float32)
            yield batch

    def _half_walked(self, step: int) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the lanes whose window is half walked at a step, each with its next (epoch, window).

        That window is sorted and its shards are opened ahead of need: nobody waits at the border.
        """
        for span in self.order.spans(step, self.first_row, self.first_row + self.process_batch_size):
            if span.offset * 2 >= self.order.lane_window:
                yield span.lane, self.order.next_window(span.lane, span.epoch, span.window)

    def _open_window(self, lane: int, epoch: int, window: int, closing: threading.Event) -> None:
        for shard in np.unique(self.order.window(lane, epoch, window).shards):
            if closing.is_set():
                return
            self._shards.tokens(int(shard))


class _OpenShards:
    """The shards that have been opened: mapped files, each verified once."""

    def __init__(self, stream: TokenStream, entries: tuple[ShardEntry, ...]) -> None:
        self._entries = entries
        self._store = stream.store
        self._verify = stream.config.verify
        self._tokenizer_fingerprint = stream.manifest.tokenizer.fingerprint
        self._config = stream.config
        self._tokens: dict[int, NDArray[Any]] = {}
        self._verified: set[int] = set()
        self._locks = [threading.Lock() for _ in entries]

    def tokens(self, index: int) -> NDArray[Any]:
        """Return the flat tokens of a shard, uint16 or uint32, mapped.

        A mapped file holds a descriptor, so only so many stay open; the oldest goes, and is not verified
        again.
        """
        tokens = self._tokens.get(index)
        if tokens is None:
            with self._locks[index]:
                tokens = self._tokens.get(index)
                if tokens is None:
                    tokens = self._open(index)
                    self._tokens[index] = tokens
                    if len(self._tokens) > _MOST_OPEN:
                        with suppress(StopIteration, KeyError, RuntimeError):  # another thread was as quick
                            del self._tokens[next(iter(self._tokens))]
        return tokens

    def _open(self, index: int) -> NDArray[Any]:
        entry = self._entries[index]
        path = self._store.local_path(entry.name)
        if path is not None:
            if self._verify and index not in self._verified:
                _verify_file(path, entry)
                self._verified.add(index)
            return self._open_file(path, entry)
        folder = (
            Path(self._config.cache_dir).expanduser() if self._config.cache_dir else default_cache_folder()
        )
        cache = ShardCache(folder, self._config.cache_bytes, verify=self._verify)
        while True:
            path = cache.fetch(self._store, entry)
            try:
                return self._open_file(path, entry)
            except FileNotFoundError:
                continue  # another process made room between the two lines

    def _open_file(self, path: Path, entry: ShardEntry) -> NDArray[Any]:
        return open_tokens(path, entry, tokenizer_fingerprint=self._tokenizer_fingerprint)


def open_stream(
    manifest: str,
    *,
    global_batch_size: int,
    seed: int = 0,
    start_step: int = 0,
    sequence_length: int = 128,
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
        split: ``train`` or ``validation``.
        process_index, process_count: this process's share of every batch's rows.

    Returns:
        an iterator of dicts: ``input_ids`` int32 and ``attention_mask`` int8, (process_batch_size,
            sequence_length).

    Raises:
        ConfigError: a batch that does not divide.
        ShardError: a manifest or a shard that is missing or damaged.
    """
    config = StreamConfig(
        manifest=manifest, global_batch_size=global_batch_size, sequence_length=sequence_length
    )
    stream = TokenStream(
        config, seed=seed, split=split, process_index=process_index, process_count=process_count
    )
    return stream.batches_from(start_step)


def _make_order(
    config: StreamConfig, entries: tuple[ShardEntry, ...], blocks: Blocks, seed: int, token_bytes: int
) -> Order:
    examples = tuple(blocks.num_examples(entry.num_tokens) for entry in entries)
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


def _verify_file(path: Path, entry: ShardEntry) -> None:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise ShardError("The shard is missing.", where=str(path), remedy=SHARD_REMEDY) from None
    if digest != entry.sha256:
        raise ShardError(
            f"The shard fails the manifest's sha256 ({path.stat().st_size} of {entry.size_bytes} bytes).",
            where=str(path),
            expected=entry.sha256,
            remedy=SHARD_REMEDY,
        )
