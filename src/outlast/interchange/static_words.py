"""Whole words for static masks, by the rule that training follows on the device.

In: which tokens may be hidden, which begin a word, a random rank for each position. Out: the tokens of the
chosen words. The same ranks give the choice of ``outlast.objectives.whole_words``, which has its source;
this is that rule in NumPy, lowest rank first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def choose_words(
    eligible: NDArray[np.bool_],
    word_starts: NDArray[Any],
    ranks: NDArray[np.uint64],
    counts: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return the tokens of the chosen words, bool of shape (rows, length), at most ``counts`` in a row.

    Args:
        eligible, word_starts, ranks: of shape (rows, length); ranks below 2**63.
        counts: int64 of shape (rows,).
    """
    rank, size, left = _describe_words(eligible, word_starts, ranks)
    order = np.argsort(np.where(eligible, rank, np.uint64(1 << 63)), axis=1, kind="stable")
    size, left, is_open = (np.take_along_axis(array, order, axis=1) for array in (size, left, eligible))
    room = counts.copy()
    taken = np.zeros_like(eligible)
    while (fitting := is_open & ~taken & (size <= room[:, None])).any():
        ends = np.cumsum(fitting, axis=1) + left  # tokens up to the end of each one's word
        added = fitting & (ends <= room[:, None])
        taken |= added
        room -= added.sum(axis=1)
    chosen = np.zeros_like(eligible)
    np.put_along_axis(chosen, order, taken, axis=1)
    return chosen


def _describe_words(
    eligible: NDArray[np.bool_], word_starts: NDArray[Any], ranks: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
    """Return for each position its word's rank, its word's eligible tokens, and how many of them follow."""
    length = eligible.shape[1]
    starts = word_starts != 0  # position 0 begins a word whatever it says: the running maxima begin with 0
    own_start = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
    up_to_here = np.cumsum(eligible, axis=1)
    before_word = np.maximum.accumulate(np.where(starts, up_to_here - eligible, 0), axis=1)
    is_last = np.concatenate((starts[:, 1:], np.ones_like(starts[:, :1])), axis=1)
    ends = np.where(is_last, up_to_here, length + 1)
    up_to_end = np.minimum.accumulate(ends[:, ::-1], axis=1)[:, ::-1]
    return np.take_along_axis(ranks, own_start, axis=1), up_to_end - before_word, up_to_end - up_to_here
