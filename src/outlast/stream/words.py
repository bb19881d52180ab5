"""Where words begin in the rows of a batch.

In: where each row's text lies in its shards, and the shards' bits. Out: an int8 for each token of the batch.
A word that a row cuts is a word from the border on, and what is no text is a word to itself, so a special
token parts the words beside it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.shards.opened import Rows
from outlast.shards.read import TokenRows
from outlast.shards.word_bits import read_runs, window_bytes
from outlast.stream.blocks import Batch, Blocks, Runs, sort_by_shard
from outlast.stream.memory import Empty
from outlast.stream.pairs import PairRows


class WordRows:
    """A packing whose batches also tell where words begin. Its shards are opened whole.

    Args:
        packing: what an example is.
        shard_tokens: int64 of shape (num_shards,), the tokens of each shard.
    """

    def __init__(self, packing: Blocks | PairRows, shard_tokens: NDArray[np.int64]) -> None:
        self._packing = packing
        self._shard_tokens = shard_tokens

    @property
    def identity(self) -> dict[str, Any]:
        """What examples depend on: word starts depend on nothing more."""
        return self._packing.identity

    @property
    def reads_any_shard(self) -> bool:
        """Whether an example needs other shards than its own."""
        return self._packing.reads_any_shard

    def open(self, shard: int) -> None:
        """Open what the examples of a shard need beside it."""
        self._packing.open(shard)

    def padding(self, num_rows: int) -> Batch:
        """Return padding, of which every token is a word."""
        batch = self._packing.padding(num_rows)
        return {**batch, "word_starts": np.ones_like(batch["attention_mask"])}

    def gather(
        self,
        shards: NDArray[np.int64],
        records: NDArray[np.int64],
        shard_of: Callable[[int], TokenRows],
        empty: Empty = np.empty,
        /,
    ) -> Batch:
        """Return examples by shard and record, with ``word_starts`` int8 of the shape of ``input_ids``."""
        batch = self._packing.gather(shards, records, lambda shard: shard_of(shard).tokens, empty)
        runs = self._packing.text_runs(shards, records, self._shard_tokens)
        length = self._packing.sequence_length
        batch["word_starts"] = gather_word_starts(runs, length, partial(_bits_of, shard_of), empty)
        return batch


def _bits_of(shard_of: Callable[[int], TokenRows], index: int) -> Rows:
    bits = shard_of(index).word_starts
    assert bits is not None, "the stream has checked that the data set tells its words"
    return bits


def gather_word_starts(
    runs: Sequence[Runs],
    sequence_length: int,
    bits_of: Callable[[int], Rows],
    empty: Empty = np.empty,
) -> NDArray[np.int8]:
    """Return 1 where a word begins, int8 of shape (rows, sequence_length).

    Args:
        runs: what a row holds of text, one behind the other; all have the same rows.
        bits_of: the ``word_starts`` of a shard by its index.
        empty: where the memory of the result comes from.
    """
    starts = empty((len(runs[0].shards), sequence_length), np.int8)
    starts.fill(1)
    places = np.arange(sequence_length)
    for run in runs:
        by_shard = sort_by_shard(run.shards)
        counts = np.bincount(run.shards)
        first = 0
        for shard in np.flatnonzero(counts).tolist():
            rows = by_shard[first : first + int(counts[shard])]
            first += len(rows)
            columns = run.columns[rows]
            bits = _read_runs(bits_of(shard), run.begins[rows] - columns, sequence_length)
            ends = columns + run.lengths[rows]
            # Not the first token: it begins a word wherever the run was cut.
            inside = (places > columns[:, None]) & (places < ends[:, None])
            starts[rows] &= (bits | ~inside).astype(np.int8)
    return starts


def _read_runs(bits: Rows, origins: NDArray[np.int64], length: int) -> NDArray[np.uint8]:
    """Return runs of a shard's bits, as ``read_runs`` cuts them out of the bytes around each."""
    width = min(window_bytes(length), len(bits))
    begins = np.clip(origins >> 3, 0, len(bits) - width)
    return read_runs(bits.runs(begins, width), origins - 8 * begins, length)
