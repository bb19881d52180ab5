"""Sliding-window attention: every position attends to those at most ``reach`` away on either side.

In: queries, keys, values per head. Out: the weighted values. Computed by blocks of ``reach`` queries against
the three blocks of keys around them, so that time and memory grow with the length. Beltagy et al. (2020),
section 3.1; ModernBERT (Warner et al., 2024) uses a reach of 64.

Letters: b row, l position, h head, k size of a head, n block.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from outlast.models.attention.full import AttentionMask, key_bias
from outlast.models.attention.heads import map_heads
from outlast.models.attention.kernels import AttentionKernel, alternatives, fits_triton, has_splash


def local_attend(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    *,
    attention_mask: AttentionMask | None,
    segment_ids: Int[Array, "b l"] | None,
    reach: int,
    kernel: AttentionKernel = "auto",
) -> Float[Array, "b l h k"]:
    """Return softmax(query . key / sqrt(k)) . value over the keys of the window.

    Args:
        attention_mask: keys that may be attended to; None: all.
        segment_ids: a position attends to its own segment only; None: to all.
        reach: positions on either side.
        kernel: what may compute it where the device has something better than the plain formula.
    """
    b, length, _, size = query.shape
    segments = jnp.zeros((b, length), jnp.int32) if segment_ids is None else segment_ids
    real = jnp.ones((b, length), jnp.bool_) if attention_mask is None else attention_mask.astype(jnp.bool_)
    padding = -length % reach
    if padding:
        query, key, value = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (query, key, value))
        segments, real = (jnp.pad(x, ((0, 0), (0, padding))) for x in (segments, real))
    query = query * jnp.asarray(size**-0.5, query.dtype)

    def attend_head(query: Array, key: Array, value: Array, segments: Array, real: Array) -> Array:
        return _attend_head(query, key, value, segments, real, reach)

    def on_tpu() -> Array:
        from outlast.models.attention.splash import splash_attend

        return splash_attend(query, key, value, segments=segments, real=real, reach=reach)

    def on_gpu() -> Array:
        from outlast.models.attention.fused import fused_attend

        apart = None if segment_ids is None else segments
        return fused_attend(query, key, value, segments=apart, real=real, reach=reach)

    instead = alternatives(
        kernel, tpu=on_tpu if has_splash() else None, cuda=on_gpu if fits_triton(size) else None
    )
    mixed = map_heads(attend_head, (query, key, value), of_row=(segments, real), instead=instead)
    return mixed[:, :length]


def _attend_head(
    query: Float[Array, "l k"],
    key: Float[Array, "l k"],
    value: Float[Array, "l k"],
    segments: Int[Array, " l"],
    real: Bool[Array, " l"],
    reach: int,
) -> Float[Array, "l k"]:
    """One head of one row; the queries are scaled, the length is a multiple of the reach."""
    num_blocks = query.shape[0] // reach

    def around(x: Array) -> Array:
        """Return each block with its neighbours, (n, 3 * reach, ...); zeros beyond the ends."""
        blocks = x.reshape(num_blocks, reach, *x.shape[1:])
        blocks = jnp.pad(blocks, ((1, 1),) + ((0, 0),) * (blocks.ndim - 1))
        return jnp.concatenate([blocks[:-2], blocks[1:-1], blocks[2:]], axis=1)

    same = segments.reshape(num_blocks, reach)[:, :, None] == around(segments)[:, None, :]
    distance = np.arange(reach)[:, None] + reach - np.arange(3 * reach)[None, :]
    seen = same & around(real)[:, None, :] & jnp.asarray(abs(distance) <= reach)[None]
    queries = query.reshape(num_blocks, reach, -1)
    scores = jnp.einsum("nlk,nmk->nlm", queries, around(key), preferred_element_type=jnp.float32)
    probabilities = jax.nn.softmax(scores + key_bias(seen), axis=-1).astype(value.dtype)
    return jnp.einsum("nlm,nmk->nlk", probabilities, around(value)).reshape(query.shape)
