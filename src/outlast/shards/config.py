"""The ``[shards]`` table: into how many portions a corpus is cut, and how many processes build them.

In: the values of a recipe. Out: a frozen ``ShardsConfig``. The number of shards is part of the data's
identity; the number of processes is not.
"""

import math
import os
from typing import Annotated, Literal

import pydantic

from outlast.config import Operation, table

_TARGET_BYTES = 256 * 2**20
_SMALLEST_BYTES = 2**20
_WANTED_SHARDS = 16


@table
class PairsConfig:
    """The ``[shards.pairs]`` table: pairs of segments for next-sentence prediction."""

    lengths: tuple[Annotated[int, pydantic.Field(ge=5, le=65_535)], ...] | None = None
    """Sequence lengths to make pairs for, such as [128, 512]. Default: stream.sequence_length where
    stream.packing is pairs, else none."""
    num_passes: int = pydantic.Field(default=10, ge=1, le=10_000)
    """How often the corpus is cut into pairs, each time at other places. An epoch is all of them."""
    short_probability: float = pydantic.Field(default=0.1, ge=0, le=1)
    """Share of the documents, drawn anew in each pass, that are cut into shorter pairs."""
    seed: int = 0
    """Of the places where the corpus is cut and of the random second segments."""


@table
class ShardsConfig:
    num_shards: int | None = pydantic.Field(default=None, ge=1, le=99_999)
    """Portions the corpus is cut into, one shard of each split from each. Default: one for every 256 MiB of
    corpus, but 16 where that leaves each at least 1 MiB, so that a small corpus can still be shuffled and
    shared."""
    num_processes: Operation[int | None] = pydantic.Field(default=None, ge=1)
    """Processes that build shards side by side. Default: one for each core."""
    words: Literal["none", "pieces", "mecab"] | None = None
    """Whether the shards tell where words begin, for objective.whole_words: "pieces", as the vocabulary marks
    them ("##", "▁", a space); "mecab", Japanese words. Default: pieces where objective.whole_words is true,
    else none."""
    pairs: PairsConfig = PairsConfig()
    """Pairs of segments for next-sentence prediction, as tables beside the shards."""


def resolve_num_shards(config: ShardsConfig, corpus_bytes: int) -> int:
    """Return the number of shards for a corpus of so many bytes on disk, the default resolved."""
    if config.num_shards is not None:
        return config.num_shards
    enough = min(_WANTED_SHARDS, math.ceil(corpus_bytes / _SMALLEST_BYTES))
    return min(max(math.ceil(corpus_bytes / _TARGET_BYTES), enough, 1), 99_999)


def resolve_num_processes(config: ShardsConfig) -> int:
    """Return the number of processes, by default the cores that this process may use."""
    return config.num_processes or len(os.sched_getaffinity(0))
