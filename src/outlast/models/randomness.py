"""Random bits on the device, one stream per row, wherever in a batch or on whichever device the row is.

In: seed, purpose, step and the global numbers of the rows. Out: one key per row, and from a key as many
bits as a row needs. Masks and dropout draw from these only, so the mask of a row is the same whether the
batch is cut into microbatches, spread over devices or reordered.

Keys are derived with threefry (few, so strength costs nothing). Bits come from a counter hash, because
dropout needs millions a step: two rounds of a 32-bit finaliser with a key word before each, about 12
integer operations a word against about 100 for threefry, and elementwise, so XLA fuses it into the consumer
and rematerialises it for nothing.
"""

import hashlib
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Key, UInt32

from outlast.models.config import MOST_NUMBERED
from outlast.prng import derive_key

RowKeys: TypeAlias = Key[Array, "b"]


def row_keys(seed: int, purpose: str, step: int | Array, rows: Int[Array, "b"]) -> RowKeys:
    """Return a key per row.

    Args:
        seed: the run's seed; a Python int, part of the compiled program.
        purpose: what the keys are for: ``train``, or ``evaluate`` with step 0 and the example's index as row.
        step: number of completed updates; may be traced.
        rows: global row numbers of the batch (not those within the process or the microbatch), below 2**32.
    """
    number = derive_key(seed, "device", purpose)
    words = np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
    key = jax.random.fold_in(jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32"), step)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)


def fold(keys: RowKeys, purpose: str | int | Array) -> RowKeys:
    """Return keys for one purpose (a name, or a number such as the layer's), independent of all others."""
    if isinstance(purpose, str):
        purpose = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "little")
        purpose = jnp.asarray(purpose, jnp.uint32)
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, purpose)


def random_bits(
    keys: RowKeys, shape: tuple[int, ...], first: UInt32[Array, ""] | None = None
) -> UInt32[Array, "b ..."]:
    """Return 32 uniform bits per element of each row, uint32 of shape (b, *shape).

    Args:
        first: number of the first element, where a part of a larger array is drawn (its flat index there).

    Raises:
        ValueError: a row of 2**32 elements or more, where the counter would repeat.
    """
    if math.prod(shape) > MOST_NUMBERED:
        raise ValueError(f"{shape} has 2**32 elements or more")
    counter = jnp.zeros((), jnp.uint32)
    for axis in range(len(shape)):
        place = jax.lax.broadcasted_iota(jnp.uint32, (1, *shape), axis + 1)
        counter = counter * jnp.uint32(shape[axis]) + place if axis else place
    counter = counter if first is None else counter + first
    words = jax.random.key_data(keys)
    one, other = (words[:, i].reshape((-1,) + (1,) * len(shape)) for i in range(2))
    return hashed(counter, one, other)


def bernoulli(
    keys: RowKeys, shape: tuple[int, ...], probability: float, first: UInt32[Array, ""] | None = None
) -> Bool[Array, "b ..."]:
    """Return True with the given probability, bool of shape (b, *shape). Exact to 2**-32.

    ``first`` as for ``random_bits``.
    """
    if probability >= 1:
        return jnp.ones((keys.shape[0], *shape), jnp.bool_)
    return random_bits(keys, shape, first) < threshold(probability)


def threshold(probability: float) -> np.uint32:
    """Return the number that uniform bits are below with a probability under 1."""
    return np.uint32(round(probability * 2**32))


def hashed(
    counter: UInt32[Array, "..."], one: UInt32[Array, "..."], other: UInt32[Array, "..."]
) -> UInt32[Array, "..."]:
    """Return the bits of the elements that a counter numbers, by the two words of a key. Elementwise."""
    return _finalise(_finalise(counter ^ one) ^ other)


def _finalise(x: Array) -> Array:
    """A bijection of uint32. Source: C. Wellons, "Prospecting for Hash Functions" (2018), lowbias32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))
