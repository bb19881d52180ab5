"""Sliding-window attention by blocks equals full attention under a mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.models.attention.full import plain_attend
from outlast.models.attention.local import local_attend
from outlast.models.layers import ACTIVATIONS
from outlast.models.modernbert import rotate, turns_of


def by_the_full_formula(
    query: Array, key: Array, value: Array, mask: Array | None, segments: Array | None, reach: int
) -> Array:
    length = query.shape[1]
    place = jnp.arange(length)
    seen = (abs(place[:, None] - place[None, :]) <= reach)[None]
    if mask is not None:
        seen = seen & mask.astype(bool)[:, None, :]
    if segments is not None:
        seen = seen & (segments[:, :, None] == segments[:, None, :])
    bias = jnp.where(seen, 0.0, jnp.finfo(jnp.float32).min)
    return plain_attend(query, key, value, bias=bias)


@pytest.mark.parametrize("length", [16, 21, 3])
@pytest.mark.parametrize("kind", ["plain", "padded", "segments"])
def test_local_attention_equals_the_full_formula_forward_and_backward(length: int, kind: str) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    query, key, value, weight = (jax.random.normal(k, (2, length, 2, 8)) for k in keys)
    mask = (
        (jnp.arange(length)[None] < jnp.array([[length], [2]])).astype(jnp.int8) if kind == "padded" else None
    )
    segments = (
        jnp.cumsum(jnp.arange(length)[None] % 5 == 4, axis=1).repeat(2, 0) if kind == "segments" else None
    )
    weight = weight if mask is None else weight * mask.astype(jnp.float32)[:, :, None, None]

    def local(query: Array, key: Array, value: Array) -> Array:
        mixed = local_attend(query, key, value, attention_mask=mask, segment_ids=segments, reach=4)
        return jnp.sum(mixed * weight)

    def full(query: Array, key: Array, value: Array) -> Array:
        return jnp.sum(by_the_full_formula(query, key, value, mask, segments, 4) * weight)

    found, expected = (
        jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(query, key, value) for loss in (local, full)
    )
    np.testing.assert_allclose(found[0], expected[0], atol=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_rotated_products_depend_on_the_distance_alone() -> None:
    one, other = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
    query, key = (
        rotate(jnp.tile(x, (1, 12, 1, 1)), turns_of(12, x.shape[-1], 100.0))[0, :, 0] for x in (one, other)
    )
    products = np.asarray(query @ key.T)
    for distance in range(-11, 12):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert abs(products[0, 0] - products[0, 3]) > 1e-3


def test_gelu_new_is_the_tanh_form() -> None:
    x = jnp.linspace(-3, 3, 7)
    expected = 0.5 * x * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(ACTIVATIONS["gelu_new"](x), expected, atol=1e-6)
