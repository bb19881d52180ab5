"""Pairs packing: an example is two segments of text, found in a table of offsets.

In: rows of pair tables, and the flat tokens of any shard of the split. Out: rows of ``sequence_length`` ids,
[CLS] A [SEP] B [SEP] and padding, and whether B follows A. Nothing is drawn here: the same row is the same
example.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.shards.manifest import Manifest, PairSet, ShardEntry
from outlast.shards.opened import OpenedFile, Rows, copy
from outlast.shards.pair_table import identity_of, open_pair_table
from outlast.shards.pairs import NUM_SPECIAL_TOKENS, Pairs
from outlast.storage import Store, open_store
from outlast.storage.system_calls import scratch
from outlast.stream.blocks import Batch, Runs, sort_by_shard
from outlast.stream.config import StreamConfig
from outlast.stream.files import OpenFiles
from outlast.stream.memory import Empty

Segments = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Of each row's segment its shard, its first token there, and its length in tokens."""


@dataclass(frozen=True)
class PairRows:
    """How rows of tables become examples.

    Args:
        pair_set: what the manifest says of the tables.
        split: whose examples.
        special_ids: ids of ``pad``, ``cls`` and ``sep``.
        table_of: the columns of a shard's table by its index.
        first_shards: int64 by shard: the number of its data set's first shard, which the numbers of second
            shards in its table count from; None: 0 for all.
    """

    pair_set: PairSet
    split: str
    special_ids: dict[str, int]
    table_of: Callable[[int], Sequence[Rows]]
    first_shards: NDArray[np.int64] | None = None

    @property
    def sequence_length(self) -> int:
        """Ids in an example."""
        return self.pair_set.sequence_length

    @property
    def identity(self) -> dict[str, str]:
        """What examples depend on, beside the shards and the configuration."""
        return {"pairs": self.pair_set.fingerprint}

    @property
    def reads_any_shard(self) -> bool:
        """Whether an example needs other shards than its own: its second segment may lie in any."""
        return True

    def examples_of(self, shards: Sequence[ShardEntry]) -> tuple[int, ...]:
        """Return how many examples each shard makes, all passes together."""
        tables = self.pair_set.splits[self.split]
        return tuple(table.num_examples for table, _ in zip(tables, shards, strict=True))

    def open(self, shard: int) -> None:
        """Open what the examples of a shard need beside its tokens: its table."""
        self.table_of(shard)

    def text_runs(
        self, shards: NDArray[np.int64], records: NDArray[np.int64], shard_tokens: NDArray[np.int64]
    ) -> tuple[Runs, ...]:
        """Return where segments A and B of examples lie; ``shard_tokens`` is not looked at."""
        pairs = self._look_up(shards, records)
        first, second = (lengths.astype(np.int64) for lengths in (pairs.first_length, pairs.second_length))
        one = np.ones_like(first)
        return (
            Runs(shards, pairs.first_begin.astype(np.int64), one, first),
            Runs(self._second_shards(shards, pairs), pairs.second_begin.astype(np.int64), first + 2, second),
        )

    def padding(self, num_rows: int) -> Batch:
        """Return padding: the arrays that ``gather`` makes, for rows without text; their label is 0."""
        shape = (num_rows, self.sequence_length)
        return {
            "input_ids": np.full(shape, self.special_ids["pad"], np.int32),
            "attention_mask": np.zeros(shape, np.int8),
            "token_type_ids": np.zeros(shape, np.int8),
            "next_sentence_label": np.zeros(num_rows, np.int32),
        }

    def gather(
        self,
        shards: NDArray[np.int64],
        records: NDArray[np.int64],
        tokens_of: Callable[[int], Rows],
        empty: Empty = np.empty,
    ) -> Batch:
        """Return examples by shard and record.

        Args:
            shards, records: int64 of shape (rows,).
            tokens_of: the flat tokens of a shard by its index.
            empty: where the memory of the result comes from.

        Returns:
            ``input_ids`` int32, ``attention_mask`` and ``token_type_ids`` int8 of shape (rows,
                sequence_length); ``next_sentence_label`` int32 of shape (rows,), 1 where B is of another
                document. ``token_type_ids`` is 1 for B and the [SEP] behind it.
        """
        pairs = self._look_up(shards, records)
        num_rows = len(shards)
        first_length = pairs.first_length.astype(np.int64)
        second_length = pairs.second_length.astype(np.int64)
        first_end = 1 + first_length
        end = first_length + second_length + NUM_SPECIAL_TOKENS
        ids = empty((num_rows, self.sequence_length), np.int32)
        ids[...] = self._copy_rows(
            (shards, pairs.first_begin.astype(np.int64), first_length),
            (self._second_shards(shards, pairs), pairs.second_begin.astype(np.int64), second_length),
            tokens_of,
        )

        columns = np.arange(self.sequence_length, dtype=np.int32)
        mask, types = np.split(empty((2 * num_rows, self.sequence_length), np.int8), 2)
        np.less(columns, end.astype(np.int32)[:, None], out=mask.view(np.bool_))
        np.greater(columns, first_end.astype(np.int32)[:, None], out=types.view(np.bool_))
        types &= mask
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": types,
            "next_sentence_label": pairs.next_sentence_label.astype(np.int32),
        }

    def _copy_rows(self, first: Segments, second: Segments, tokens_of: Callable[[int], Rows]) -> NDArray[Any]:
        """Return rows in the tokens' own narrow dtype, in the thread's scratch memory.

        Each is six runs, copied one behind the other: [CLS], A, [SEP], B, [SEP] and padding.
        """
        num_rows, length = len(first[0]), self.sequence_length
        shards, begins, lengths = (np.concatenate(columns) for columns in zip(first, second, strict=True))
        addresses, files, dtype = _find_segments(shards, begins, lengths, tokens_of)
        fixed = np.full(2 + length, self.special_ids["pad"], dtype)
        fixed[:2] = self.special_ids["cls"], self.special_ids["sep"]
        runs = np.empty((num_rows, 6, 2), np.int64)
        runs[:, :, 0] = fixed.ctypes.data + dtype.itemsize * np.array([0, 0, 1, 0, 1, 2])
        runs[:, (1, 3), 0] = addresses.reshape(2, -1).T
        runs[:, :, 1] = 1
        runs[:, (1, 3), 1] = lengths.reshape(2, -1).T
        runs[:, 5, 1] = length - runs[:, :5, 1].sum(axis=1)
        narrow = scratch().array((num_rows, length), dtype)
        copy(files, runs[..., 0].reshape(-1), runs[..., 1].reshape(-1) * dtype.itemsize, scratch())
        return narrow

    def _second_shards(self, shards: NDArray[np.int64], pairs: Pairs) -> NDArray[np.int64]:
        """Return the shards of second segments, numbered as ``shards`` are."""
        own = pairs.second_shard.astype(np.int64)
        return own if self.first_shards is None else own + self.first_shards[shards]

    def _look_up(self, shards: NDArray[np.int64], records: NDArray[np.int64]) -> Pairs:
        """Return the rows of the tables, in the order of the examples."""
        found: Pairs | None = None
        by_shard = sort_by_shard(shards)
        counts = np.bincount(shards)
        start = 0
        for shard in np.flatnonzero(counts).tolist():
            rows = by_shard[start : start + int(counts[shard])]
            start += len(rows)
            table = self.table_of(shard)
            if found is None:
                found = Pairs(*(np.empty(len(shards), column.dtype) for column in table))
            for column, values in zip(found, table, strict=True):
                column[rows] = values.take(records[rows])
        assert found is not None, "a batch has rows"
        return found


