"""The state of a run: what a checkpoint holds.

There is no random state and no place in the data in it: both are functions of the seed and the step. Flat
names (``params/layers/attention/query/kernel``, ``opt_state/1/mu/...``) are the names of the arrays in a
checkpoint.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import NamedSharding
from jaxtyping import Int
from numpy.typing import NDArray

from outlast.errors import CheckpointError
from outlast.models.params import Params, ParamTable, init_params, with_split_axis
from outlast.training.mesh import ONE_DEVICE, Layout

Tree = TypeVar("Tree")


class TrainState(NamedTuple):
    step: Int[Array, ""]
    """Completed updates."""
    params: Params
    model_state: dict[str, Any]
    """Running statistics; of encoders none."""
    opt_state: optax.OptState


def initial_state(
    table: ParamTable,
    optimizer: optax.GradientTransformation,
    seed: int,
    state_table: ParamTable | None = None,
    layout: Layout = ONE_DEVICE,
) -> TrainState:
    """Return the state of step 0, a pure function of the seed.

    Args:
        state_table: of the model's state; None: it has none.
        layout: where its arrays lie; each device makes what lies on it.
    """

    def make() -> TrainState:
        params = init_params(table, seed)
        return TrainState(
            jnp.zeros([], jnp.int32), params, init_params(state_table or {}, seed), optimizer.init(params)
        )

    return jax.jit(make, out_shardings=layout.shardings(jax.eval_shape(make), table))()


def snapshot(state: TrainState) -> dict[str, NDArray[Any]]:
    """Copy the state off the device, by flat name. The copies stay as they are when the state is donated."""
    return {name: np.array(value, copy=True) for name, value in _flat(state).items()}


def restore_state(arrays: Mapping[str, NDArray[Any]], template: TrainState) -> TrainState:
    """Return the state that a checkpoint's arrays hold; the template gives names, shapes and dtypes.

    Raises:
        CheckpointError: an array is missing, unknown, or of another shape or dtype; or the optimizer's own
            count of steps is not that of the state, which means that something was not restored.
    """
    state = restore_tree(arrays, template)
    for name, value in _flat(state).items():
        if name.endswith("/count") and int(value) != int(state.step):
            raise CheckpointError(f"The checkpoint's {name} is {int(value)}, its step {int(state.step)}.")
    return state


def restore_tree(arrays: Mapping[str, NDArray[Any]], template: Tree) -> Tree:
    """Put arrays in the place of a template's leaves, on its devices. Raises CheckpointError naming what does
    not fit.
    """
    expected = _flat(template)
    arrays = {
        name: with_split_axis(value, expected[name].shape) if name in expected else value
        for name, value in arrays.items()
    }
    mistakes = [f"{name} is missing" for name in expected if name not in arrays]
    mistakes += [f"{name} is not known" for name in arrays if name not in expected]
    for name, value in expected.items():
        found = arrays.get(name)
        if found is not None and (found.shape, found.dtype) != (value.shape, value.dtype):
            mistakes.append(f"{name} is {found.dtype}{found.shape}, expected {value.dtype}{value.shape}")
    if mistakes:
        raise CheckpointError("The checkpoint does not fit this run: " + "; ".join(mistakes[:5]) + ".")
    # Copies of our own, put on the device as they are: jnp.array compiles a program for each shape it copies.
    leaves = [
        jax.device_put(np.array(arrays[name], copy=True), _place_of(leaf)) for name, leaf in expected.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _place_of(leaf: Any) -> NamedSharding | None:
    """Return among which devices a leaf is divided; None: it lies on one."""
    sharding = getattr(leaf, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) else None


def _flat(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
