"""Whose turn it is: the source of every position of a mixture, by closed-form counts. Pure integers.

In: the sources' shares, a position. Out: its source, and how many positions that source had before. Nothing
is drawn: example j of source i, with share p, is due at the time (2j + 1) / 2p, and whatever is due first
comes first; of two that are due together the one of the earlier source. This is the apportionment of Webster
and Sainte-Lague, which never takes a seat back when there is one more: so the counts rise by one at a time.

    n(i, t)  positions of source i before position t; their sum is t
    |n(i, t) - p t|  <=  1/2 + p (k - 2) / 2  =: e,  for k sources; 1/2 for two, less than 1 for three.
                         Where the shares have a common denominator above 2**16: at most 2 e (1 + k / 2**17)

Positions are cut into blocks. The table of a block depends only on how many turns each source has in it.
Shares with a common denominator W up to 2**16 have blocks of a multiple of W, all alike. Others have blocks
of 2**16, of which only the numbers of turns at their borders are Webster's; inside a block the numbers of its
turns take the place of the shares.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK = 2**16


class _Table(NamedTuple):
    """The turns of a block, in order."""

    sources: NDArray[np.uint16]
    ranks: NDArray[np.int64]
    """Turns of the same source before, in the block."""
    places: tuple[NDArray[np.int64], ...]
    """The turns of each source, rising."""


class Turns:
    """The turns of the sources of a mixture.

    Args:
        shares: of the sources; they add up to 1.
    """

    def __init__(self, shares: Sequence[Fraction]) -> None:
        assert sum(shares) == 1
        whole = lcm(*(share.denominator for share in shares))
        self.weights = tuple(int(share * whole) for share in shares)
        self.block = _BLOCK // whole * whole if whole <= _BLOCK else _BLOCK

    def counts(self, position: int) -> tuple[int, ...]:
        """Return how many positions each source has before a position."""
        block, place = divmod(position, self.block)
        before, after = (self._at_border(border) for border in (block, block + 1))
        places = _table(_difference(after, before)).places
        inside = (int(np.searchsorted(mine, place)) for mine in places)
        return tuple(n + m for n, m in zip(before, inside, strict=True))

    def turns(self, first: int, num_positions: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """Return the sources of consecutive positions, and each one's number within its source.

        uint16 and int64 of shape (num_positions,).
        """
        sources = np.empty(num_positions, np.uint16)
        numbers = np.empty(num_positions, np.int64)
        done = 0
        while done < num_positions:
            block, place = divmod(first + done, self.block)
            before, after = (self._at_border(border) for border in (block, block + 1))
            table = _table(_difference(after, before))
            stop = min(self.block, place + num_positions - done)
            filled = slice(done, done + stop - place)
            sources[filled] = table.sources[place:stop]
            np.add(table.ranks[place:stop], np.array(before)[table.sources[place:stop]], out=numbers[filled])
            done += stop - place
        return sources, numbers

    def _at_border(self, block: int) -> tuple[int, ...]:
        return apportion(block * self.block, self.weights)


@lru_cache(maxsize=64)
def apportion(total: int, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Return Webster's apportionment of a number of seats: exact for integers of any size.

    Each count lies within k / 2 of its quota, so it starts that much below, and the few seats that are left
    go one by one to whatever is due first.
    """
    whole, slack = sum(weights), len(weights) // 2
    counts = [max(0, total * weight // whole - slack) for weight in weights]
    for _ in range(total - sum(counts)):
        first = min(range(len(weights)), key=lambda i: (Fraction(2 * counts[i] + 1, weights[i]), i))
        counts[first] += 1
    return tuple(counts)


@lru_cache(maxsize=64)
def _table(counts: tuple[int, ...]) -> _Table:
    """Return the turns of a block that holds so many of each source.

    The times are correctly rounded quotients of integers below 2**17. Equal quotients are equal numbers, and
    different ones differ by more than rounding does: the order is exact, on every machine.
    """
    sources = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
    ranks = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    due = (2 * ranks + 1) / np.array(counts, np.int64)[sources]
    order = np.argsort(due, kind="stable")
    sources = sources[order]
    places = tuple(np.flatnonzero(sources == source) for source in range(len(counts)))
    return _Table(sources, ranks[order], places)


def _difference(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(before, after, strict=True))
