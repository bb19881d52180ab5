"""Block-sparse attention equals the dense formula, forward and backward, at any length and padding."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.errors import ConfigError
from outlast.models.attention.block_sparse import block_sparse_attend, simulated_sparse_attend
from outlast.models.attention.heads import map_heads
from outlast.models.attention.random_blocks import (
    BlockSparse,
    first_block_table,
    is_sparse,
    random_block_table,
)

BLOCK, HEADS, SIZE, ROWS = 4, 3, 8, 2


def pattern(*, seed: int = 0, kind: str = "uniform", num_random_blocks: int = 3) -> BlockSparse:
    return BlockSparse(
        block_size=BLOCK,
        num_random_blocks=num_random_blocks,
        random_block_seed=seed,
        random_blocks="transformers" if kind == "transformers" else "uniform",
        evaluation_random_blocks="same",
        simulated=False,
    )


def table_of(
    sparse: BlockSparse, num_blocks: int, layer: int = 0
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    tables = random_block_table(
        sparse, num_layers=layer + 1, num_heads=HEADS, num_blocks=num_blocks, max_positions=num_blocks * BLOCK
    )
    return tables[layer]


def arrays(length: int) -> list[Array]:
    keys = jax.random.split(jax.random.key(0), 4)
    return [jax.random.normal(key, (ROWS, length, HEADS, SIZE)) for key in keys]


@pytest.mark.parametrize("length", [48, 50, 61])
@pytest.mark.parametrize("padded", [False, True])
def test_sparse_attention_equals_the_dense_formula_forward_and_backward(length: int, padded: bool) -> None:
    query, key, value, weight = arrays(length)
    mask = jnp.ones((ROWS, length), jnp.int8)
    mask = mask.at[0, 40:].set(0).at[1, :7].set(0) if padded else None
    blocks = jnp.asarray(table_of(pattern(), -(-length // BLOCK)))

    def evaluate(attend: Callable[..., Array]) -> tuple[Array, tuple[Array, ...]]:
        def loss(*projected: Array) -> Array:
            mixed = attend(*projected, attention_mask=mask, random_blocks=blocks, block_size=BLOCK)
            return jnp.sum(mixed * weight)

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(query, key, value)

    found, expected = evaluate(block_sparse_attend), evaluate(simulated_sparse_attend)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-4)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_block_that_stands_twice_counts_twice() -> None:
    query, key, value, _ = arrays(48)
    blocks = jnp.asarray(first_block_table((HEADS, 10, 3)))
    found, expected = (
        attend(query, key, value, attention_mask=None, random_blocks=blocks, block_size=BLOCK)
        for attend in (block_sparse_attend, simulated_sparse_attend)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    other = block_sparse_attend(
        query,
        key,
        value,
        attention_mask=None,
        random_blocks=jnp.asarray(table_of(pattern(), 12)),
        block_size=BLOCK,
    )
    assert float(jnp.max(jnp.abs(found - other))) > 0.01


@pytest.mark.parametrize("num_blocks", [12, 13, 40])
def test_random_blocks_are_none_of_the_window_nor_the_global_ones_and_never_twice(num_blocks: int) -> None:
    table = table_of(pattern(), num_blocks)
    assert table.shape == (HEADS, num_blocks - 2, 3)
    rows = np.arange(1, num_blocks - 1)[None, :, None]
    assert (abs(table - rows) > 1).all()
    assert table.min() >= 1
    assert table.max() <= num_blocks - 2
    assert (np.diff(table, axis=2) > 0).all()


def test_random_blocks_reach_the_whole_sequence_and_differ_by_seed_layer_and_head() -> None:
    table = table_of(pattern(), 40)
    counts = np.bincount(table.ravel(), minlength=40)[1:-1]
    # 342 draws over 38 blocks: 9 each; a block that is never drawn has probability below 1e-3.
    assert counts.min() > 0
    others = [table_of(pattern(seed=1), 40), table_of(pattern(), 40, layer=1), table[::-1]]
    assert all(not np.array_equal(table, other) for other in others)
    np.testing.assert_array_equal(table[0, :3], [[12, 21, 26], [14, 15, 35], [1, 5, 8]])


def library_table(
    block_size: int, num_random_blocks: int, length: int, max_positions: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    sparse = pattern(kind="transformers", num_random_blocks=num_random_blocks)
    return random_block_table(
        replace(sparse, block_size=block_size),
        num_layers=2,
        num_heads=HEADS,
        num_blocks=-(-length // block_size),
        max_positions=max_positions,
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((256, 3, 4096, 4096), r"not 3 random blocks of 256 tokens[\s\S]*model\.block_size to less"),
        ((256, 1, 3072, 4096), "not 1 random blocks of 256 tokens"),
        ((128, 5, 3072, 3072), "not 5 random blocks of 128 tokens"),
        ((64, 3, 961, 1000), r"1000 positions do not fit 16 blocks[\s\S]*model\.max_positions to 1024"),
        ((512, 1, 4096, 8192), r"8192 positions do not fit 8 blocks[\s\S]*model\.max_positions to 4096"),
    ],
)
def test_what_the_librarys_plan_cannot_draw_is_refused(
    sizes: tuple[int, int, int, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        library_table(*sizes)


def test_a_row_that_one_block_is_left_for_has_it_in_all_places() -> None:
    """As in the library: NumPy spreads a single value over the row."""
    table = library_table(192, 2, 3072, 3072)
    np.testing.assert_array_equal(table[:, :, 1], np.full((2, HEADS, 2), 4))
    assert library_table(512, 1, 4096, 4096 + 512).max() <= 7


def test_short_sequences_are_attended_to_in_full() -> None:
    assert not is_sparse(11 * 64, block_size=64, num_random_blocks=3)
    assert is_sparse(11 * 64 + 1, block_size=64, num_random_blocks=3)


def test_temporaries_grow_with_the_length_and_not_with_its_square() -> None:
    def temporary_bytes(length: int) -> int:
        blocks = jnp.asarray(table_of(pattern(), length // BLOCK))
        shape = jax.ShapeDtypeStruct((1, length, HEADS, SIZE), jnp.float32)

        def loss(*projected: Array) -> Array:
            return jnp.sum(
                block_sparse_attend(*projected, attention_mask=None, random_blocks=blocks, block_size=BLOCK)
                ** 2
            )

        analysis = jax.jit(jax.grad(loss, (0, 1, 2))).lower(shape, shape, shape).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    assert temporary_bytes(1024) < 4.6 * temporary_bytes(256)


def test_heads_at_once_and_in_groups_are_the_same() -> None:
    """The accelerators' form is lowered for CUDA; what it computes is computed here under vmap."""
    query, key, value, _ = arrays(16)

    def attend_head(query: Array, key: Array, value: Array) -> Array:
        return jax.nn.softmax(query @ key.T, axis=-1) @ value

    found = map_heads(attend_head, (query, key, value))
    over_heads = jax.vmap(jax.vmap(attend_head, in_axes=1, out_axes=1))
    np.testing.assert_allclose(found, over_heads(query, key, value), atol=1e-6)
    traced = jax.jit(lambda *x: map_heads(attend_head, x)).trace(query, key, value)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "while" not in text
