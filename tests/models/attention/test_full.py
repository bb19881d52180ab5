"""Attention against NumPy in float64, and what masks must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.models.attention.full import attend
from outlast.models.attention.kernels import AttentionKernel
from outlast.models.randomness import row_keys

RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (RNG.normal(size=(2, 5, 3, 4)) for _ in range(3))
MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])


def run(key: np.ndarray = KEY, value: np.ndarray = VALUE, mask: np.ndarray | None = MASK) -> np.ndarray:
    arrays = (jnp.asarray(x, jnp.float32) for x in (QUERY, key, value))
    return np.asarray(attend(*arrays, attention_mask=None if mask is None else jnp.asarray(mask)))


def test_the_formula() -> None:
    found = run()
    for row in range(2):
        real = MASK[row] == 1
        for head in range(3):
            scores = QUERY[row, :, head] @ KEY[row, real, head].T / 2
            weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            np.testing.assert_allclose(found[row, :, head], weights @ VALUE[row, real, head], atol=1e-6)


def test_masked_positions_have_no_influence_at_all() -> None:
    key, value = KEY.copy(), VALUE.copy()
    key[MASK == 0], value[MASK == 0] = 50.0, -70.0
    np.testing.assert_array_equal(run(key, value), run())


def test_no_mask_is_a_mask_of_ones() -> None:
    np.testing.assert_allclose(run(mask=None), run(mask=np.ones_like(MASK)), atol=1e-7)


def test_a_row_without_real_tokens_stays_finite() -> None:
    found = run(mask=np.array([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]))
    np.testing.assert_allclose(found[0], np.broadcast_to(VALUE[0].mean(0), (5, 3, 4)), atol=1e-6)


@pytest.mark.parametrize("kernel", ["plain", "fused"])
def test_more_probabilities_than_dropout_can_number_are_refused(kernel: AttentionKernel) -> None:
    def shape_of(rate: float) -> jax.ShapeDtypeStruct:
        heads = jax.ShapeDtypeStruct((1, 16_384, 16, 64), jnp.bfloat16)
        keys = row_keys(0, "train", 0, jnp.arange(1))
        return jax.eval_shape(
            lambda x: attend(
                x, x, x, attention_mask=None, dropout_keys=keys, dropout_rate=rate, kernel=kernel
            ),
            heads,
        )

    with pytest.raises(ConfigError, match=r"16 heads[\s\S]*up to 16383 tokens[\s\S]*block-sparse attention"):
        shape_of(0.1)
    assert shape_of(0.0).shape == (1, 16_384, 16, 64)
