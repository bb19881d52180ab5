"""The order: bijective, elastic, frozen."""

import numpy as np
import pytest
from numpy.typing import NDArray

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


def test_a_permutation_sorts_by_the_whole_number_where_its_high_bits_tie() -> None:
    n, key = 2**20 + 1, 46 * 2**32  # one pair of numbers with equal high bits, the larger one first
    numbers = mix64(np.arange(n, dtype=np.uint64) + np.uint64(key))
    high = np.sort(numbers >> np.uint64(n.bit_length()))
    assert (high[1:] == high[:-1]).sum() == 1
    assert np.array_equal(permutation(n, key), np.argsort(numbers))


@pytest.mark.parametrize(
    ("lanes", "first", "stop"), [(1, 0, 12), (1, 3, 6), (4, 0, 12), (4, 2, 8), (3, 0, 6)]
)
def test_the_rows_of_many_steps_are_those_of_each(lanes: int, first: int, stop: int) -> None:
    order = make_order((13, 0, 21, 8, 9), 12, lanes, window=8)
    together = order.rows(2, first, stop, num_steps=15)
    apart = [order.rows(step, first, stop) for step in range(2, 17)]
    assert np.array_equal(together.shards, np.concatenate([placed.shards for placed in apart]))
    assert np.array_equal(together.records, np.concatenate([placed.records for placed in apart]))


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


def evenness(shuffled: NDArray[np.int64]) -> dict[str, float]:
    """Return what tells a shuffle from a true permutation; each is a ratio to what is expected of one.

    The chi-squares are divided by their degrees of freedom: of successive differences (255), of pairs of
    successive values (4,095), of values against places (4,095).
    """
    n = len(shuffled)
    differences = np.diff(shuffled) % n
    expected_distinct = (1 - np.exp(-1)) * n
    pairs = shuffled[:-1] * 64 // n * 64 + shuffled[1:] * 64 // n
    places = np.arange(n) * 64 // n * 64 + shuffled * 64 // n
    return {
        "differences": chi_square(differences * 256 // n, 256),
        "pairs": chi_square(pairs, 4096),
        "places": chi_square(places, 4096),
        "displacement": float(np.abs(shuffled - np.arange(n)).mean() / (n / 3)),
        "distinct differences": len(np.unique(differences)) / expected_distinct,
    }


def chi_square(values: NDArray[np.int64], bins: int) -> float:
    """Return Pearson's statistic against evenness, divided by its degrees of freedom."""
    expected = len(values) / bins
    counts = np.bincount(values, minlength=bins)
    return float(((counts - expected) ** 2).sum() / expected / (bins - 1))


@pytest.mark.parametrize("n", [100_003, 2**18])
def test_the_order_is_as_even_as_a_true_permutation(n: int) -> None:
    """Five keys as they occur, beside five permutations of NumPy's; bounds beyond the 0.9999 quantiles."""
    for key in range(5):
        for shuffled in (
            permutation(n, derive_key(key, key, "window", 0, key)),
            np.random.default_rng(key).permutation(n),
        ):
            measured = evenness(shuffled)
            assert 0.67 < measured["differences"] < 1.37, measured
            assert 0.9 < measured["pairs"] < 1.1, measured
            assert 0.9 < measured["places"] < 1.1, measured
            assert measured["displacement"] == pytest.approx(1, rel=0.015), measured
            assert measured["distinct differences"] == pytest.approx(1, rel=0.01), measured


def test_a_weak_shuffle_would_be_seen() -> None:
    """A multiplication by a constant is a bijection, and no shuffle."""
    n = 100_003
    measured = evenness(np.arange(n) * 31_337 % n)
    assert measured["differences"] > 100
    assert measured["distinct differences"] < 0.01


def test_every_small_permutation_holds_every_index_once() -> None:
    for n in range(1, 4097):
        assert np.array_equal(np.bincount(permutation(n, n), minlength=n), np.ones(n, np.int64))


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


@pytest.mark.parametrize(
    ("examples", "batch", "lanes", "window"),
    [
        ((13, 0, 21, 8, 9), 4, 1, 10**9),
        ((13, 0, 21, 8, 9), 4, 2, 10),
        ((3,) * 30, 8, 4, 12),
        ((50, 1), 6, 3, 1),
    ],
)
@pytest.mark.parametrize("start", [0, 7])
def test_the_shards_that_are_needed_are_named_in_time(
    examples: tuple[int, ...], batch: int, lanes: int, window: int, start: int
) -> None:
    """Every shard that a row touches has been named for its step or before; what is named is also used."""
    order = make_order(examples, batch, lanes, window)
    num_steps = 3 * sum(examples) // batch
    for first, stop in ((0, batch), (batch // lanes, batch)) if lanes > 1 else ((0, batch),):
        named: dict[int, set[int]] = {}
        last = -1
        for step, shard in order.shards_from(start, first, stop):
            assert step >= last, "by rising step"
            last = step
            if step >= start + num_steps:
                break
            named.setdefault(max(step, start), set()).add(shard)
        known: set[int] = set()
        used: set[int] = set()
        for step in range(start, start + num_steps):
            known |= named.get(step, set())
            touched = set(order.rows(step, first, stop).shards.tolist())
            assert touched <= known, step
            used |= touched
        assert used == known
