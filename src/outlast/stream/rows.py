"""Static examples: a row of an example shard is an example, with its masks where it has some.

In: the arrays of shards. Out: batches of the rows asked for, each array in the dtype that a batch has.
Nothing is drawn and nothing is cut: what the records said is what the model sees.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.shards.example_shard import ARRAYS, array_shape
from outlast.shards.manifest import ShardEntry, StaticExamples
from outlast.shards.opened import Rows
from outlast.stream.blocks import Batch, Packing, sort_by_shard
from outlast.stream.config import StreamConfig
from outlast.stream.memory import Empty


@dataclass(frozen=True)
class StaticRows(Packing):
    """How rows become batches.

    Args:
        examples: the arrays and their shapes.
        config: of the run, whose sequence length must be that of the examples.
        pad_id: the token of padding.

    Raises:
        ConfigError: a run of another length, or with pairs.
    """

    examples: StaticExamples
    config: StreamConfig
    pad_id: int

    def __post_init__(self) -> None:
        if self.config.packing != "blocks":
            raise ConfigError(
                f"The data set holds fixed examples, which cannot be packed as {self.config.packing}.",
                where="stream.packing",
                remedy="leave stream.packing out: the examples are what they are",
            )
        if self.config.sequence_length != self.examples.sequence_length:
            raise ConfigError(
                f"The data set's examples are {self.examples.sequence_length} tokens long, the run's "
                f"{self.config.sequence_length}: fixed examples cannot be cut anew.",
                where="stream.sequence_length",
                remedy=f"set stream.sequence_length to {self.examples.sequence_length}, or import the "
                "records as tokens: outlast shards import-tfrecord --as tokens",
            )

    def examples_of(self, shards: Sequence[ShardEntry]) -> tuple[int, ...]:
        """Return how many examples each shard holds."""
        return tuple(shard.num_examples or 0 for shard in shards)

    def padding(self, num_rows: int) -> Batch:
        """Return rows that say nothing: padding, no prediction, zeros."""
        rows = self._arrays(num_rows, np.empty)
        for name, array in rows.items():
            array[:] = self.pad_id if name == "input_ids" else 0
        return rows

    def gather(
        self,
        shards: NDArray[np.int64],
        records: NDArray[np.int64],
        arrays_of: Callable[[int], Mapping[str, Rows]],
        empty: Empty = np.empty,
    ) -> Batch:
        """Return examples by shard and record.

        Args:
            shards, records: int64 of shape (rows,).
            arrays_of: the arrays of a shard by its index.
            empty: where the memory of the result comes from.
        """
        batch = self._arrays(len(records), empty)
        by_shard = sort_by_shard(shards)
        counts = np.bincount(shards)
        start = 0
        for shard in np.flatnonzero(counts).tolist():
            rows = by_shard[start : start + int(counts[shard])]
            start += len(rows)
            arrays = arrays_of(shard)
            for name, array in batch.items():
                array[rows] = arrays[name].take(records[rows])
        return batch

    def _arrays(self, num_rows: int, empty: Empty) -> Batch:
        return {
            name: empty((num_rows, *array_shape(name, self.examples)), ARRAYS[name].batch)
            for name in self.examples.arrays
        }
