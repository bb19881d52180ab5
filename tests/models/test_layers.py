"""Dense, layer norm, embedding and dropout against NumPy in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from outlast.models.layers import ACTIVATIONS, dense, dropout, embedding, layer_norm
from outlast.models.randomness import row_keys

RNG = np.random.default_rng(0)


def test_dense() -> None:
    x, kernel, bias = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(4, 5)), RNG.normal(size=5)
    params = {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    np.testing.assert_allclose(dense(jnp.asarray(x, jnp.float32), params), x @ kernel + bias, atol=1e-5)


def test_layer_norm_in_float32_even_for_bfloat16() -> None:
    x = RNG.normal(size=(2, 3, 64)) * 3 + 100
    scale, bias = RNG.normal(size=64), RNG.normal(size=64)
    params = {"scale": jnp.asarray(scale, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}

    def reference(x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + bias

    found = layer_norm(jnp.asarray(x, jnp.float32), params, 1e-5)
    np.testing.assert_allclose(found, reference(x), atol=1e-4)
    rounded = jnp.asarray(x, jnp.bfloat16)
    half = layer_norm(rounded, params, 1e-5)
    assert half.dtype == jnp.bfloat16
    # Only the output is rounded (8 bits); statistics in bfloat16 would be off by whole units around 100.
    np.testing.assert_allclose(
        half.astype(jnp.float32),
        reference(np.asarray(rounded.astype(jnp.float32), np.float64)),
        rtol=2**-8,
        atol=1e-3,
    )


def test_gelu_is_the_exact_form() -> None:
    # x * normal_cdf(x) at 1, by its definition; the tanh form gives 0.84119.
    np.testing.assert_allclose(ACTIVATIONS["gelu"](jnp.float32(1)), 0.8413447, atol=1e-6)


def test_gelu_and_its_slope_are_those_of_the_normal_distribution() -> None:
    x = np.linspace(-8, 8, 1001)
    cdf = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x])
    slope = cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    gelu = ACTIVATIONS["gelu"]
    wide = jnp.asarray(x, jnp.float32)
    np.testing.assert_allclose(gelu(wide), x * cdf, atol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(gelu(x)))(wide), slope, atol=1e-6)
    half = jnp.asarray(x, jnp.bfloat16)
    assert gelu(half).dtype == jnp.bfloat16
    # Computed in float32: only the input and the output are rounded to 8 bits.
    exact = np.asarray(gelu(half.astype(jnp.float32)))
    np.testing.assert_allclose(np.asarray(gelu(half).astype(jnp.float32)), exact, rtol=2**-8, atol=1e-6)


def test_the_frozen_row_of_an_embedding_gets_no_gradient() -> None:
    table = jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32)
    ids = jnp.array([[0, 1, 1], [2, 1, 3]])
    np.testing.assert_array_equal(embedding(table, ids, 1), np.asarray(table)[np.asarray(ids)])
    gradient = jax.grad(lambda table: jnp.sum(embedding(table, ids, 1)))(table)
    np.testing.assert_array_equal(gradient[:, 0], [1, 0, 1, 1])
    free = jax.grad(lambda table: jnp.sum(embedding(table, ids, None)))(table)
    np.testing.assert_array_equal(free[:, 0], [1, 3, 1, 1])


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    keys = row_keys(0, "train", 0, jnp.arange(64))
    x = jnp.ones((64, 100, 50))
    found = np.asarray(dropout(x, keys, 0.1))
    assert set(np.unique(found).tolist()) == {0.0, np.float32(1 / 0.9).item()}
    assert abs((found == 0).mean() - 0.1) < 6 * np.sqrt(0.09 / found.size)


def test_dropout_of_a_row_does_not_depend_on_its_batch() -> None:
    x = jnp.asarray(RNG.normal(size=(6, 40)), jnp.float32)
    rows = jnp.arange(6)
    whole = dropout(x, row_keys(3, "train", 5, rows), 0.5)
    part = dropout(x[3:5], row_keys(3, "train", 5, rows[3:5]), 0.5)
    np.testing.assert_array_equal(whole[3:5], part)


def test_no_keys_or_no_rate_leave_no_trace_in_the_program() -> None:
    x = jnp.ones((2, 3))
    keys = row_keys(0, "train", 0, jnp.arange(2))
    assert dropout(x, None, 0.5) is x
    assert dropout(x, keys, 0.0) is x
