"""The TPU's kernel, run by the interpreter, equals the plain formula, forward and backward."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.models.attention.block_sparse import attend_on_tpu, simulated_sparse_attend
from outlast.models.attention.full import pair_bias, plain_attend
from outlast.models.attention.local import local_attend
from outlast.models.attention.random_blocks import (
    BlockSparse,
    first_block_table,
    none_twice,
    random_block_table,
)
from outlast.models.attention.splash import fits_blocks, splash_attend

HEADS, SIZE, RANDOM = 2, 16, 2


def table_of(block_size: int, num_blocks: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    sparse = BlockSparse(
        block_size=block_size,
        num_random_blocks=RANDOM,
        random_block_seed=0,
        random_blocks="uniform",
        evaluation_random_blocks="same",
        simulated=False,
    )
    return random_block_table(
        sparse, num_layers=2, num_heads=HEADS, num_blocks=num_blocks, max_positions=num_blocks * block_size
    )


def check_same(one: Callable[..., Array], other: Callable[..., Array], mask: Array) -> None:
    """Compare two attentions of (1, l, heads, size) and their gradients at the real positions."""
    keys = jax.random.split(jax.random.key(0), 4)
    query, key, value, weight = (jax.random.normal(k, (*mask.shape, HEADS, SIZE)) for k in keys)
    weight = weight * mask.astype(jnp.float32)[:, :, None, None]

    def loss(attend: Callable[..., Array]) -> Callable[..., Array]:
        return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(attend(*x) * weight), (0, 1, 2)))

    found, expected = (loss(attend)(query, key, value) for attend in (one, other))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-3)
    for gradient, reference in zip(found[1], expected[1], strict=True):
        scale = float(jnp.max(jnp.abs(reference)))
        np.testing.assert_allclose(gradient, reference, atol=1e-5 * max(scale, 1.0))


@pytest.mark.parametrize(("block_size", "num_blocks"), [(64, 12), (128, 8)])
def test_block_sparse_attention_by_the_kernel(block_size: int, num_blocks: int) -> None:
    table = table_of(block_size, num_blocks)
    assert none_twice(table)
    assert fits_blocks(num_blocks, block_size)
    blocks, length = jnp.asarray(table[1]), num_blocks * block_size
    mask = jnp.arange(length)[None] < length - 70

    def by_kernel(query: Array, key: Array, value: Array) -> Array:
        scaled = query * jnp.float32(SIZE**-0.5)
        return attend_on_tpu(scaled, key, value, mask, blocks, block_size, interpret=True)

    def dense(query: Array, key: Array, value: Array) -> Array:
        return simulated_sparse_attend(
            query, key, value, attention_mask=mask, random_blocks=blocks, block_size=block_size
        )

    check_same(by_kernel, dense, mask)


def test_full_attention_by_the_kernel() -> None:
    length = 300
    mask = (jnp.arange(length)[None] >= 40).astype(jnp.int8)
    segments = jnp.cumsum(jnp.arange(length)[None] % 111 == 110, axis=1)

    def by_kernel(query: Array, key: Array, value: Array) -> Array:
        scaled = query * jnp.float32(SIZE**-0.5)
        real = mask.astype(jnp.bool_)
        return splash_attend(scaled, key, value, segments=segments, real=real, reach=None, interpret=True)

    def plain(query: Array, key: Array, value: Array) -> Array:
        return plain_attend(query, key, value, bias=pair_bias(mask, segments))

    check_same(by_kernel, plain, mask)


@pytest.mark.parametrize("length", [384, 300])
def test_a_window_by_the_kernel(length: int) -> None:
    mask = jnp.arange(length)[None] < length - 40
    segments = jnp.cumsum(jnp.arange(length)[None] % 111 == 110, axis=1)

    def by_kernel(query: Array, key: Array, value: Array) -> Array:
        scaled = query * jnp.float32(SIZE**-0.5)
        return splash_attend(scaled, key, value, segments=segments, real=mask, reach=32, interpret=True)

    def by_blocks(query: Array, key: Array, value: Array) -> Array:
        return local_attend(query, key, value, attention_mask=mask, segment_ids=segments, reach=32)

    check_same(by_kernel, by_blocks, mask)


def test_a_block_that_stands_twice_is_noticed() -> None:
    """The kernel would count it once."""
    table = table_of(64, 12)
    assert not none_twice(first_block_table(table.shape))
    twice = table.copy()
    twice[1, 0, 4, 0] = twice[1, 0, 4, 1]
    assert not none_twice(twice)
    window = table.copy()
    window[0, 1, 4, 0] = 5
    assert not none_twice(window)


def test_blocks_that_make_no_tiles() -> None:
    assert fits_blocks(64, 64)
    assert not fits_blocks(63, 64)
    assert not fits_blocks(64, 32)
