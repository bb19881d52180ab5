"""Parameters as a table: each is declared once; shapes, initial values, counts and names follow from it.

In: a nested dict of ``Param``. Out: trees of arrays with the same keys, or flat dicts whose names are the
keys joined by ``/`` (``layers/attention/query/kernel``), which are the names in a checkpoint.

Layers of one kind are stacked along a leading axis, whose logical axis is ``layers``. A parameter's key
comes from the seed, its name and its layer, so adding a layer or a parameter leaves the initial values of
all others alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from outlast.errors import OutlastError
from outlast.prng import derive_key

LAYERS_AXIS = "layers"


@dataclass(frozen=True, kw_only=True)
class Param:
    """One parameter (or one per layer, stacked).

    Attributes:
        shape: the stacked shape, where stacked.
        logical_axes: a name per axis; a mesh decides later which of them are divided.
        init: how it starts: truncated normal of standard deviation ``scale`` (cut at two of them), zeros or
            ones.
        hf: its name in Hugging Face's models; ``{layer}`` stands for the layer number of a stacked one.
        hf_transposed: PyTorch stores the kernel as (out, in), of a convolution (out, in, height, width). A
            kernel (in, parts, out) of several products in one is (parts * out, in) there.
        first_layer: the number of the layer that the first of a stacked one belongs to.
    """

    shape: tuple[int, ...]
    logical_axes: tuple[str, ...]
    init: Literal["normal", "zeros", "ones"]
    hf: str
    hf_transposed: bool = False
    scale: float = 0.02
    dtype: str = "float32"
    first_layer: int = 0

    @property
    def stacked(self) -> bool:
        return self.logical_axes[:1] == (LAYERS_AXIS,)


ParamTable: TypeAlias = dict[str, Any]
"""Nested dicts whose leaves are ``Param``."""
Params: TypeAlias = dict[str, Any]
"""Nested dicts whose leaves are arrays, with the keys of their table."""


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves by name, in the tree's order."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= {f"{key}/{name}": leaf for name, leaf in flatten(cast(dict[str, Any], value)).items()}
        else:
            flat[key] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of named leaves. The inverse of ``flatten``."""
    tree: dict[str, Any] = {}
    for name, leaf in flat.items():
        *folders, last = name.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[last] = leaf
    return tree


def init_params(table: ParamTable, seed: int) -> Params:
    """Return initial values, a pure function of the table and the seed. May run under jit."""
    return unflatten({name: _init(param, name, seed) for name, param in flatten(table).items()})


def abstract(table: ParamTable) -> Params:
    """Return the shapes and dtypes without the arrays: the template of a checkpoint."""
    return unflatten(
        {
            name: jax.ShapeDtypeStruct(param.shape, np.dtype(param.dtype))
            for name, param in flatten(table).items()
        }
    )


def count(table: ParamTable) -> int:
    """Return the number of scalars."""
    return sum(int(np.prod(param.shape)) for param in flatten(table).values())


def check_shapes(table: ParamTable, params: Params) -> None:
    """Check names, shapes and dtypes of parameters against their table.

    Raises:
        OutlastError: listing what is missing, unknown or of another shape or dtype.
    """
    expected, found = flatten(table), flatten(params)
    mistakes = [f"{name} is missing" for name in expected if name not in found]
    mistakes += [f"{name} is not known" for name in found if name not in expected]
    for name, param in expected.items():
        value = found.get(name)
        if value is not None and (value.shape != param.shape or str(value.dtype) != param.dtype):
            mistakes.append(f"{name} is {value.dtype}{value.shape}, expected {param.dtype}{param.shape}")
    if mistakes:
        raise OutlastError("The parameters do not fit the model: " + "; ".join(mistakes) + ".")


def with_split_axis(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array with one axis cut into two, where that gives the shape; else the array as it is.

    Checkpoints from before the products of ModernBERT had an axis of their own hold their kernels so.
    """
    merged = (
        (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]) for axis in range(len(shape) - 1)
    )
    return array.reshape(shape) if array.shape in merged else array


def _init(param: Param, name: str, seed: int) -> Array:
    dtype = np.dtype(param.dtype)
    if param.init == "zeros":
        return jnp.zeros(param.shape, dtype)
    if param.init == "ones":
        return jnp.ones(param.shape, dtype)
    number = derive_key(seed, "init", name)
    words = np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)
    key = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")

    def draw(key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype) * jnp.asarray(param.scale, dtype)

    if not param.stacked:
        return draw(key, param.shape)
    layer_keys = jax.vmap(lambda layer: jax.random.fold_in(key, layer))(jnp.arange(param.shape[0]))
    return jax.vmap(lambda layer_key: draw(layer_key, param.shape[1:]))(layer_keys)
