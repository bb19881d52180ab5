"""What a model must know of the devices it runs on: parameters that lie in slices on several of them, and
means over the rows of all.

In: parameters inside a function that each device runs for its own rows (``jax.shard_map``), some of them as
``Sliced``. Out: the same parameters, whole, for as long as they are used. The gradient of a slice is the sum
of what every device of its mesh axis has found for it. On one device all of this is the identity.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from outlast.models.params import Params

GATHERED = "gathered"
"""The name of a parameter that was made whole, before the policies of ``remat``."""


@partial(
    jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["axis", "mesh_axis", "of_layers"]
)
@dataclass(frozen=True, kw_only=True)
class Sliced:
    """The slice of a parameter that lies on this device.

    Attributes:
        axis: the one that is divided, counted from the last: -1, -2. So it is right for one layer of a stack.
        mesh_axis: the axis of the mesh among whose devices it is divided.
        of_layers: a stack of layers. One at a time is made whole, where it is computed.
    """

    array: Array
    axis: int
    mesh_axis: str
    of_layers: bool


def in_slices(params: Params) -> bool:
    """Return whether any parameter lies in slices."""
    return any(isinstance(leaf, Sliced) for leaf in jax.tree.leaves(params, is_leaf=_is_sliced))


def whole_layer(params: Params, compute_dtype: DTypeLike) -> Params:
    """Return the parameters of one layer, whole. For the body of the loop over the layers.

    Args:
        compute_dtype: of the products. Kernels travel in it, for nothing but products is made of them.
    """

    def gather(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, Sliced):
            return leaf
        is_kernel = path[-1] == jax.tree_util.DictKey("kernel")
        return _gather(leaf, compute_dtype if is_kernel else leaf.array.dtype)

    return jax.tree_util.tree_map_with_path(gather, params, is_leaf=_is_sliced)


def whole_but_layers(params: Params) -> Params:
    """Return parameters of which only stacks of layers are left in slices."""

    def gather(leaf: Any) -> Any:
        return _gather(leaf, leaf.array.dtype) if isinstance(leaf, Sliced) and not leaf.of_layers else leaf

    return jax.tree.map(gather, params, is_leaf=_is_sliced)


def mean_over_devices(x: Array) -> Array:
    """Return the mean of what each device has found for its own rows, of which all have equally many."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.pmean(x, axes) if axes else x


def num_row_devices() -> int:
    """Return among how many devices the rows of a batch are divided, where this is traced."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[name] for name in mesh.manual_axes)


def _gather(sliced: Sliced, dtype: DTypeLike) -> Array:
    gathered = _all_gather(sliced.array, sliced.axis, sliced.mesh_axis, (sliced.array.dtype, dtype))
    return checkpoint_name(gathered, GATHERED)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _all_gather(x: Array, axis: int, mesh_axis: str, dtypes: tuple[Any, Any]) -> Array:
    """Return the whole in the second dtype. Its gradient is added up in the first one, that of the slice."""
    return jax.lax.all_gather(x.astype(dtypes[1]), mesh_axis, axis=x.ndim + axis, tiled=True)


def _forward(x: Array, axis: int, mesh_axis: str, dtypes: tuple[Any, Any]) -> tuple[Array, None]:
    return _all_gather(x, axis, mesh_axis, dtypes), None


def _backward(axis: int, mesh_axis: str, dtypes: tuple[Any, Any], _: None, gradient: Array) -> tuple[Array]:
    wide, axis = gradient.astype(dtypes[0]), gradient.ndim + axis
    return (jax.lax.psum_scatter(wide, mesh_axis, scatter_dimension=axis, tiled=True),)


_all_gather.defvjp(_forward, _backward)


def _is_sliced(leaf: Any) -> bool:
    return isinstance(leaf, Sliced)
