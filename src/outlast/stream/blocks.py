"""Blocks packing: an example is a run of tokens of a shard. Pure arithmetic, nothing on disk.

In: a shard's flat tokens. Out: rows of ``sequence_length`` ids. Example k of a shard holds its tokens
``k*body .. (k+1)*body``, framed by [CLS] and [SEP] where the run asks for special tokens; the last example of
a shard is padded. Nothing is dropped and no example spans two shards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.shards.manifest import ShardEntry
from outlast.shards.opened import Rows, copy
from outlast.storage.system_calls import scratch
from outlast.stream.memory import Empty

Batch = dict[str, NDArray[Any]]
_SHARD, _LAST = 2**40, 2**62
"""Of a number to sort by: shard after shard, and behind all of them. A shard has fewer than 2**40 records."""


class Packing(Protocol):
    """What an example is, and how examples become a batch."""

    @property
    def identity(self) -> dict[str, Any]:
        """What examples depend on, beside the shards and the configuration."""
        return {}

    @property
    def reads_any_shard(self) -> bool:
        """Whether an example needs other shards than its own."""
        return False

    def open(self, shard: int) -> None:
        """Open what the examples of a shard need beside it."""

    def padding(self, num_rows: int) -> Batch:
        """Return rows that are no examples."""
        ...

    def gather(
        self,
        shards: NDArray[np.int64],
        records: NDArray[np.int64],
        shard_of: Callable[[int], Any],
        empty: Empty = np.empty,
        /,
    ) -> Batch:
        """Return examples by shard and record."""
        ...


class Runs(NamedTuple):
    """One run of text for each row, int64 of shape (rows,): its shard, its first token there, the column of
    that token in the row, and its length in tokens.
    """

    shards: NDArray[np.int64]
    begins: NDArray[np.int64]
    columns: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True)
class Blocks(Packing):
    """How tokens become examples.

    Args:
        sequence_length: ids in an example.
        special_tokens: whether an example is framed as [CLS] body [SEP].
        special_ids: ids of ``pad``, ``cls`` and ``sep``.
    """

    sequence_length: int
    special_tokens: bool
    special_ids: dict[str, int]

    def __post_init__(self) -> None:
        if self.body_length < 1:
            raise ConfigError(
                f"An example of {self.sequence_length} tokens has no room for text.",
                where="stream.sequence_length",
                expected="at least 3 with special tokens, 1 without",
            )

    @property
    def body_length(self) -> int:
        """Tokens of text in an example."""
        return self.sequence_length - (2 if self.special_tokens else 0)

    def num_examples(self, num_tokens: int) -> int:
        """Return how many examples a shard of so many tokens makes."""
        return -(-num_tokens // self.body_length)

    def examples_of(self, shards: Sequence[ShardEntry]) -> tuple[int, ...]:
        """Return how many examples each shard makes."""
        return tuple(self.num_examples(shard.num_tokens) for shard in shards)

    def text_runs(
        self, shards: NDArray[np.int64], records: NDArray[np.int64], shard_tokens: NDArray[np.int64]
    ) -> tuple[Runs, ...]:
        """Return where the text of examples lies; ``shard_tokens`` int64 of shape (num_shards,)."""
        begins = records * self.body_length
        lengths = np.minimum(self.body_length, shard_tokens[shards] - begins)
        return (Runs(shards, begins, np.full_like(begins, 1 if self.special_tokens else 0), lengths),)

    def padding(self, num_rows: int) -> Batch:
        """Return padding: ``input_ids`` int32 and ``attention_mask`` int8, both (num_rows, length)."""
        shape = (num_rows, self.sequence_length)
        ids = np.full(shape, self.special_ids["pad"], np.int32)
        return {"input_ids": ids, "attention_mask": np.zeros(shape, np.int8)}

    def gather(
        self,
        shards: NDArray[np.int64],
        records: NDArray[np.int64],
        tokens_of: Callable[[int], Rows],
        empty: Empty = np.empty,
    ) -> Batch:
        """Return examples by shard and record: ``input_ids`` and ``attention_mask`` as ``padding`` has them.

        All runs are copied at once, into a block in the tokens' own narrow dtype; the rows are put in their
        places and widened in one pass. That is the whole cost of a batch, so nothing else happens per row.
        The runs are copied by rising address: the kernel waits for the memory of one before it asks for the
        next, and what lies close together is there sooner.

        Args:
            shards, records: int64 of shape (rows,).
            tokens_of: the flat tokens of a shard by its index.
            empty: where the memory of the result comes from.
        """
        held = {shard: tokens_of(shard) for shard in np.flatnonzero(np.bincount(shards)).tolist()}
        wholes, begins = np.zeros((2, max(held) + 1), np.int64)
        for shard, tokens in held.items():
            wholes[shard], begins[shard] = len(tokens) // self.body_length, tokens.address
        is_partial = records >= wholes[shards]
        order = np.argsort(is_partial * _LAST | shards * _SHARD | records)
        rows, rest = np.split(order, [len(records) - np.count_nonzero(is_partial)])
        dtype = next(iter(held.values())).dtype
        size = self.body_length * dtype.itemsize
        bodies = scratch().array((len(rows), self.body_length), dtype)
        addresses = begins[shards[rows]] + records[rows] * size
        copy([tokens.file for tokens in held.values()], addresses, size, scratch())
        partial: list[tuple[int, NDArray[Any]]] = []
        for row in rest.tolist():
            tokens = held[int(shards[row])]
            partial.append((row, tokens.read(int(wholes[shards[row]]) * self.body_length, len(tokens))))
        return self._framed(bodies, rows, partial, empty)

    def _framed(
        self,
        bodies: NDArray[Any],
        rows: NDArray[np.int64],
        partial: list[tuple[int, NDArray[Any]]],
        empty: Empty,
    ) -> Batch:
        shape = (len(rows) + len(partial), self.sequence_length)
        ids, mask = empty(shape, np.int32), empty(shape, np.int8)
        mask.fill(1)
        if self.special_tokens:
            ids[rows, 1:-1] = bodies
            ids[:, 0] = self.special_ids["cls"]
            ids[:, -1] = self.special_ids["sep"]
        else:
            ids[rows] = bodies
        for row, rest in partial:
            end = self._fill_partial(ids[row], rest)
            ids[row, end:] = self.special_ids["pad"]
            mask[row, end:] = 0
        return {"input_ids": ids, "attention_mask": mask}

    def _fill_partial(self, ids: NDArray[np.int32], rest: NDArray[Any]) -> int:
        """Write a shard's last, shorter example into a row; return where its padding starts."""
        if not self.special_tokens:
            ids[: len(rest)] = rest
            return len(rest)
        ids[1 : 1 + len(rest)] = rest
        ids[1 + len(rest)] = self.special_ids["sep"]
        return 2 + len(rest)


def sort_by_shard(shards: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows in the order of their shards, rows of one shard as they stood."""
    # NumPy sorts 16-bit integers by radix, six times as fast as wider ones.
    narrow = shards.astype(np.uint16) if shards.max() < 2**16 else shards
    return np.argsort(narrow, kind="stable")
