"""The order of a mixture: every source's epochs exact, whoever reads which rows, wherever a life begins."""

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from outlast.stream.mixture import Mixture, source_seed
from outlast.stream.order import Order
from outlast.stream.turns import Turns

PROCESS_COUNTS = (1, 2, 3, 4, 8)
Shards = Sequence[Sequence[int]]


def make_mixture(
    shards: Shards,
    weights: Sequence[int],
    batch: int,
    *,
    lanes: int = 1,
    window: int = 10**6,
    seed: int = 0,
) -> Mixture:
    orders = [
        Order(
            tuple(counts),
            global_batch_size=lanes,
            num_lanes=lanes,
            window_examples=window,
            seed=source_seed(seed, source),
        )
        for source, counts in enumerate(shards)
    ]
    return Mixture(orders, [Fraction(weight, sum(weights)) for weight in weights], batch)


def test_golden_vectors() -> None:
    mixture = make_mixture([(5, 4), (3,), (2, 2)], [5, 3, 2], 6, seed=7)
    placed = mixture.rows(1, num_steps=2)
    assert list(zip(*(column.tolist() for column in placed), strict=True)) == GOLDEN
    lanes = make_mixture([(9, 7), (6, 5)], [3, 1], 8, lanes=2, window=6, seed=7).rows(3)
    assert list(zip(*(column.tolist() for column in lanes), strict=True)) == GOLDEN_LANES


GOLDEN = [(0, 3), (3, 0), (2, 2), (1, 2), (0, 1), (2, 0), (4, 0), (0, 2), (0, 0), (2, 2), (1, 3), (3, 1)]
GOLDEN_LANES = [(1, 0), (2, 4), (1, 1), (1, 4), (0, 2), (0, 1), (3, 2), (0, 5)]


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_mixture_of_one_is_the_plain_order(lanes: int) -> None:
    plain = Order((13, 20, 8), global_batch_size=12, num_lanes=lanes, window_examples=16, seed=3)
    mixture = make_mixture([(13, 20, 8)], [1], 12, lanes=lanes, window=16, seed=3)
    for step in range(12):
        for first, stop in ((0, 12), (3, 9)):
            expected = plain.rows(step, first, stop, 2)
            found = mixture.rows(step, first, stop, 2)
            assert np.array_equal(np.stack(expected), np.stack(found))
    assert mixture.epoch_of(5) == pytest.approx(plain.epoch_of(5), rel=0.05)


def test_each_source_is_read_in_its_own_order() -> None:
    """What a mixture shows of a source, put together, is what the source's order alone shows."""
    shards = [(30, 11), (7, 7, 7), (50,)]
    mixture = make_mixture(shards, [5, 1, 3], 16, window=20, seed=1)
    placed = mixture.rows(0, num_steps=30)
    first = 0
    for source, counts in enumerate(shards):
        is_mine = (placed.shards >= first) & (placed.shards < first + len(counts))
        alone = Order(
            counts, global_batch_size=1, num_lanes=1, window_examples=20, seed=source_seed(1, source)
        )
        expected = alone.rows(0, num_steps=int(is_mine.sum()))
        assert np.array_equal(placed.shards[is_mine] - first, expected.shards)
        assert np.array_equal(placed.records[is_mine], expected.records)
        first += len(counts)


def test_every_batch_has_its_shares() -> None:
    mixture = make_mixture([(400,), (400,), (400,)], [7, 2, 1], 20, lanes=4)
    for step in range(50):
        sources = np.bincount(mixture.rows(step).shards, minlength=3)
        assert sources.tolist() == [14, 4, 2]


def test_sets_of_nearly_one_size_are_shuffled_apart() -> None:
    mixture = make_mixture([(1000,), (1003,)], [1, 1], 100)
    placed = mixture.rows(0, num_steps=20)
    ours, theirs = (placed.records[placed.shards == shard] for shard in (0, 1))
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 0.1


