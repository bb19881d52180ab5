"""The ``[shards]`` table: into how many pieces a corpus is cut, and how many processes build them.

In: the values of a recipe. Out: a frozen ``ShardsConfig``. The number of shards is part of the data's
identity; the number of processes is not.
"""

import math
import os

import pydantic

from outlast.config import table

_TARGET_BYTES = 256 * 2**20
_SMALLEST_BYTES = 2**20
_WANTED_SHARDS = 16


@table
class ShardsConfig:
    num_shards: int | None = pydantic.Field(default=None, ge=1, le=99_999)
    """Pieces the corpus is cut into, one shard of each split from each. Default: one for every 256 MiB of
    corpus, but 16 where that leaves each at least 1 MiB, so that a small corpus can still be shuffled and
    shared."""
    num_processes: int | None = pydantic.Field(default=None, ge=1)
    """Processes that build shards side by side. Default: one for each core."""


def resolve_num_shards(config: ShardsConfig, corpus_bytes: int) -> int:
    """Return the number of shards for a corpus of so many bytes on disk, the default resolved."""
    if config.num_shards is not None:
        return config.num_shards
    enough = min(_WANTED_SHARDS, math.ceil(corpus_bytes / _SMALLEST_BYTES))
    return min(max(math.ceil(corpus_bytes / _TARGET_BYTES), enough, 1), 99_999)


def resolve_num_processes(config: ShardsConfig) -> int:
    """Return the number of processes, by default the cores that this process may use."""
    return config.num_processes or len(os.sched_getaffinity(0))
