"""The fused attention kernel: what one program computes, forward and backward.

In: references to one head of one row, and what a query may see. Out: the weighted values of a tile of
queries and the logarithm of what their softmax divides by; in the backward pass the gradient of a tile of
queries, or that of a tile of keys and values. No scores are written to memory: a program walks over the tiles
that its own meets (``fused_walk``), and the backward pass computes the scores again.

The softmax is taken tile by tile in float32 (Milakov and Gimelshein, 2018), the backward pass is that of Dao
(2023), "FlashAttention-2", section 3.1, with powers of two. Dropout draws the bits that ``layers.dropout``
draws for the whole array of probabilities: they are a function of the row's key and the number of the
probability.

A query that sees no key gets zeros.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jaxtyping import Bool, Float, Int, UInt32

from outlast.models.attention.fused_walk import Lists, Walk, walk
from outlast.models.randomness import hashed, threshold

_LOG2_E = np.float32(np.log2(np.e))
_LOWEST = np.float32(-1e30)
_TINY = np.float32(1e-30)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The shape and pattern of an attention: what its kernel is compiled for."""

    length: int
    """Positions of a row, without what it is padded with."""
    query_tile: int
    """Queries in a tile, a power of two, at least 16."""
    key_tile: int
    """Keys in a tile, likewise."""
    reach: int | None = None
    """Positions on either side that a query sees; None: all."""
    by_blocks: bool = False
    """BigBird's pattern; a tile is a block."""
    dropout_rate: float = 0.0
    """Of the probabilities."""


class Context(NamedTuple):
    """What a kernel reads beside queries, keys and values: arrays outside, references inside."""

    key_segments: Int[Array, "b m"]
    """-1 where there is nothing to see."""
    query_segments: Int[Array, "b l"] | None
    """A query sees keys of its segment only; None: of all."""
    lists: Lists | None
    """Of the tiles that the program's own tile meets; None: the pattern is arithmetic."""
    words: UInt32[Array, "b 2"] | None
    """The row's key for dropout; None: no dropout."""


