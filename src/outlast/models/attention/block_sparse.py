"""BigBird's block-sparse attention (Zaheer et al., 2020) and the dense formula it must equal.

In: queries, keys, values per head, the random key blocks of each query block. Out: the weighted values. The
sequence is cut into n blocks. The first and the last block of queries attend to every key, and every query to
the first and the last block of keys (global); a query of another block attends besides to the blocks before
and after its own and its own (window), and to r blocks drawn at random. A key in a block that stands in two
slots of a table counts twice, as in the original code.

As the original: softmax over all selected keys together, no dropout on the probabilities, and zeros for
queries that are padding. Otherwise than the original: keys that are padding get the lowest float32 instead of
-10,000 added, and any length is taken (padded inside to whole blocks).

Letters: b row, l query position, m key position, h head, k size of a head, n block, r random block.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from outlast.models.attention.full import AttentionMask, key_bias
from outlast.models.attention.heads import map_heads
from outlast.models.attention.kernels import AttentionKernel, alternatives, fits_triton, has_splash
from outlast.models.attention.random_blocks import GLOBAL_AND_WINDOW
from outlast.models.attention.splash import TILE, fits_blocks, splash_blocks


def block_sparse_attend(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    *,
    attention_mask: AttentionMask | None,
    random_blocks: Int[Array, "h n-2 r"],
    block_size: int,
    distinct: bool = False,
    kernel: AttentionKernel = "auto",
) -> Float[Array, "b l h k"]:
    """Return the attention of each block of queries to its own few blocks of keys.

    A head's keys are gathered into (n - 2, (5 + r) * block_size, k) and contracted block by block. Time and
    memory grow with l. The scores are computed again in the backward pass.

    Args:
        distinct: no block stands twice in a row of the table, so a TPU may use its kernel.
        kernel: what may compute it where the device has something better than the plain formula.
    """
    b, length, _, size = query.shape
    padding = -length % block_size
    if padding:
        query, key, value = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (query, key, value))
    query = query * jnp.asarray(size**-0.5, query.dtype)
    real = _real_keys(attention_mask, b, length, padding)

    def on_tpu() -> Array:
        return attend_on_tpu(query, key, value, real, random_blocks, block_size)

    def on_gpu() -> Array:
        from outlast.models.attention.fused import fused_blocks

        return fused_blocks(query, key, value, real=real, random_blocks=random_blocks, block_size=block_size)

    tiled = distinct and has_splash() and fits_blocks((length + padding) // block_size, block_size)
    instead = alternatives(
        kernel, tpu=on_tpu if tiled else None, cuda=on_gpu if fits_triton(size, block_size) else None
    )
    mixed = map_heads(
        _attend_head, (query, key, value), of_row=(real,), of_head=(_slots(random_blocks),), instead=instead
    )
    return _without_padding(mixed[:, :length], attention_mask)


def attend_on_tpu(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    real: Bool[Array, "b l"],
    random_blocks: Int[Array, "h n-2 r"],
    block_size: int,
    *,
    interpret: bool = False,
) -> Float[Array, "b l h k"]:
    """Return the same by the splash kernel: of whole blocks and scaled queries, no key block twice in a row.

    The two global blocks of queries see every tile of keys, the others a few. They are computed by the plain
    formula, so that the kernel's table is as narrow as that of the others.
    """
    middle = splash_blocks(
        query[:, block_size:-block_size],
        key,
        value,
        real=real,
        seen=_pair_counts(random_blocks)[:, 1:-1] > 0,
        # First and last; the window of a tile's queries, which is at most three tiles wide; the random ones.
        widest=GLOBAL_AND_WINDOW + random_blocks.shape[2] * (TILE // block_size),
        interpret=interpret,
    )
    edges = jnp.concatenate([query[:, :block_size], query[:, -block_size:]], axis=1)
    scores = jnp.einsum("blhk,bmhk->bhlm", edges, key, preferred_element_type=jnp.float32)
    probabilities = jax.nn.softmax(scores + key_bias(real)[:, None, None, :], axis=-1).astype(value.dtype)
    first, last = jnp.split(jnp.einsum("bhlm,bmhk->blhk", probabilities, value), 2, axis=1)
    return jnp.concatenate([first, middle, last], axis=1)


def simulated_sparse_attend(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    *,
    attention_mask: AttentionMask | None,
    random_blocks: Int[Array, "h n-2 r"],
    block_size: int,
) -> Float[Array, "b l h k"]:
    """Return the same by full attention with a mask: the reference. Time and memory grow with l squared.

    A key that counts c times has log(c) added to its score.
    """
    b, length, _, size = query.shape
    pairs = jnp.repeat(jnp.repeat(_pair_counts(random_blocks), block_size, axis=1), block_size, axis=2)
    real = _real_keys(attention_mask, b, length, 0)
    counts = jnp.where(real[:, None, None, :], pairs[None, :, :length, :length], 0)
    lowest = jnp.finfo(jnp.float32).min
    bias = jnp.where(counts > 0, jnp.log(jnp.maximum(counts, 1).astype(jnp.float32)), lowest)
    scale = jnp.asarray(size**-0.5, query.dtype)
    scores = jnp.einsum("blhk,bmhk->bhlm", query * scale, key, preferred_element_type=jnp.float32)
    probabilities = jax.nn.softmax(scores + bias, axis=-1).astype(value.dtype)
    return _without_padding(jnp.einsum("bhlm,bmhk->blhk", probabilities, value), attention_mask)


def _real_keys(mask: AttentionMask | None, b: int, length: int, padding: int) -> Bool[Array, "b m"]:
    real = jnp.ones((b, length), jnp.bool_) if mask is None else mask.astype(jnp.bool_)
    return jnp.pad(real, ((0, 0), (0, padding)))


def _without_padding(mixed: Float[Array, "b l h k"], mask: AttentionMask | None) -> Float[Array, "b l h k"]:
    return mixed if mask is None else mixed * mask.astype(mixed.dtype)[:, :, None, None]


def _slots(random_blocks: Int[Array, "h n-2 r"]) -> Int[Array, "h n-2 s"]:
    """Return the key blocks of each middle query block: first, window, last, random; -1 for an empty slot.

    The second block's window begins with the first block, which is there already; so with the last but one.
    """
    num_heads, num_middle, _ = random_blocks.shape
    middle = jnp.arange(1, num_middle + 1, dtype=jnp.int32)
    last = jnp.full_like(middle, num_middle + 1)
    before = jnp.where(middle == 1, -1, middle - 1)
    after = jnp.where(middle == num_middle, -1, middle + 1)
    fixed = jnp.stack([jnp.zeros_like(middle), before, middle, after, last], axis=1)
    shape = (num_heads, num_middle, GLOBAL_AND_WINDOW)
    return jnp.concatenate([jnp.broadcast_to(fixed[None], shape), random_blocks], axis=2)


def _pair_counts(random_blocks: Int[Array, "h n-2 r"]) -> Int[Array, "h n n"]:
    """Return how often each block of queries sees each block of keys."""
    slots = _slots(random_blocks)
    num_blocks = slots.shape[1] + 2
    middle = jnp.sum(jax.nn.one_hot(slots, num_blocks, dtype=jnp.int32), axis=2)
    edge = jnp.ones((slots.shape[0], 1, num_blocks), jnp.int32)
    return jnp.concatenate([edge, middle, edge], axis=1)


def _attend_head(
    query: Float[Array, "l k"],
    key: Float[Array, "l k"],
    value: Float[Array, "l k"],
    real: Bool[Array, " l"],
    slots: Int[Array, "n-2 s"],
) -> Float[Array, "l k"]:
    """One head of one row; the queries are scaled."""
    num_middle, num_slots = slots.shape
    block_size = query.shape[0] // (num_middle + 2)

    def selected(x: Array) -> Array:
        blocks = x.reshape(num_middle + 2, block_size, *x.shape[1:])
        return blocks[slots].reshape(num_middle, num_slots * block_size, *x.shape[1:])

    live = selected(real) & jnp.repeat(slots >= 0, block_size, axis=1)
    middle = query[block_size:-block_size].reshape(num_middle, block_size, -1)
    scores = jnp.einsum("nlk,nmk->nlm", middle, selected(key), preferred_element_type=jnp.float32)
    probabilities = jax.nn.softmax(scores + key_bias(live)[:, None, :], axis=-1).astype(value.dtype)
    mixed = jnp.einsum("nlm,nmk->nlk", probabilities, selected(value)).reshape(-1, value.shape[-1])

    edges = jnp.concatenate([query[:block_size], query[-block_size:]])
    scores = jnp.einsum("lk,mk->lm", edges, key, preferred_element_type=jnp.float32)
    probabilities = jax.nn.softmax(scores + key_bias(real[None]), axis=-1).astype(value.dtype)
    first, last = jnp.split(probabilities @ value, 2)
    return jnp.concatenate([first, mixed, last])
