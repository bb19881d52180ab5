"""Attention written for one head of one row, run for all of them as the device likes it.

In: arrays of shape (b, l, h, ...) or (b, l). Out: (b, l, h, k). What the function computes does not depend on
how its calls are grouped.
"""

import math
import os
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

HeadFunction = Callable[..., Array]
"""From (l, k) arrays of queries, keys and values, and what belongs to the row and the head, to (l, k)."""


def map_heads(
    function: HeadFunction,
    projected: tuple[Float[Array, "b l h k"], ...],
    *,
    of_row: tuple[Array, ...] = (),
    of_head: tuple[Array, ...] = (),
    instead: Mapping[str, Callable[[], Float[Array, "b l h k"]]] | None = None,
) -> Float[Array, "b l h k"]:
    """Apply a function to each head of each row. What it computes inside is computed again in the backward
    pass.

    Args:
        projected: queries, keys and values.
        of_row: arrays (b, ...), such as masks: the function gets its row's part.
        of_head: arrays (h, ...): the function gets its head's part.
        instead: the same for all heads and rows by other means, by platform (``cpu``, ``cuda``, ``tpu``);
            ``default``: on those that are not named. Where nothing is given, a CPU takes the heads in groups,
            and other devices all at once.
    """
    b, length, num_heads, size = projected[0].shape
    by_head = [jnp.moveaxis(x, 2, 1).reshape(b * num_heads, length, size) for x in projected]
    rows = [jnp.repeat(x, num_heads, axis=0) for x in of_row]
    heads = [jnp.tile(x, (b,) + (1,) * (x.ndim - 1)) for x in of_head]

    def at_once(*arrays: Array) -> Array:
        return jax.vmap(function)(*arrays)

    def by_other_means(whole: Callable[[], Array]) -> Callable[..., Array]:
        return lambda *arrays: jnp.moveaxis(whole(), 2, 1).reshape(arrays[0].shape)

    def in_groups(*arrays: Array) -> Array:
        # XLA runs a batch of small products on one core, and independent operations side by side. So as many
        # heads as there are cores are written out beside each other, and what they need stays in the cache.
        beside = math.gcd(b * num_heads, len(os.sched_getaffinity(0)))

        def group(parts: tuple[Array, ...]) -> Array:
            return jnp.stack([function(*(part[i] for part in parts)) for i in range(beside)])

        grouped = tuple(array.reshape(-1, beside, *array.shape[1:]) for array in arrays)
        mixed = jax.lax.map(jax.checkpoint(group, prevent_cse=False), grouped)
        return mixed.reshape(arrays[0].shape)

    branches: dict[str, Callable[..., Array]] = {"default": at_once}
    branches |= {platform: by_other_means(whole) for platform, whole in (instead or {}).items()}
    # What one branch keeps for the backward pass, the others would set aside in vain: so none keeps anything.
    branches = {platform: jax.checkpoint(branch, prevent_cse=False) for platform, branch in branches.items()}
    mixed = jax.lax.platform_dependent(*by_head, *rows, *heads, **{"cpu": in_groups, **branches})
    return jnp.moveaxis(mixed.reshape(b, num_heads, length, size), 1, 2)