def forward(
    plan: Plan, q_ref: Any, k_ref: Any, v_ref: Any, context: Context, out_ref: Any, log_sum_ref: Any
) -> None:
    """Compute a tile of the weighted values, and the logarithm to base 2 of each softmax's divisor."""
    tile, head = here(plan, q_ref.shape[0] // plan.query_tile)
    queries = pl.ds(tile * plan.query_tile, plan.query_tile)
    query = q_ref[queries, :]
    others = _walk(plan, tile, context, queries=True, length=k_ref.shape[0])

    def meet(step: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        mixed, top, total = carry
        place = others.place(step)
        keys = _slice(place, plan.key_tile)
        seen = _seen(plan, context, tile, place, query_axis=0)
        scores = jnp.where(seen, _product(query, k_ref[keys, :], 1, 1) * _LOG2_E, _LOWEST)
        new_top = jnp.maximum(top, jnp.max(scores, axis=1))
        weights = jnp.where(seen, jnp.exp2(scores - new_top[:, None]), jnp.float32(0))
        shrink = jnp.exp2(top - new_top)
        total = total * shrink + jnp.sum(weights, axis=1)
        weights = _dropped(plan, context, weights, head, tile, place, query_axis=0)
        value = v_ref[keys, :]
        mixed = mixed * shrink[:, None] + _product(weights.astype(value.dtype), value, 1, 0)
        return mixed, new_top, total

    start = (
        jnp.zeros(query.shape, jnp.float32),
        jnp.full((plan.query_tile,), _LOWEST, jnp.float32),
        jnp.zeros((plan.query_tile,), jnp.float32),
    )
    mixed, top, total = jax.lax.fori_loop(0, others.steps, meet, start)
    total = jnp.maximum(total, _TINY)
    out_ref[queries, :] = (mixed / total[:, None]).astype(out_ref.dtype)
    log_sum_ref[queries] = top + jnp.log2(total)


def backward_queries(
    plan: Plan,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    gradient_ref: Any,
    log_sum_ref: Any,
    inner_ref: Any,
    context: Context,
    out_ref: Any,
) -> None:
    """Compute the gradient of a tile of queries."""
    tile, head = here(plan, q_ref.shape[0] // plan.query_tile)
    queries = pl.ds(tile * plan.query_tile, plan.query_tile)
    query, gradient = q_ref[queries, :], gradient_ref[queries, :]
    log_sum, inner = log_sum_ref[queries], inner_ref[queries]
    others = _walk(plan, tile, context, queries=True, length=k_ref.shape[0])

    def meet(step: Array, total: Array) -> Array:
        place = others.place(step)
        keys = _slice(place, plan.key_tile)
        key, value = k_ref[keys, :], v_ref[keys, :]
        seen = _seen(plan, context, tile, place, query_axis=0)
        weights = _weights(_product(query, key, 1, 1), log_sum[:, None], seen)
        slope = _product(gradient, value, 1, 1)
        slope = _dropped(plan, context, slope, head, tile, place, query_axis=0)
        change = weights * (slope - inner[:, None])
        return total + _product(change.astype(key.dtype), key, 1, 0)

    total = jax.lax.fori_loop(0, others.steps, meet, jnp.zeros(query.shape, jnp.float32))
    out_ref[queries, :] = total.astype(out_ref.dtype)


def backward_keys(
    plan: Plan,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    gradient_ref: Any,
    log_sum_ref: Any,
    inner_ref: Any,
    context: Context,
    key_out_ref: Any,
    value_out_ref: Any,
) -> None:
    """Compute the gradients of a tile of keys and values. Scores stand here with keys along the rows."""
    tile, head = here(plan, k_ref.shape[0] // plan.key_tile)
    keys = pl.ds(tile * plan.key_tile, plan.key_tile)
    key, value = k_ref[keys, :], v_ref[keys, :]
    others = _walk(plan, tile, context, queries=False, length=q_ref.shape[0])

    def meet(step: Array, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        place = others.place(step)
        queries = _slice(place, plan.query_tile)
        query, gradient = q_ref[queries, :], gradient_ref[queries, :]
        seen = _seen(plan, context, place, tile, query_axis=1)
        weights = _weights(_product(key, query, 1, 1), log_sum_ref[queries][None, :], seen)
        kept = _dropped(plan, context, weights, head, place, tile, query_axis=1)
        slope = _product(value, gradient, 1, 1)
        slope = _dropped(plan, context, slope, head, place, tile, query_axis=1)
        change = weights * (slope - inner_ref[queries][None, :])
        of_key, of_value = totals
        of_value = of_value + _product(kept.astype(gradient.dtype), gradient, 1, 0)
        return of_key + _product(change.astype(query.dtype), query, 1, 0), of_value

    zeros = jnp.zeros(key.shape, jnp.float32)
    of_key, of_value = jax.lax.fori_loop(0, others.steps, meet, (zeros, zeros))
    key_out_ref[keys, :] = of_key.astype(key_out_ref.dtype)
    value_out_ref[keys, :] = of_value.astype(value_out_ref.dtype)


def here(plan: Plan, num_tiles: int) -> tuple[Array, Array]:
    """Return which tile and head a program computes.

    Tiles of a head run beside each other, so that they share its keys in the cache. By blocks, few keys are
    shared, and the first and the last block have by far the most to do: they begin, for all heads and rows.
    """
    if not plan.by_blocks:
        return pl.program_id(0), pl.program_id(1)
    turn = pl.program_id(2)
    tile = jnp.where(turn == 0, 0, jnp.where(turn == 1, num_tiles - 1, turn - 1))
    return tile, pl.program_id(0)


def _walk(plan: Plan, tile: Array, context: Context, *, queries: bool, length: int) -> Walk:
    sizes = (plan.query_tile, plan.key_tile)
    own, other = sizes if queries else sizes[::-1]
    return walk(tile, own=own, other=other, num_others=length // other, reach=plan.reach, lists=context.lists)


def _slice(place: Array, size: int) -> Any:
    return pl.ds(jnp.maximum(place, 0) * size, size)


def _product(a: Array, b: Array, along_a: int, along_b: int) -> Float[Array, "x y"]:
    """Contract one axis of each, summed in float32."""
    return jax.lax.dot_general(a, b, (((along_a,), (along_b,)), ((), ())), preferred_element_type=jnp.float32)


def _along(vector: Array, axis: int) -> Array:
    return vector[:, None] if axis == 0 else vector[None, :]


def _positions(plan: Plan, query_tile: Array, key_tile: Array, query_axis: int) -> tuple[Array, Array]:
    """Return the positions of the queries and the keys of a pair of tiles, int32, along their axes."""
    query = query_tile * plan.query_tile + jnp.arange(plan.query_tile, dtype=jnp.int32)
    key = key_tile * plan.key_tile + jnp.arange(plan.key_tile, dtype=jnp.int32)
    return _along(query, query_axis), _along(key, 1 - query_axis)


def _seen(
    plan: Plan, context: Context, query_tile: Array, key_tile: Array, *, query_axis: int
) -> Bool[Array, "x y"]:
    """Return which queries of a tile may attend to which keys of one; none where a tile is -1."""
    segments = context.key_segments[_slice(key_tile, plan.key_tile)]
    segments = jnp.where(jnp.minimum(query_tile, key_tile) < 0, -1, segments)
    of_key = _along(segments, 1 - query_axis)
    if context.query_segments is None:
        shape = (plan.query_tile, plan.key_tile) if query_axis == 0 else (plan.key_tile, plan.query_tile)
        seen = jnp.broadcast_to(of_key >= 0, shape)
    else:
        seen = of_key == _along(context.query_segments[_slice(query_tile, plan.query_tile)], query_axis)
    if plan.reach is not None:
        query, key = _positions(plan, query_tile, key_tile, query_axis)
        seen = seen & (jnp.abs(query - key) <= plan.reach)
    return seen


def _weights(scores: Array, log_sum: Array, seen: Array) -> Float[Array, "x y"]:
    return jnp.where(seen, jnp.exp2(scores * _LOG2_E - log_sum), jnp.float32(0))


def _dropped(
    plan: Plan,
    context: Context,
    x: Float[Array, "x y"],
    head: Array,
    query_tile: Array,
    key_tile: Array,
    *,
    query_axis: int,
) -> Float[Array, "x y"]:
    """Zero what dropout takes of a pair of tiles and scale the rest, by the bits of ``layers.dropout``."""
    if context.words is None:
        return x
    query, key = (p.astype(jnp.uint32) for p in _positions(plan, query_tile, key_tile, query_axis))
    length = np.uint32(plan.length)
    bits = hashed(
        (head.astype(jnp.uint32) * length + query) * length + key, context.words[0], context.words[1]
    )
    keep = bits < threshold(1 - plan.dropout_rate)
    return jnp.where(keep, x / np.float32(1 - plan.dropout_rate), jnp.float32(0))
