"""The GPU's kernel equals the plain formulas, forward and backward. Run by the interpreter, or by a GPU:

JAX_PLATFORMS=cuda python -m pytest tests/models/test_fused.py
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.models.attention.block_sparse import simulated_sparse_attend
from outlast.models.attention.full import key_bias, pair_bias, plain_attend
from outlast.models.attention.fused import fused_attend, fused_blocks
from outlast.models.attention.fused_walk import Lists, lists_by_key, lists_by_query, walk
from outlast.models.attention.random_blocks import (
    BlockSparse,
    RandomBlocks,
    first_block_table,
    none_twice,
    random_block_table,
)
from outlast.models.randomness import row_keys

HEADS, SIZE = 2, 16
INTERPRET = jax.default_backend() == "cpu"
Attend = Callable[[Array, Array, Array], Array]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """A GPU multiplies float32 in fewer bits else, in the formulas and in the kernel alike."""
    with jax.default_matmul_precision("highest"):
        yield


def check_same(
    fused: Attend, plain: Attend, real: Array, *, dtype: str = "float32", apart: float = 2e-6
) -> None:
    """Compare two attentions of (b, l, heads, size) and their gradients at the real positions."""
    keys = jax.random.split(jax.random.key(0), 4)
    *projected, weight = (jax.random.normal(key, (*real.shape, HEADS, SIZE)).astype(dtype) for key in keys)
    weight = (weight * real.astype(dtype)[:, :, None, None]).astype(jnp.float32)

    def run(attend: Attend) -> list[Array]:
        def loss(*arrays: Array) -> tuple[Array, Array]:
            mixed = attend(*arrays).astype(jnp.float32) * jnp.abs(jnp.sign(weight))
            return jnp.sum(mixed * weight), mixed

        gradients, mixed = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*projected)
        return [mixed, *gradients]

    for found, expected in zip(run(fused), run(plain), strict=True):
        assert found.dtype == expected.dtype
        scale = max(float(jnp.max(jnp.abs(expected))), 1.0)
        wide = (np.asarray(x, np.float64) for x in (found, expected))
        np.testing.assert_allclose(*wide, rtol=0, atol=apart * scale)


def scaled(query: Array) -> Array:
    return query * jnp.asarray(SIZE**-0.5, query.dtype)


def padding(kind: str, length: int) -> Array:
    """Return two rows of real positions: all, and all but the last or the first third."""
    place = jnp.arange(length)[None]
    fewer = place < length - length // 3 if kind == "right" else place >= length // 3
    return jnp.concatenate([jnp.ones_like(fewer), fewer])


@pytest.mark.parametrize(
    ("length", "side", "with_segments", "reach"),
    [
        (130, "right", False, None),
        (64, "left", False, None),
        (150, "right", True, None),
        (200, "left", False, 20),
        (256, "right", True, 64),
        (17, "right", False, 3),
    ],
)
def test_full_attention_and_windows(length: int, side: str, with_segments: bool, reach: int | None) -> None:
    real = padding(side, length)
    place = jnp.arange(length)
    segments = (
        jnp.cumsum(place[None] % 47 == 46, axis=1, dtype=jnp.int32).repeat(2, 0) if with_segments else None
    )
    bias = pair_bias(real, segments)
    if reach is not None:
        near = key_bias(jnp.abs(place[:, None] - place[None, :]) <= reach)[None]
        bias = near if bias is None else jnp.minimum(bias, near)

    def fused(query: Array, key: Array, value: Array) -> Array:
        return fused_attend(
            scaled(query), key, value, real=real, segments=segments, reach=reach, interpret=INTERPRET
        )

    check_same(fused, lambda *projected: plain_attend(*projected, bias=bias), real)


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 2e-6), ("bfloat16", 2e-2)])
def test_dropout_takes_the_same_probabilities(dtype: str, apart: float) -> None:
    """Of a length that is padded inside, so that the numbers of the probabilities are put to the test."""
    real = padding("right", 100)
    keys = row_keys(0, "train", 3, jnp.arange(2))

    def fused(query: Array, key: Array, value: Array) -> Array:
        return fused_attend(
            scaled(query), key, value, real=real, dropout_keys=keys, dropout_rate=0.3, interpret=INTERPRET
        )

    def plain(query: Array, key: Array, value: Array) -> Array:
        bias = pair_bias(real, None)
        return plain_attend(query, key, value, bias=bias, dropout_keys=keys, dropout_rate=0.3)

    check_same(fused, plain, real, dtype=dtype, apart=apart)


def table_of(kind: str, block_size: int, num_blocks: int, num_random: int) -> Array:
    drawn: RandomBlocks = "transformers" if kind == "transformers" else "uniform"
    sparse = BlockSparse(
        block_size=block_size,
        num_random_blocks=num_random,
        random_block_seed=0,
        random_blocks=drawn,
        evaluation_random_blocks="same",
        simulated=False,
    )
    length = num_blocks * block_size
    table = random_block_table(
        sparse, num_layers=1, num_heads=HEADS, num_blocks=num_blocks, max_positions=length
    )
    table = first_block_table(table.shape) if kind == "first block" else table
    assert num_random == 0 or none_twice(table) == (kind == "uniform")
    return jnp.asarray(table[0])


@pytest.mark.parametrize(
    ("kind", "block_size", "num_blocks", "num_random"),
    [("uniform", 16, 13, 3), ("uniform", 32, 7, 0), ("first block", 16, 12, 3), ("transformers", 64, 16, 3)],
)
def test_blocks(kind: str, block_size: int, num_blocks: int, num_random: int) -> None:
    """A block that stands twice in a row of the table counts twice."""
    table, length = table_of(kind, block_size, num_blocks, num_random), num_blocks * block_size
    real = padding("right", length)

    def fused(query: Array, key: Array, value: Array) -> Array:
        return fused_blocks(
            scaled(query),
            key,
            value,
            real=real,
            random_blocks=table,
            block_size=block_size,
            interpret=INTERPRET,
        )

    def dense(query: Array, key: Array, value: Array) -> Array:
        return simulated_sparse_attend(
            query, key, value, attention_mask=real, random_blocks=table, block_size=block_size
        )

    check_same(fused, dense, real)


def test_a_query_that_sees_no_key_gets_zeros_and_gives_no_gradient() -> None:
    real = jnp.zeros((1, 70), jnp.bool_)
    query, key, value = (jax.random.normal(jax.random.key(i), (1, 70, HEADS, SIZE)) for i in range(3))

    def mixed(*projected: Array) -> Array:
        return fused_attend(*projected, real=real, interpret=INTERPRET)

    found = mixed(query, key, value)
    np.testing.assert_array_equal(found, np.zeros_like(found))
    for gradient in jax.grad(lambda *x: jnp.sum(mixed(*x)), (0, 1, 2))(query, key, value):
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


def met(tile: int, num_tiles: int, lists: Lists | None = None, reach: int | None = None) -> list[int]:
    """Return what a tile meets; tiles of 64 queries, or 16 keys where there is a reach."""
    own_lists = None if lists is None else Lists(lists.starts[0], lists.tiles[0])
    other = 64 if reach is None else 16
    found = walk(jnp.int32(tile), own=64, other=other, num_others=num_tiles, reach=reach, lists=own_lists)
    return sorted(int(found.place(jnp.int32(step))) for step in range(int(found.steps)))


def test_both_directions_of_a_walk_meet_the_same_pairs() -> None:
    for kind, num_random in (("uniform", 3), ("first block", 3), ("uniform", 0)):
        table = table_of(kind, 64, 14, num_random)
        ways = [
            [met(i, 14, lists) for i in range(14)] for lists in (lists_by_query(table), lists_by_key(table))
        ]
        forward, backward = ([[row.count(i) for i in range(14)] for row in way] for way in ways)
        assert forward == np.asarray(backward).T.tolist()
        assert forward[5] == [1 + table[0, 4].tolist().count(0)] + [
            int(abs(i - 5) <= 1 or i == 13) + table[0, 4].tolist().count(i) for i in range(1, 14)
        ]


def test_a_window_is_walked_no_further_than_it_reaches() -> None:
    assert met(0, 12, reach=20) == list(range(6))
    assert met(1, 12, reach=20) == list(range(2, 10))
    assert met(2, 12, reach=64) == list(range(4, 12))