def open_pairs(manifest: Manifest, store: Store, config: StreamConfig, split: str) -> PairRows:
    """Return the pairs of a data set for the length of a run; the tables are opened as they are needed.

    Raises:
        ConfigError: a run without special tokens.
        ShardError: the data set has no pairs of that length.
    """
    if not config.special_tokens:
        raise ConfigError(
            "Pairs are told apart by their special tokens.",
            where="stream.special_tokens",
            remedy="leave it true, or set stream.packing to blocks",
        )
    pair_set = manifest.pair_set(config.sequence_length)
    tables = pair_set.splits[split]
    shard_tokens = [entry.num_tokens for entry in manifest.shards(split)]

    def open_table(index: int, file: OpenedFile) -> tuple[Rows, ...]:
        identity = identity_of(manifest, pair_set, split, index)
        return open_pair_table(file, tables[index], identity=identity, shard_tokens=shard_tokens)

    files = OpenFiles(open_store(f"{store.url}/{pair_set.path}"), tables, config, open_table)
    return PairRows(pair_set, split, manifest.tokenizer.special_ids, files.get)


def _find_segments(
    shards: NDArray[np.int64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    tokens_of: Callable[[int], Rows],
) -> tuple[NDArray[np.int64], list[OpenedFile], np.dtype[Any]]:
    """Return the addresses of segments, the files they are of, and the dtype of tokens."""
    order = sort_by_shard(shards)
    counts = np.bincount(shards)
    addresses = np.empty_like(begins)
    opened: list[Rows] = []
    start = 0
    for shard in np.flatnonzero(counts).tolist():
        some = order[start : start + int(counts[shard])]
        start += len(some)
        opened.append(tokens_of(shard))
        addresses[some] = opened[-1].addresses(begins[some], lengths[some])
    return addresses, [tokens.file for tokens in opened], opened[0].dtype
