"""The order: bijective, elastic, frozen."""

import numpy as np
import pytest

from outlast.errors import ConfigError, ShardError
from outlast.prng import derive_key, mix64, permutation
from outlast.stream.order import Order, default_lanes_and_window


def make_order(
    shard_examples: tuple[int, ...], batch: int, lanes: int = 1, window: int = 10**9, seed: int = 0
) -> Order:
    return Order(shard_examples, global_batch_size=batch, num_lanes=lanes, window_examples=window, seed=seed)


def seen(order: Order, first_step: int, num_steps: int) -> list[tuple[int, int]]:
    rows = [order.rows(step) for step in range(first_step, first_step + num_steps)]
    return [(int(s), int(r)) for placed in rows for s, r in zip(placed.shards, placed.records, strict=True)]


def test_golden_vectors() -> None:
    """Only a new ORDER_VERSION may change these: a run that resumes must find the order it began with."""
    assert mix64(np.array([0, 1, 2**64 - 1], np.uint64)).tolist() == [
        16294208416658607535,
        10451216379200822465,
        16490336266968443936,
    ]
    assert derive_key(0, 0, "shards") == GOLDEN_KEY
    assert permutation(10, 1).tolist() == GOLDEN_PERMUTATION
    order = make_order((5, 7, 4), 4, lanes=2, window=6, seed=3)
    assert seen(order, 0, 3) == GOLDEN_ROWS


GOLDEN_KEY = 6201058481862421656
GOLDEN_PERMUTATION = [9, 2, 4, 6, 3, 0, 1, 7, 8, 5]
GOLDEN_ROWS = [(2, 2), (2, 1), (1, 0), (1, 1), (2, 0), (2, 3), (0, 4), (1, 2), (0, 1), (0, 0), (1, 3), (1, 4)]


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 4096, 100_003])
def test_a_permutation_holds_every_index_once(n: int) -> None:
    assert np.array_equal(np.sort(permutation(n, 7)), np.arange(n))


@pytest.mark.parametrize(
    ("shards", "batch", "lanes", "window"),
    [
        ((10,), 4, 1, 100),
        ((5, 7, 4), 4, 1, 3),
        ((5, 7, 4), 4, 2, 6),
        ((13, 0, 21, 8, 9), 12, 4, 8),
        ((3, 3), 8, 2, 2),
    ],
)
def test_an_epoch_shows_every_example_once_but_for_the_lanes_remainder(
    shards: tuple[int, ...], batch: int, lanes: int, window: int
) -> None:
    order = make_order(shards, batch, lanes, window)
    everything = {(shard, record) for shard, size in enumerate(shards) for record in range(size)}
    steps = 5 * order.lane_examples  # a whole number of epochs for every lane
    epochs: dict[int, list[tuple[int, int]]] = {}
    for step in range(steps):
        placed = order.rows(step)
        for row in range(batch):
            lane, row_in_lane = divmod(row, order.lane_rows)
            epoch = (step * order.lane_rows + row_in_lane) // order.lane_examples
            epochs.setdefault(epoch, []).append((int(placed.shards[row]), int(placed.records[row])))
            assert lane < lanes
    for examples in epochs.values():
        assert len(examples) == len(set(examples)) == order.lane_examples * lanes
        assert len(everything - set(examples)) == len(everything) % lanes <= lanes - 1
        assert set(examples) <= everything


def test_epochs_differ_and_so_do_seeds() -> None:
    order = make_order((40, 60), 10)
    assert seen(order, 0, 10) != seen(order, 10, 10)
    assert seen(order, 0, 10) != seen(make_order((40, 60), 10, seed=1), 0, 10)


@pytest.mark.parametrize("process_count", [1, 2, 3, 4, 6, 12])
def test_processes_together_see_the_global_batch(process_count: int) -> None:
    order = make_order((13, 21, 8, 9), 12, lanes=4, window=8)
    share = 12 // process_count
    for step in (0, 1, 5, 100, 12345):
        whole = order.rows(step)
        parts = [order.rows(step, index * share, (index + 1) * share) for index in range(process_count)]
        assert np.array_equal(np.concatenate([part.shards for part in parts]), whole.shards)
        assert np.array_equal(np.concatenate([part.records for part in parts]), whole.records)


def test_a_lane_stays_in_its_own_span_of_the_shards() -> None:
    """With as many lanes as equal shards, each lane reads one shard an epoch."""
    order = make_order((8, 8, 8, 8), 4, lanes=4, window=32)
    for lane in range(4):
        shards = {int(order.rows(step).shards[lane]) for step in range(8)}
        assert len(shards) == 1


def test_next_window_walks_every_window_and_the_next_epoch() -> None:
    order = make_order((10,), 1, window=4)
    assert order.next_window(0, 0, 0) == (0, 1)
    assert order.next_window(0, 0, 1) == (0, 2)
    assert order.next_window(0, 0, 2) == (1, 0)


def test_the_order_is_like_a_true_permutation() -> None:
    """Mean displacement n/3, and successive differences spread evenly (chi-square over 64 bins)."""
    n = 2**18
    shuffled = permutation(n, derive_key(5, 0, "window", 0, 0))
    displacement = np.abs(shuffled - np.arange(n)).mean()
    assert displacement == pytest.approx(n / 3, rel=0.01)
    counts = np.bincount((np.diff(shuffled) % n) * 64 // n, minlength=64)
    chi_square = ((counts - (n - 1) / 64) ** 2 / ((n - 1) / 64)).sum()
    assert 30 < chi_square < 110  # 63 degrees of freedom: mean 63, far beyond the 0.999 quantile at 110


def test_defaults_follow_the_manifest_and_the_batch_alone() -> None:
    assert default_lanes_and_window(1000, 10**6, 3, 32) == (1, 1000)
    assert default_lanes_and_window(4 * 2**20, 4 * 2**30, 100, 32) == (1, 4 * 2**20)
    assert default_lanes_and_window(10**8, 10**10, 100, 32) == (16, 2**20)
    assert default_lanes_and_window(10**8, 10**10, 2, 32)[0] == 1
    assert default_lanes_and_window(10**7, 10**12, 1000, 96) == (48, 2 * 2**30 * 10**7 // 10**12)


def test_a_batch_that_does_not_divide_names_the_nearest_that_do() -> None:
    with pytest.raises(
        ConfigError, match=r"batch of 10 examples cannot be divided by stream.num_lanes = 4.*\n.*\n.*8 or 12"
    ):
        make_order((100,), 10, lanes=4)


def test_fewer_examples_than_lanes_is_an_error() -> None:
    with pytest.raises(ShardError, match="2 examples, 4 lanes"):
        make_order((2,), 4, lanes=4)
