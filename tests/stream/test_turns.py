"""Whose turn it is: exact shares over every prefix, closed-form counts, frozen by golden vectors."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.stream.turns import Turns, apportion


def turns_of(*weights: int | str) -> Turns:
    fractions = [Fraction(weight) for weight in weights]
    return Turns([fraction / sum(fractions) for fraction in fractions])


def bound(share: Fraction, num_sources: int, whole: int) -> Fraction:
    """Return the bound that the module states for the distance of a count from its share."""
    e = Fraction(1, 2) + share * (num_sources - 2) / 2
    return e if whole <= 2**16 else 2 * e * (1 + Fraction(num_sources, 2**17))


def test_golden_vectors() -> None:
    def first(turns: Turns) -> str:
        return "".join(str(source) for source in turns.turns(0, 30)[0].tolist())

    assert first(turns_of(1, 1)) == "01" * 15
    assert first(turns_of(7, 2, 1)) == "001002010000100201000010020100"
    assert first(turns_of("0.1", "0.25", "0.65")) == "212202122122212022122122021221"
    assert first(turns_of(5)) == "0" * 30
    far = turns_of("0.333333", "0.6666669").turns(10**12 + 7, 12)
    assert far[0].tolist() == [1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0]
    assert far[1].tolist()[:3] == [666666966671, 666666966672, 333333033336]


@pytest.mark.parametrize("weights", [(12, 5, 1, 30), (94, 1, 1, 1, 1, 1, 1), (7,), (1, 1, 1)])
def test_what_is_due_first_comes_first(weights: tuple[int, ...]) -> None:
    """The definition, one by one in exact fractions, against the tables and the closed form.

    Six small sources of half a seat each get one first: the large one then has less than its whole quota.
    """
    counts = [0] * len(weights)
    expected: list[int] = []
    for total in range(300):
        assert apportion(total, weights) == tuple(counts)
        source = min(range(len(weights)), key=lambda i: (Fraction(2 * counts[i] + 1, weights[i]), i))
        counts[source] += 1
        expected.append(source)
    assert turns_of(*weights).turns(0, 300)[0].tolist() == expected


weights_of_sources = st.lists(st.integers(1, 60), min_size=1, max_size=6)
large_weights = st.lists(st.integers(1, 10**9), min_size=2, max_size=5)


@given(st.one_of(weights_of_sources, large_weights), st.integers(0, 10**10), st.integers(1, 3000))
def test_every_prefix_has_its_shares(weights: list[int], first: int, length: int) -> None:
    turns = turns_of(*weights)
    sources, numbers = turns.turns(first, length)
    before = np.array(turns.counts(first))
    shares = [Fraction(weight, sum(weights)) for weight in weights]
    for source, share in enumerate(shares):
        mine = sources == source
        counts = before[source] + np.concatenate(([0], np.cumsum(mine)))
        # Its numbers are its count, without a gap: nothing is left out and nothing comes twice.
        assert numbers[mine].tolist() == list(range(counts[0], counts[-1]))
        limit = bound(share, len(shares), sum(turns.weights))
        for place in {0, length // 2, length, int(np.argmax(mine))}:
            assert abs(int(counts[place]) - share * (first + place)) <= limit
    assert turns.counts(first + length) == tuple(
        int(before[source] + (sources == source).sum()) for source in range(len(weights))
    )


@pytest.mark.parametrize("weights", [(7, 2, 1), (1, 1), (3, 5, 11, 2, 60), ("0.3333333", "0.6666667")])
def test_no_prefix_of_several_blocks_strays(weights: tuple[int | str, ...]) -> None:
    """Every prefix of the first 200,000, and of 200,000 far out; the bound is nearly met."""
    turns = turns_of(*weights)
    whole = sum(turns.weights)
    worst = 0.0
    for first in (0, 10**9 - 7):
        sources, _ = turns.turns(first, 200_000)
        before = turns.counts(first)
        for source, weight in enumerate(turns.weights):
            counts = before[source] + np.cumsum(sources == source)
            # In integers: how far count * whole is from place * weight.
            places = first + 1 + np.arange(200_000)
            strays = np.abs(counts * whole - places * weight).max() / whole
            assert strays <= float(bound(Fraction(weight, whole), len(weights), whole)) + 1e-9
            worst = max(worst, strays)
    assert worst > 0.4


def test_equal_shares_in_other_numbers_are_the_same_turns() -> None:
    assert turns_of("0.7", "0.3").turns(5, 100)[0].tolist() == turns_of(70, 30).turns(5, 100)[0].tolist()


def test_many_sources_and_tiny_shares() -> None:
    turns = turns_of(10**9, 1, *[5] * 40)
    sources, _ = turns.turns(0, 10_000)
    assert (sources == 0).sum() >= 9_998
    assert sum(turns.counts(10**15)) == 10**15
    assert turns.counts(sum(turns.weights)) == turns.weights
