"""Elastic runs: the number of processes changes at every resume, epochs end in between, and no example is
seen twice.

Each history is drawn from a seed: shards, batch, lanes, window, and how long each life of the run lasts with
how many processes. A life is killed after reading ahead, and the next one goes on from an earlier, committed
step.
"""

import random
from collections import Counter

import numpy as np
import pytest

from outlast.stream.order import Order

PROCESS_COUNTS = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("first", [0])
def test_no_example_is_seen_twice_in_an_epoch(first: int) -> None:
    for seed in range(first, first + 100):
        check_history(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_ten_thousand_elastic_histories(first: int) -> None:
    for seed in range(first, first + 1000):
        check_history(seed)


def check_history(seed: int) -> None:
    rng = random.Random(seed)
    order = draw_order(rng)
    total_steps = rng.randint(1, 4) * order.lane_examples // order.lane_rows + rng.randint(1, 5)
    trained = run_history(rng, order, total_steps)

    # What was trained in the end, step by step, is what one undisturbed process reads.
    assert sorted(trained) == list(range(total_steps))
    for step, rows in trained.items():
        placed = order.rows(step)
        assert np.array_equal(rows, np.stack([placed.shards, placed.records])), f"seed {seed}, step {step}"

    seen: Counter[tuple[int, int, int]] = Counter()
    for step, rows in trained.items():
        for row, (shard, record) in enumerate(rows.T.tolist()):
            epoch = (step * order.lane_rows + row % order.lane_rows) // order.lane_examples
            seen[epoch, shard, record] += 1
    assert max(seen.values()) == 1, f"seed {seed}: an example was seen twice in an epoch"
    whole_epochs = total_steps * order.lane_rows // order.lane_examples
    for epoch in range(whole_epochs):
        sitting_out = order.num_examples - sum(1 for key in seen if key[0] == epoch)
        assert 0 <= sitting_out <= order.num_lanes - 1, f"seed {seed}, epoch {epoch}"


def draw_order(rng: random.Random) -> Order:
    lanes = rng.choice((1, 1, 2, 3, 4, 6))
    batch = 24 * rng.randint(1, 2)  # divides by every process count and every number of lanes
    shards = (rng.randint(lanes, 40), *(rng.randint(0, 40) for _ in range(rng.randint(1, 9))))
    window = rng.choice((1, lanes, 2 * lanes + 1, 16, 10**6))
    return Order(
        shards, global_batch_size=batch, num_lanes=lanes, window_examples=window, seed=rng.randint(0, 99)
    )


def run_history(rng: random.Random, order: Order, total_steps: int) -> dict[int, np.ndarray]:
    """Return the rows of each step as they were last trained, (shard, record) by row."""
    trained: dict[int, np.ndarray] = {}
    committed = 0
    while committed < total_steps:
        process_count = rng.choice(PROCESS_COUNTS)
        share = order.global_batch_size // process_count
        reached = min(total_steps, committed + rng.randint(1, max(2, total_steps // 2)))
        for step in range(committed, reached):
            parts = [order.rows(step, index * share, (index + 1) * share) for index in range(process_count)]
            trained[step] = np.concatenate([np.stack([part.shards, part.records]) for part in parts], axis=1)
        # Killed: the steps after the last commit are lost, and will be trained again.
        committed = reached if reached == total_steps else rng.randint(committed, reached)
    return trained
