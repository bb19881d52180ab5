"""Static masks: how many, which, with what, and always the same ones."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.interchange.restore import unmask
from support.datasets import SPECIAL_IDS
from support.records import MASKS, VOCAB_SIZE, Batch, pair_rows

MANY = replace(MASKS, num_predictions=40)
SPECIAL = sorted(SPECIAL_IDS.values())


def long_rows(num_rows: int, length: int = 256) -> Batch:
    ids = np.random.default_rng(1).integers(5, VOCAB_SIZE, (num_rows, length)).astype(np.int32)
    ids[:, 0], ids[:, -1] = SPECIAL_IDS["cls"], SPECIAL_IDS["sep"]
    return {"input_ids": ids, "attention_mask": np.ones((num_rows, length), np.int8)}


def outcomes(batch: Batch) -> tuple[NDArray[Any], NDArray[Any]]:
    """The original and the new id of every prediction."""
    used = batch["masked_weights"] == 1
    new = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1)
    return batch["masked_ids"][used], new[used]


@pytest.mark.parametrize("num_predictions", [1, 3, 5, 40])
def test_the_number_of_predictions_follows_the_rule(num_predictions: int) -> None:
    rows = pair_rows(300)
    lengths = rows["attention_mask"].sum(axis=1)
    batch = replace(MASKS, num_predictions=num_predictions).apply(rows, np.arange(300))
    expected = [min(num_predictions, max(1, round(0.15 * int(length)))) for length in lengths]
    np.testing.assert_array_equal(batch["masked_weights"].sum(axis=1), expected)
    assert batch["masked_positions"].shape == (300, num_predictions)


def test_only_ordinary_tokens_are_hidden_and_nothing_else_changes() -> None:
    rows = pair_rows(300)
    rows["input_ids"][::3, 1] = SPECIAL_IDS["unk"]
    rows["input_ids"][1::3, 2:9] = SPECIAL_IDS["mask"]
    batch = MASKS.apply(rows, np.arange(300))
    used = batch["masked_weights"] == 1
    assert not set(batch["masked_ids"][used].tolist()) & set(SPECIAL)
    np.testing.assert_array_equal(unmask(batch), rows["input_ids"])
    changed = batch["input_ids"] != rows["input_ids"]
    chosen = np.zeros_like(changed)
    rows_used, slots = np.nonzero(used)
    chosen[rows_used, batch["masked_positions"][rows_used, slots]] = True
    assert not (changed & ~chosen).any()
    assert chosen.sum() == used.sum(), "a position was chosen twice"
    assert (batch["masked_ids"][~used] == 0).all()
    assert (batch["masked_positions"][~used] == 0).all()
    for positions, row_used in zip(batch["masked_positions"], used, strict=True):
        assert (np.diff(positions[row_used]) > 0).all(), "positions must rise"


def test_rows_with_little_to_hide() -> None:
    ids = np.array([[2, 3, 0, 0], [2, 7, 3, 0], [2, 2, 3, 4]], np.int32)
    mask = (ids != 0).astype(np.int8)
    batch = MASKS.apply({"input_ids": ids, "attention_mask": mask}, np.arange(3))
    assert batch["masked_weights"].tolist() == [[0] * 5, [1, 0, 0, 0, 0], [0] * 5]
    assert batch["masked_positions"][1].tolist() == [1, 0, 0, 0, 0]
    np.testing.assert_array_equal(unmask(batch), ids)


def test_without_special_tokens_the_first_place_can_be_hidden() -> None:
    """Unused slots point at place 0, too, and must not bring back what is hidden there."""
    ids = np.full((200, 2), 7, np.int32)
    batch = replace(MASKS, mask_share=1.0, random_share=0.0).apply(
        {"input_ids": ids, "attention_mask": np.ones_like(ids)}, np.arange(200)
    )
    hidden = batch["input_ids"] == SPECIAL_IDS["mask"]
    assert (hidden.sum(axis=1) == 1).all()
    assert 60 < hidden[:, 0].sum() < 140


@pytest.mark.parametrize("random_special_ids", [False, True])
def test_80_10_10(random_special_ids: bool) -> None:
    masks = replace(MANY, random_special_ids=random_special_ids)
    old, new = outcomes(masks.apply(long_rows(3000), np.arange(3000)))
    assert len(old) == 3000 * 38
    is_mask, is_same = new == SPECIAL_IDS["mask"], new == old
    is_random = ~is_mask & ~is_same
    assert abs(is_mask.mean() - 0.8) < 0.01
    assert abs(is_same.mean() - 0.1) < 0.01
    assert abs(is_random.mean() - 0.1) < 0.01
    others = new[is_random]
    assert bool(np.isin(others, SPECIAL).any()) == random_special_ids
    # Every ordinary id comes, evenly.
    counts = np.bincount(others, minlength=VOCAB_SIZE)[5:]
    assert counts.min() > 0
    assert counts.std() < 1.2 * np.sqrt(counts.mean())


def test_places_are_chosen_evenly() -> None:
    batch = MANY.apply(long_rows(3000), np.arange(3000))
    counts = np.bincount(batch["masked_positions"][batch["masked_weights"] == 1], minlength=256)
    assert counts[[0, 255]].tolist() == [0, 0]
    inner = counts[1:255]
    assert inner.std() < 1.2 * np.sqrt(inner.mean())


def test_a_mask_depends_on_seed_and_example_alone() -> None:
    rows = pair_rows(50)
    whole = MASKS.apply(rows, np.arange(50))
    for begin, end in ((0, 7), (7, 50)):
        part = MASKS.apply({name: array[begin:end] for name, array in rows.items()}, np.arange(begin, end))
        for name, array in part.items():
            np.testing.assert_array_equal(array, whole[name][begin:end])
    other = replace(MASKS, seed=1).apply(rows, np.arange(50))
    assert (other["masked_positions"] != whole["masked_positions"]).any(axis=1).mean() > 0.9


def test_the_masks_never_change() -> None:
    """Golden: files that were written are written again to the same bytes by every later version."""
    ids = np.arange(5, 37, dtype=np.int32)[None, :].repeat(2, axis=0)
    batch = MASKS.apply({"input_ids": ids, "attention_mask": np.ones_like(ids)}, np.array([0, 10**12]))
    assert batch["masked_positions"].tolist() == GOLDEN_POSITIONS
    assert np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1).tolist() == GOLDEN_IDS


GOLDEN_POSITIONS = [[1, 3, 11, 14, 27], [3, 9, 16, 18, 23]]
GOLDEN_IDS = [[4, 4, 16, 4, 4], [4, 4, 4, 4, 4]]
