"""Which tiles of keys a tile of queries walks over in the fused kernel, and the other way round.

In: a pattern of attention and the number of a tile. Out: how many tiles it meets, and the number of each. A
tile that is met twice counts twice. Both directions agree on how often a tile of queries and a tile of keys
meet.

All patterns but one are arithmetic. BigBird's random blocks come as lists: for each tile where its entries
begin and end, and the entries of all tiles behind each other. They are computed from the table inside the
step, because the layers are scanned and each has a table of its own.

Letters: h head, n block (a tile, where attention is by blocks), r random block, e entry of a list.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

_FIXED = 5
"""First, window of three, last: what a middle block of BigBird meets beside its random blocks."""


class Lists(NamedTuple):
    """The entries of tile i are ``tiles[:, starts[:, i] : starts[:, i + 1]]``. One entry more stands at the
    end, so that reading behind the last list is no fault.
    """

    starts: Int[Array, "h n+1"]
    tiles: Int[Array, "h e"]


class Walk(NamedTuple):
    """The tiles that one tile meets."""

    steps: Array | int
    place: Callable[[Array], Array]
    """From 0, 1, ... to the number of the tile; -1 for none."""


def lists_by_query(random_blocks: Int[Array, "h n-2 r"]) -> Lists:
    """Return the random key blocks of each query block; the first and the last block have none."""
    h, middle, r = random_blocks.shape
    starts = jnp.clip(jnp.arange(middle + 3, dtype=jnp.int32) - 1, 0, middle) * r
    return Lists(jnp.broadcast_to(starts[None], (h, middle + 3)), _entries(random_blocks.reshape(h, -1)))


def lists_by_key(random_blocks: Int[Array, "h n-2 r"]) -> Lists:
    """Return for each key block the query blocks that have drawn it, each as often as it did."""
    h, middle, r = random_blocks.shape
    drawn = random_blocks.reshape(h, -1)
    order = jnp.argsort(drawn, axis=1, stable=True).astype(jnp.int32)
    blocks = jnp.arange(middle + 3, dtype=jnp.int32)
    ordered = jnp.take_along_axis(drawn, order, axis=1)
    starts = jax.vmap(lambda row: jnp.searchsorted(row, blocks))(ordered).astype(jnp.int32)
    return Lists(starts, _entries(order // max(r, 1) + 1))


def walk(
    tile: Array, *, own: int, other: int, num_others: int, reach: int | None = None, lists: Any = None
) -> Walk:
    """Return the walk of a tile. Of the two directions only the sizes and the lists differ.

    Args:
        tile: its number, int32.
        own: positions in it.
        other: positions in a tile that it meets.
        num_others: tiles there are of them.
        reach: of a window; None: none.
        lists: of BigBird's random blocks, one head's, as arrays or references; None: no blocks.
    """
    if lists is not None:
        return _by_blocks(tile, num_others, lists)
    if reach is None:
        return Walk(num_others, lambda step: step)
    first = jax.lax.div(jnp.maximum(tile * own - reach, 0), jnp.int32(other))
    last = jax.lax.div(tile * own + (own - 1 + reach), jnp.int32(other))
    return Walk(jnp.minimum(last, num_others - 1) - first + 1, lambda step: first + step)


def _by_blocks(tile: Array, num_tiles: int, lists: Any) -> Walk:
    """The first and the last block meet all; another the first, its window, the last, and its list."""
    is_edge = (tile == 0) | (tile == num_tiles - 1)
    # Not by ``where``: Triton's lowering does not take two constants there.
    fixed = _FIXED + is_edge.astype(jnp.int32) * (num_tiles - _FIXED)
    start, end = lists.starts[tile], lists.starts[tile + 1]

    def place(step: Array) -> Array:
        near = tile + step - 2
        # The second block's window begins with the first block, which is met already.
        near = jnp.where((near < 1) | (near > num_tiles - 2), -1, near)
        middle = jnp.where(step == 0, 0, jnp.where(step == _FIXED - 1, num_tiles - 1, near))
        listed = lists.tiles[start + jnp.maximum(step - fixed, 0)]
        return jnp.where(step < fixed, jnp.where(is_edge, step, middle), listed)

    return Walk(fixed + end - start, place)


def _entries(tiles: Int[Array, "h e-1"]) -> Int[Array, "h e"]:
    return jnp.pad(tiles.astype(jnp.int32), ((0, 0), (0, 1)))