@pytest.mark.parametrize("first", [0])
def test_no_example_is_seen_twice_in_an_epoch_of_its_source(first: int) -> None:
    for seed in range(first, first + 20):
        check_history(seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_ten_thousand_elastic_histories(first: int) -> None:
    for seed in range(first, first + 1000):
        check_history(seed)


def check_history(seed: int) -> None:
    """Lives of 1 to 8 processes, killed after reading ahead, over several epochs of each source."""
    rng = random.Random(seed)
    lanes = rng.choice((1, 1, 2, 3, 4, 6))
    batch = 24 * rng.randint(1, 2)
    shards = [
        (rng.randint(lanes, 30), *(rng.randint(0, 30) for _ in range(rng.randint(0, 4))))
        for _ in range(rng.randint(1, 4))
    ]
    weights = [rng.choice((1, 2, 7, 100_003)) for _ in shards]
    window = rng.choice((1, lanes, 2 * lanes + 1, 16, 10**6))
    mixture = make_mixture(shards, weights, batch, lanes=lanes, window=window, seed=seed)
    total_steps = rng.randint(3, 12)
    trained = run_history(rng, mixture, total_steps)

    seen: dict[int, list[tuple[int, int]]] = {}
    owner = [source for source, counts in enumerate(shards) for _ in counts]
    assert sorted(trained) == list(range(total_steps))
    for step, rows in trained.items():
        placed = mixture.rows(step)
        assert np.array_equal(rows, np.stack(placed)), f"seed {seed}, step {step}"
        for shard, record in rows.T.tolist():
            seen.setdefault(owner[shard], []).append((shard, record))
    for source, found in seen.items():
        order = mixture.orders[source]
        # Within a source, epochs follow each other in every lane; no example comes oftener than an epoch
        # more than any other, but for those that sit out.
        whole, part = divmod(len(found), order.lane_examples * lanes)
        counts = Counter(found)
        assert max(counts.values()) <= whole + bool(part), f"seed {seed}, source {source}"
        missing = whole * order.num_examples - sum(min(count, whole) for count in counts.values())
        assert missing <= whole * (lanes - 1), f"seed {seed}, source {source}"
        share = mixture.shares[source]
        assert abs(len(found) - share * total_steps * batch) <= 2 + len(shards)


def run_history(rng: random.Random, mixture: Mixture, total_steps: int) -> dict[int, np.ndarray]:
    """Return the rows of each step as they were last trained, (shard, record) by row."""
    trained: dict[int, np.ndarray] = {}
    committed = 0
    while committed < total_steps:
        process_count = rng.choice(PROCESS_COUNTS)
        share = mixture.global_batch_size // process_count
        reached = min(total_steps, committed + rng.randint(1, max(2, total_steps // 2)))
        together = [
            np.stack(mixture.rows(committed, index * share, (index + 1) * share, reached - committed))
            for index in range(process_count)
        ]
        for step in range(committed, reached):
            ahead = step - committed
            parts = [part[:, ahead * share : (ahead + 1) * share] for part in together]
            trained[step] = np.concatenate(parts, axis=1)
        committed = reached if reached == total_steps else rng.randint(committed, reached)
    return trained


def test_the_windows_that_come_are_named_before() -> None:
    """Each window but a lane's first was named while the one before it was read: nobody waits for a sort."""
    mixture = make_mixture([(40, 30), (11,)], [3, 1], 8, lanes=2, window=24)
    named = {(source, lane, 0, 0) for source in range(2) for lane in range(2)}
    for step in range(60):
        for source, (order, numbers) in enumerate(
            zip(mixture.orders, numbers_of(mixture, step), strict=True)
        ):
            for lane in range(2):
                clocks = numbers[numbers % 2 == lane] // 2
                for span in order.spans(int(clocks.min(initial=0)), len(clocks)):
                    assert (source, lane, span.epoch, span.window) in named, f"step {step}"
        for key in mixture.upcoming(step, 0, 8):
            named.add((key.source, key.lane, key.epoch, key.window))
            assert set(mixture.shards_of(key)) <= ({0, 1}, {2})[key.source]


def numbers_of(mixture: Mixture, step: int) -> list[np.ndarray]:
    """Return the numbers, within each source, of the examples of a step."""
    turns = Turns(mixture.shares)
    size = mixture.global_batch_size
    before, after = turns.counts(step * size), turns.counts((step + 1) * size)
    return [np.arange(low, high) for low, high in zip(before, after, strict=True)]


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("start", [0, 9])
def test_the_shards_that_are_needed_are_named_about_in_time(lanes: int, start: int) -> None:
    """By the step before at the latest; sooner where a window begins."""
    mixture = make_mixture([(9, 7, 12), (6, 5, 8, 3)], [3, 1], 8, lanes=lanes, window=6 * lanes, seed=7)
    num_steps = 40
    named: list[tuple[int, int]] = []
    for step, shard in mixture.shards_from(start, 0, 8):
        if step >= start + num_steps:
            break
        named.append((step, shard))
    assert [step for step, _ in named] == sorted(step for step, _ in named)
    for step in range(start, start + num_steps):
        touched = set(mixture.rows(step).shards.tolist())
        assert touched <= {shard for need, shard in named if need <= step + 1}, step
