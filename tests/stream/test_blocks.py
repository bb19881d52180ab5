"""Blocks packing by itself: rows in their places, whatever the shards' numbers."""

from pathlib import Path

import numpy as np
import pytest

from outlast.shards.opened import Rows
from outlast.stream.blocks import Blocks
from support.datasets import opened


@pytest.mark.parametrize("first_shard", [0, 2**16 - 2, 2**16 + 1])
def test_rows_come_in_the_order_asked_for(first_shard: int, tmp_path: Path) -> None:
    blocks = Blocks(4, special_tokens=False, special_ids={"pad": 0})
    shards = first_shard + np.array([2, 0, 1, 0, 2], np.int64)
    records = np.array([1, 0, 0, 2, 0], np.int64)

    def tokens_of(shard: int) -> Rows:
        tokens = np.arange(10, dtype=np.uint16) + 100 * (shard - first_shard)
        return opened(tmp_path / str(shard), tokens.tobytes()).rows(tokens.dtype, tokens.shape, 0)

    batch = blocks.gather(shards, records, tokens_of)
    assert batch["input_ids"].tolist() == [
        [204, 205, 206, 207],
        [0, 1, 2, 3],
        [100, 101, 102, 103],
        [8, 9, 0, 0],
        [200, 201, 202, 203],
    ]
    assert batch["attention_mask"].sum(axis=1).tolist() == [4, 4, 4, 2, 4]
