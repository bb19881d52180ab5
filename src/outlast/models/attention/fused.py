"""Attention on a GPU by one kernel of our own (Pallas, compiled by Triton), for every pattern there is: full,
a window, segments, BigBird's blocks; with dropout on the probabilities.

In: scaled queries, keys and values per head, and what may be seen. Out: the weighted values. The scores are
never written to memory, neither forward nor backward. Equal to the plain formulas to rounding, dropout
included; only a query that sees no key gets zeros here and the mean of the values there. A block that stands
twice in a row of BigBird's table counts twice.

What a program of the kernel does is in ``fused_kernels``, which tiles it meets in ``fused_walk``.

Letters: b row, l query position, m key position, h head, k size of a head, n block, r random block.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jaxtyping import Bool, Float, Int

from outlast.models.attention import fused_kernels
from outlast.models.attention.fused_kernels import Context, Plan
from outlast.models.attention.fused_walk import lists_by_key, lists_by_query
from outlast.models.randomness import RowKeys

_TILE = 64


def fused_attend(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    *,
    real: Bool[Array, "b l"],
    segments: Int[Array, "b l"] | None = None,
    reach: int | None = None,
    dropout_keys: RowKeys | None = None,
    dropout_rate: float = 0.0,
    interpret: bool = False,
) -> Float[Array, "b l h k"]:
    """Return the attention of every position to the real keys of its segment that are in its window.

    Args:
        query: scaled.
        segments: numbers from 0 on; None: one.
        reach: positions on either side that are seen; None: all.
        dropout_keys: for dropout on the probabilities; None for none.
        interpret: run the kernel's program on any device, slowly.
    """
    length = query.shape[1]
    padding = -length % _TILE
    query, key, value = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (query, key, value))
    of_key = jnp.where(real, 0 if segments is None else segments, -1).astype(jnp.int32)
    keys = dropout_keys if dropout_rate > 0 else None
    plan = Plan(
        length=length,
        query_tile=_TILE,
        key_tile=_TILE,
        reach=reach,
        dropout_rate=0.0 if keys is None else dropout_rate,
    )
    context = Context(
        key_segments=jnp.pad(of_key, ((0, 0), (0, padding)), constant_values=-1),
        query_segments=None
        if segments is None
        else jnp.pad(segments.astype(jnp.int32), ((0, 0), (0, padding))),
        lists=None,
        words=None if keys is None else jax.random.key_data(keys),
    )
    mixed: Any = _attend(query, key, value, context, None, plan, interpret)
    return mixed[:, :length]


def fused_blocks(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    *,
    real: Bool[Array, "b l"],
    random_blocks: Int[Array, "h n-2 r"],
    block_size: int,
    interpret: bool = False,
) -> Float[Array, "b l h k"]:
    """Return BigBird's attention, of whole blocks and scaled queries (``block_sparse``).

    Args:
        interpret: run the kernel's program on any device, slowly.
    """
    length = query.shape[1]
    plan = Plan(length=length, query_tile=block_size, key_tile=block_size, by_blocks=True)
    of_key = jnp.where(real, 0, -1).astype(jnp.int32)
    context = Context(key_segments=of_key, query_segments=None, lists=None, words=None)
    return _attend(query, key, value, context, random_blocks, plan, interpret)


@partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(
    query: Array,
    key: Array,
    value: Array,
    context: Context,
    random_blocks: Array | None,
    plan: Plan,
    interpret: bool,
) -> Array:
    return _forward(query, key, value, context, random_blocks, plan, interpret)[0]


def _forward(
    query: Array,
    key: Array,
    value: Array,
    context: Context,
    random_blocks: Array | None,
    plan: Plan,
    interpret: bool,
) -> tuple[Array, Any]:
    if random_blocks is not None:
        context = context._replace(lists=lists_by_query(random_blocks))
    b, length, h, _ = query.shape
    log_sums = jax.ShapeDtypeStruct((b, h, length), jnp.float32)
    mixed, log_sums = _call(
        fused_kernels.forward,
        plan,
        plan.query_tile,
        (query, key, value, context),
        (query, log_sums),
        interpret,
    )
    return mixed, (query, key, value, context, random_blocks, mixed, log_sums)


def _backward(plan: Plan, interpret: bool, kept: Any, gradient: Array) -> tuple[Any, ...]:
    query, key, value, context, random_blocks, mixed, log_sums = kept
    # The backward pass of a softmax p with gradient g is p * (g - sum(p * g)). Since the output is p @ value,
    # that sum is output * gradient summed over a head's numbers, and needs no p.
    inner = jnp.sum(mixed.astype(jnp.float32) * gradient.astype(jnp.float32), axis=3).swapaxes(1, 2)
    arrays = (query, key, value, gradient, log_sums, inner)
    (of_query,) = _call(
        fused_kernels.backward_queries, plan, plan.query_tile, (*arrays, context), (query,), interpret
    )
    if random_blocks is not None:
        context = context._replace(lists=lists_by_key(random_blocks))
    of_key, of_value = _call(
        fused_kernels.backward_keys, plan, plan.key_tile, (*arrays, context), (key, value), interpret
    )
    return of_query, of_key, of_value, None, None


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Callable[..., None],
    plan: Plan,
    tile: int,
    arguments: Any,
    outputs: tuple[Any, ...],
    interpret: bool,
) -> tuple[Array, ...]:
    """Run one program for each tile of each head of each row.

    Args:
        tile: positions in a program's own tile.
        arguments: arrays of (b, l, h, k), then of (b, h, l), and at last the context.
        outputs: what looks like the outputs, likewise.
    """
    b, length, h, _ = arguments[0].shape
    tiles = length // tile
    arrays, context = arguments[:-1], arguments[-1]
    call: Any = pl.pallas_call(
        partial(kernel, plan),
        grid=(h, b, tiles) if plan.by_blocks else (tiles, h, b),
        in_specs=[*(_spec(plan, x) for x in arrays), _context_specs(plan, context)],
        out_specs=[_spec(plan, x) for x in outputs],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs],
        compiler_params=None if interpret else _compiler_params(arguments[0].shape[3]),
        interpret=interpret,
        name=f"fused_attention_{kernel.__name__}",
    )
    return tuple(call(*arguments))


def _spec(plan: Plan, x: Any) -> pl.BlockSpec:
    """Give a program its row and head of an array (b, l, h, k) or (b, h, l)."""
    return _part(plan, x.shape, ("row", None, "head", None) if x.ndim == 4 else ("row", "head", None))


def _context_specs(plan: Plan, context: Context) -> Any:
    """Give a program its row's masks and key, and its head's lists."""
    specs: dict[str, Any] = {}
    for name, part in context._asdict().items():
        axes = ("head", None) if name == "lists" else ("row", None)
        specs[name] = jax.tree.map(partial(_part_of, plan, axes), part)
    return Context(**specs)


def _part_of(plan: Plan, axes: tuple[str | None, ...], x: Array) -> pl.BlockSpec:
    return _part(plan, x.shape, axes)


def _part(plan: Plan, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> pl.BlockSpec:
    def index(*grid: Any) -> tuple[Any, ...]:
        head, row = grid[:2] if plan.by_blocks else grid[1:]
        return tuple({"row": row, "head": head, None: 0}[axis] for axis in axes)

    block = tuple(size if axis is None else None for size, axis in zip(shape, axes, strict=True))
    return pl.BlockSpec(block, index)


def _compiler_params(head_size: int) -> Any:
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=4 if head_size <= 64 else 8, num_stages=2)
