"""The parts every encoder is made of: dense, layer norm, embedding, dropout, activations.

In: arrays and the small dicts of parameters that ``*_table`` declares. Matrix products run in the dtype of
their input; layer norm in float32.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, UInt32

from outlast.models.params import Params
from outlast.models.randomness import RowKeys, bernoulli
from outlast.models.remat import kept


@jax.custom_vjp
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return x * P(N <= x) for a standard normal N (Hendrycks and Gimpel, 2016), by the error function.

    Computed in float32, returned in the dtype of x; the backward pass keeps x alone.
    ``jax.nn.gelu(approximate=False)`` is the same function by ``erfc``, which is more exact far below zero,
    where both are next to nothing, and takes XLA an exponential and a division more.
    """
    wide = x.astype(jnp.float32)
    return (wide * _normal_cdf(wide)).astype(x.dtype)


def _gelu_forward(x: Array) -> tuple[Array, Array]:
    return gelu(x), x


def _gelu_backward(x: Array, gradient: Array) -> tuple[Array]:
    wide = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * jnp.square(wide)) * jnp.float32(1 / math.sqrt(2 * math.pi))
    slope = _normal_cdf(wide) + wide * density
    return ((gradient.astype(jnp.float32) * slope).astype(x.dtype),)


def _normal_cdf(x: Array) -> Array:
    return 0.5 + 0.5 * jax.lax.erf(x * jnp.float32(math.sqrt(0.5)))


gelu.defvjp(_gelu_forward, _gelu_backward)

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
}


def dense(x: Float[Array, "*rows i"], params: Params) -> Float[Array, "..."]:
    """Return ``x @ kernel + bias``, in the dtype of x; without a bias where the parameters have none.

    A kernel (i, o) gives (*rows, o); one of several products, (i, parts, o), gives (*rows, parts, o).
    """
    product = kept(jnp.tensordot(x, params["kernel"].astype(x.dtype), 1))
    return product + _last_axis(params["bias"].astype(x.dtype), x.ndim) if "bias" in params else product


def layer_norm(x: Float[Array, "*rows d"], params: Params, epsilon: float) -> Float[Array, "*rows d"]:
    """Normalise the last axis, scale, shift where there is a bias; in float32, returned in the dtype of x."""
    # As a matrix: sums over an axis of (1, l, d), here and in the backward pass, run on one core of a CPU.
    wide = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + epsilon) * params["scale"][None]
    if "bias" in params:
        normed = normed + params["bias"][None]
    return normed.astype(x.dtype).reshape(x.shape)


def embedding(
    table: Float[Array, "v d"], ids: Int[Array, "b l"], frozen_id: int | None
) -> Float[Array, "b l d"]:
    """Look ids up. The row of ``frozen_id`` gets no gradient from here, as with PyTorch's ``padding_idx``."""
    rows = jnp.take(table, ids, axis=0)
    if frozen_id is None:
        return rows
    return jnp.where((ids == frozen_id)[..., None], jax.lax.stop_gradient(rows), rows)


def dropout(
    x: Float[Array, "b ..."], keys: RowKeys | None, rate: float, first: UInt32[Array, ""] | None = None
) -> Float[Array, "b ..."]:
    """Zero elements with probability ``rate``, scale the others; by the key of each row. No keys: nothing.

    ``first`` is the number of the first element, where x is a part of what is dropped out (``random_bits``).
    """
    if keys is None or rate == 0:
        return x
    keep = bernoulli(keys, x.shape[1:], 1 - rate, first)
    return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))


def _last_axis(vector: Array, ndim: int) -> Array:
    return vector.reshape((1,) * (ndim - 1) + vector.shape)
