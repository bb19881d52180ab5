"""The parts every encoder is made of: dense, layer norm, embedding, dropout, activations.

In: arrays and the small dicts of parameters that ``*_table`` declares. Matrix products run in the dtype of
their input; layer norm in float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from outlast.models.params import Params
from outlast.models.randomness import RowKeys, bernoulli

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"gelu": lambda x: jax.nn.gelu(x, approximate=False)}


def dense(x: Float[Array, "*rows i"], params: Params) -> Float[Array, "*rows o"]:
    """Return ``x @ kernel + bias``, in the dtype of x."""
    kernel, bias = params["kernel"].astype(x.dtype), params["bias"].astype(x.dtype)
    return x @ kernel + _last_axis(bias, x.ndim)


def layer_norm(x: Float[Array, "*rows d"], params: Params, epsilon: float) -> Float[Array, "*rows d"]:
    """Normalise the last axis; computed in float32, returned in the dtype of x."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    scale, bias = (_last_axis(params[name], x.ndim) for name in ("scale", "bias"))
    return (centred * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


def embedding(
    table: Float[Array, "v d"], ids: Int[Array, "b l"], frozen_id: int | None
) -> Float[Array, "b l d"]:
    """Look ids up. The row of ``frozen_id`` gets no gradient from here, as with PyTorch's ``padding_idx``."""
    rows = jnp.take(table, ids, axis=0)
    if frozen_id is None:
        return rows
    return jnp.where((ids == frozen_id)[..., None], jax.lax.stop_gradient(rows), rows)


def dropout(x: Float[Array, "b ..."], keys: RowKeys | None, rate: float) -> Float[Array, "b ..."]:
    """Zero elements with probability ``rate``, scale the others; by the key of each row. No keys: nothing."""
    if keys is None or rate == 0:
        return x
    keep = bernoulli(keys, x.shape[1:], 1 - rate)
    return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def _last_axis(vector: Array, ndim: int) -> Array:
    return vector.reshape((1,) * (ndim - 1) + vector.shape)
