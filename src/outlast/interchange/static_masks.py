"""Masks made once and written down: what BERT's data preparation does, as arithmetic over rows.

In: rows of tokens and the number of each example. Out: the rows with tokens hidden, and which. A row's masks
are a function of (seed, number of the example, tokens) alone, so they do not depend on batches, processes
or the order of the rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.prng import derive_key, mix64

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class StaticMasks:
    """How rows are masked.

    Attributes:
        num_predictions: slots of a row (P).
        vocab_size, mask_id: of the tokenizer.
        special_ids: never predicted.
        mask_probability: share of a row's tokens that are predicted.
        mask_share, random_share: of those, replaced by the mask, by a random id; the rest stays.
        random_special_ids: whether a random replacement may be a special id, as in BERT's own code.
        seed: of the masks.
        whole_words: whether all tokens of a word are predicted or none.
    """

    num_predictions: int
    vocab_size: int
    mask_id: int
    special_ids: tuple[int, ...]
    mask_probability: float
    mask_share: float
    random_share: float
    random_special_ids: bool = False
    seed: int = 0
    whole_words: bool = False

    def apply(self, batch: Batch, indices: NDArray[np.int64]) -> Batch:
        """Return a batch with tokens hidden and what stood there.

        Per row, min(P, max(1, round(mask_probability * length))) tokens are chosen, where the length counts
        the special tokens too; fewer where fewer are eligible, or where no further whole word fits. Each is
        replaced by the mask, by a random id or by itself.

        Source: ``create_masked_lm_predictions`` in google-research/bert's ``create_pretraining_data.py``.
            There every special token but [CLS] and [SEP] may be predicted, and random ids are drawn from the
            whole vocabulary.

        Args:
            batch: ``input_ids`` and ``attention_mask``, integers of shape (rows, L); for whole words also
                ``word_starts`` of that shape; the rest is passed on.
            indices: int64 of shape (rows,), the number of each example.

        Returns:
            the batch with new ``input_ids``, and ``masked_positions``, ``masked_ids`` int32 and
                ``masked_weights`` float32 of shape (rows, P): positions rise within a row, unused slots are
                0.
        """
        ids = batch["input_ids"]
        is_real = batch["attention_mask"] != 0
        eligible = is_real & ~np.isin(ids, self.special_ids)
        starts = batch["word_starts"] if self.whole_words else None
        positions, used = self._choose(eligible, is_real.sum(axis=1), indices, starts)
        originals = np.take_along_axis(ids, positions, axis=1)
        replacements = self._replace(originals, indices, positions)
        masked = ids.copy()
        rows, slots = np.nonzero(used)
        masked[rows, positions[rows, slots]] = replacements[rows, slots]
        return {
            **{name: array for name, array in batch.items() if name != "word_starts"},
            "input_ids": masked,
            "masked_positions": np.where(used, positions, 0).astype(np.int32),
            "masked_ids": np.where(used, originals, 0).astype(np.int32),
            "masked_weights": used.astype(np.float32),
        }

    def _choose(
        self,
        eligible: NDArray[np.bool_],
        lengths: NDArray[Any],
        indices: NDArray[np.int64],
        starts: NDArray[Any] | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return distinct positions, (rows, P), the used ones first and rising, and which are used."""
        num_rows, length = eligible.shape
        ranks = self._bits(indices, "positions", np.arange(length)[None, :]) >> np.uint64(1)
        wanted = np.maximum(1, np.rint(lengths * self.mask_probability).astype(np.int64))
        counts = np.minimum(np.minimum(wanted, self.num_predictions), eligible.sum(axis=1))
        if starts is not None:
            eligible = choose_words(eligible, starts, ranks, counts)
            counts = eligible.sum(axis=1)
        ranks[~eligible] |= np.uint64(1 << 63)
        chosen = np.argsort(ranks, axis=1, kind="stable")[:, : self.num_predictions]
        if chosen.shape[1] < self.num_predictions:  # more slots than places: they stay unused
            padding = np.zeros((num_rows, self.num_predictions - chosen.shape[1]), chosen.dtype)
            chosen = np.concatenate((chosen, padding), axis=1)
        used = np.arange(self.num_predictions)[None, :] < counts[:, None]
        order = np.argsort(np.where(used, chosen, length), axis=1, kind="stable")
        return np.take_along_axis(chosen, order, axis=1), used

    def _replace(
        self, originals: NDArray[Any], indices: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[Any]:
        draws = (self._bits(indices, "replacement", positions) >> np.uint64(11)) * 2.0**-53
        drawable = self.vocab_size - (0 if self.random_special_ids else len(self.special_ids))
        drawn = (self._bits(indices, "random id", positions) % np.uint64(drawable)).astype(originals.dtype)
        if not self.random_special_ids:
            for special in sorted(self.special_ids):
                drawn += drawn >= special
        replaced = np.where(draws < self.mask_share + self.random_share, drawn, originals)
        return np.where(draws < self.mask_share, originals.dtype.type(self.mask_id), replaced)

    def _bits(self, indices: NDArray[np.int64], purpose: str, places: NDArray[Any]) -> NDArray[np.uint64]:
        """Return 64 bits for each place of each example."""
        key = np.uint64(derive_key(self.seed, "static masks", purpose))
        rows = mix64(indices.astype(np.uint64) + key)
        return mix64(rows[:, None] + places.astype(np.uint64))


def choose_words(
    eligible: NDArray[np.bool_],
    word_starts: NDArray[Any],
    ranks: NDArray[np.uint64],
    counts: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return the tokens of the chosen words, bool of shape (rows, length), at most ``counts`` in a row.

    The same ranks give the choice of ``outlast.objectives.whole_words``, which has its source; this is that
    rule in NumPy, lowest rank first.

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
