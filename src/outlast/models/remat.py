"""What the backward pass keeps of a layer, and what it computes again.

In: a layer's function and the recipe's policy. Out: the same function, wrapped. What is worth keeping is
named where it is made, by ``kept``: the products with parameters, and what attention adds up. Everything else
is cheap to compute again, or large. A policy changes time, memory and rounding, nothing else.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from outlast.models.slices import GATHERED

Remat = Literal["none", "selective", "layer"]
"""What the backward pass computes again: nothing; all but what is named ``kept``; whole layers. Beside that,
attention computes its scores again where ``heads.map_heads`` or a choice between two attentions says so."""

_KEPT = "kept"
all_but_gathered = jax.checkpoint_policies.save_anything_except_these_names(GATHERED)
"""The policy that keeps everything but the parameters that were made whole."""


def kept(x: Array) -> Array:
    """Mark an array that the selective policy keeps. Not for an array of length x length."""
    return checkpoint_name(x, _KEPT)


def rematerialised(layer: Callable[..., Any], remat: Remat, *, gathers: bool = False) -> Callable[..., Any]:
    """Return a layer's function, wrapped as the policy says. For the body of a scan.

    Args:
        gathers: the layer makes parameters whole, which no policy keeps: all layers of them together are what
            no device has room for.
    """
    if remat == "none":
        return jax.checkpoint(layer, prevent_cse=False, policy=all_but_gathered) if gathers else layer
    policy = jax.checkpoint_policies.save_only_these_names(_KEPT) if remat == "selective" else None
    return jax.checkpoint(layer, prevent_cse=False, policy=policy)
