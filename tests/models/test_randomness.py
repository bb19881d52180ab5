"""Random bits per row: even, independent, and the same wherever the row is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.models.randomness import bernoulli, fold, random_bits, row_keys

GOLDEN = [
    [[701199623, 3408481510], [1039313876, 1256960971]],
    [[1365622319, 4195069613], [1394790591, 3509681143]],
]


def bits(rows: int, length: int, seed: int = 0, step: int = 0) -> NDArray[np.uint32]:
    return np.asarray(random_bits(row_keys(seed, "train", step, jnp.arange(rows)), (length,)))


def test_golden_vector() -> None:
    """Frozen: other bits here mean that no run can be resumed bit for bit."""
    keys = fold(row_keys(1, "train", 2, jnp.array([0, 3])), "dropout")
    assert np.asarray(random_bits(keys, (2, 2))).tolist() == GOLDEN


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    whole = bits(8, 100)
    rows = jnp.array([5, 2])
    np.testing.assert_array_equal(random_bits(row_keys(0, "train", 0, rows), (100,)), whole[np.array([5, 2])])


def test_a_traced_step_and_a_python_step_give_the_same_keys() -> None:
    rows = jnp.arange(3)
    traced = jax.jit(lambda step: jax.random.key_data(row_keys(0, "train", step, rows)))(jnp.int32(9))
    np.testing.assert_array_equal(traced, jax.random.key_data(row_keys(0, "train", 9, rows)))


def test_seed_purpose_step_and_row_all_change_the_bits() -> None:
    rows = jnp.arange(2)
    keys = [
        row_keys(0, "train", 0, rows),
        row_keys(1, "train", 0, rows),
        row_keys(0, "evaluate", 0, rows),
        row_keys(0, "train", 1, rows),
        row_keys(0, "train", 0, rows + 2),
        fold(row_keys(0, "train", 0, rows), "a"),
        fold(row_keys(0, "train", 0, rows), "b"),
        fold(row_keys(0, "train", 0, rows), 0),
    ]
    drawn = np.concatenate([np.asarray(random_bits(key, (4,))).ravel() for key in keys])
    assert len(np.unique(drawn)) == drawn.size


def test_every_bit_is_set_half_of_the_time() -> None:
    drawn = bits(64, 4096).ravel()
    for bit in range(32):
        share = ((drawn >> np.uint32(bit)) & np.uint32(1)).mean()
        # Six standard deviations of 262,144 coin tosses.
        assert abs(share - 0.5) < 6 * 0.5 / np.sqrt(drawn.size)


@pytest.mark.parametrize("shift", [0, 8, 16, 24])
def test_bytes_are_even(shift: int) -> None:
    counts = np.bincount((bits(64, 4096).ravel() >> np.uint32(shift)) & np.uint32(255), minlength=256)
    expected = counts.sum() / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert 255 - 6 * 22.6 < chi_square < 255 + 6 * 22.6


def test_neighbours_rows_and_steps_are_uncorrelated() -> None:
    signs = np.where(bits(256, 1024) >> np.uint32(31), 1.0, -1.0)
    later = np.where(bits(256, 1024, step=1) >> np.uint32(31), 1.0, -1.0)
    limit = 6 / np.sqrt(signs.size)
    for other in (np.roll(signs, 1, axis=1), np.roll(signs, 1, axis=0), later):
        assert abs((signs * other).mean()) < limit


def test_bernoulli_has_its_probability() -> None:
    keys = row_keys(0, "train", 0, jnp.arange(100))
    share = np.asarray(bernoulli(keys, (5000,), 0.9)).mean()
    assert abs(share - 0.9) < 6 * np.sqrt(0.09 / 500_000)
    assert np.asarray(bernoulli(keys, (10,), 1.0)).all()
    assert not np.asarray(bernoulli(keys, (10,), 0.0)).any()


def test_a_row_too_long_for_the_counter_is_refused() -> None:
    with pytest.raises(ValueError, match="2\\*\\*32"):
        random_bits(row_keys(0, "train", 0, jnp.arange(1)), (2**16, 2**16))
