"""Attention from every position to every position.

In: queries, keys, values per head and a bias over the key positions. Out: the weighted values. The plain
formula of Vaswani et al. (2017), eq. 1, with the softmax in float32.

Letters: b row, l query position, m key position, h head, k size of a head.
"""

from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Integer

from outlast.models.attention.heads import map_heads
from outlast.models.attention.kernels import Attend, AttentionKernel, alternatives, fits_triton, has_splash
from outlast.models.config import check_attention_dropout
from outlast.models.layers import dropout
from outlast.models.randomness import RowKeys

_HEAD_BY_HEAD_FROM = 256
"""Keys from which on a CPU computes attention head by head; below, the copies cost more than is won."""

_SPLASH_FROM = 1024
"""Tokens from which on a TPU keeps the scores out of memory by its kernel."""

AttentionMask: TypeAlias = Integer[Array, "b l"] | Bool[Array, "b l"]
"""1 or True for real tokens."""


def key_bias(attention_mask: Integer[Array, "*rows m"] | Bool[Array, "*rows m"]) -> Float[Array, "*rows m"]:
    """Return 0 where the mask is set and the lowest float32 elsewhere.

    Not minus infinity: a row without any real token then attends evenly to all of it instead of giving NaN.
    """
    lowest = jnp.finfo(jnp.float32).min
    return jnp.where(attention_mask.astype(jnp.bool_), jnp.float32(0), lowest)


def pair_bias(
    attention_mask: AttentionMask | None, segment_ids: Int[Array, "b l"] | None
) -> Float[Array, "b q m"] | None:
    """Return the bias that is added to the scores, None where there is none. Its axis q has size 1 where the
    bias is the same for all queries.

    Args:
        attention_mask: keys that may be attended to; None: all.
        segment_ids: a position attends to its own segment only; None: to all.
    """
    if segment_ids is None:
        return None if attention_mask is None else key_bias(attention_mask)[:, None, :]
    seen = segment_ids[:, :, None] == segment_ids[:, None, :]
    if attention_mask is not None:
        seen = seen & attention_mask.astype(jnp.bool_)[:, None, :]
    return key_bias(seen)


def attend(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    *,
    attention_mask: AttentionMask | None,
    segment_ids: Int[Array, "b l"] | None = None,
    dropout_keys: RowKeys | None = None,
    dropout_rate: float = 0.0,
    kernel: AttentionKernel = "auto",
) -> Float[Array, "b l h k"]:
    """Return softmax(query . key / sqrt(k)) . value over the keys that may be attended to.

    Args:
        attention_mask: keys that may be attended to; None: all.
        segment_ids: a position attends to its own segment only; None: to all.
        dropout_keys: for dropout on the probabilities; None for none.
        kernel: what may compute it where the device has something better than the plain formula.

    Raises:
        ConfigError: more probabilities in a row than dropout can number.
    """
    b, length, _, size = query.shape
    real = jnp.ones((b, length), jnp.bool_) if attention_mask is None else attention_mask.astype(jnp.bool_)
    drops = dropout_keys is not None and dropout_rate > 0
    if drops:
        check_attention_dropout(query.shape[2], length)
    scaled = query * jnp.asarray(size**-0.5, query.dtype)

    def on_tpu() -> Array:
        from outlast.models.attention.splash import splash_attend

        segments = jnp.zeros((b, length), jnp.int32) if segment_ids is None else segment_ids
        return splash_attend(scaled, key, value, segments=segments, real=real, reach=None)

    def on_gpu() -> Array:
        from outlast.models.attention.fused import fused_attend

        return fused_attend(
            scaled,
            key,
            value,
            real=real,
            segments=segment_ids,
            dropout_keys=dropout_keys,
            dropout_rate=dropout_rate,
        )

    splash = has_splash() and not drops and length >= _SPLASH_FROM
    return plain_attend(
        query,
        key,
        value,
        bias=pair_bias(attention_mask, segment_ids),
        dropout_keys=dropout_keys,
        dropout_rate=dropout_rate,
        instead=alternatives(
            kernel, tpu=on_tpu if splash else None, cuda=on_gpu if fits_triton(size) else None
        ),
    )


def plain_attend(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b m h k"],
    value: Float[Array, "b m h k"],
    *,
    bias: Float[Array, "b q m"] | None,
    dropout_keys: RowKeys | None = None,
    dropout_rate: float = 0.0,
    instead: Mapping[str, Attend] | None = None,
) -> Float[Array, "b l h k"]:
    """Return softmax(query . key / sqrt(k) + bias) . value, by the formula.

    Args:
        bias: added to the scores, as ``pair_bias`` makes it.
        dropout_keys: for dropout on the probabilities; None for none.
        instead: what computes the same on a platform.
    """
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)

    def all_heads() -> Float[Array, "b l h k"]:
        scores = jnp.einsum("blhk,bmhk->bhlm", query, key, preferred_element_type=jnp.float32)
        # Without the barrier the TPU compiler of jax 0.10.2 (libtpu 0.0.42) fuses the products of the
        # backward pass into one another until its stack overflows. A CPU or GPU writes the scores anyway.
        scores = jax.lax.optimization_barrier(scores)
        if bias is not None:
            scores = scores + bias[:, None]
        probabilities = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
        probabilities = dropout(probabilities, dropout_keys, dropout_rate)
        return jnp.einsum("bhlm,bmhk->blhk", probabilities, value)

    whole: dict[str, Attend] = {"default": all_heads}
    if key.shape[1] < _HEAD_BY_HEAD_FROM:
        if not instead:
            return all_heads()
        whole["cpu"] = all_heads
    b, length, num_heads, _ = query.shape
    first = jnp.arange(num_heads, dtype=jnp.uint32) * jnp.uint32(length * key.shape[1])
    return map_heads(
        partial(_attend_head, dropout_rate=dropout_rate),
        (query, key, value),
        of_row=(
            jnp.zeros((b, 1, 1), jnp.float32) if bias is None else bias,
            *(() if dropout_keys is None else (dropout_keys,)),
        ),
        of_head=(first,),
        instead={**whole, **(instead or {})},
    )


def _attend_head(
    query: Float[Array, "l k"],
    key: Float[Array, "m k"],
    value: Float[Array, "m k"],
    bias: Float[Array, "q m"],
    *key_and_first: Array,
    dropout_rate: float,
) -> Float[Array, "l k"]:
    """One head of one row; the queries are scaled. Last come the row's key, if any, and the number of the
    head's first probability.
    """
    scores = jnp.einsum("lk,mk->lm", query, key, preferred_element_type=jnp.float32) + bias
    probabilities = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    if len(key_and_first) == 2:
        row_key, first = key_and_first
        probabilities = dropout(probabilities[None], row_key[None], dropout_rate, first)[0]
    return jnp.einsum("lm,mk->lk", probabilities, value)
