"""The devices of a run as a grid, and what lies where on them. The one place that makes the mesh and says
which logical axis of an array is divided over which axis of it.

In: the ``[mesh]`` table, the devices that jax sees, the table of a model's parameters. Out: a ``Layout``:
where state and batches lie, and functions that each device runs for its own rows. The rows of a batch are
divided over all axes; parameters, gradients and the state of the optimizer over ``fsdp``; everything else
lies whole on every device. What a step computes of its rows runs under ``jax.shard_map``, attention, masks
and kernels included. So the compiler divides nothing by a guess of its own, and the collectives are those
that ``models/slices.py`` and this file ask for. On one device there are none, and the program is the one that
knows of no mesh.

An axis ``model`` would be a third one, left to the compiler (``axis_names`` of ``jax.shard_map``), with rules
for the logical axes that it divides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from outlast.errors import ConfigError
from outlast.models.params import Param, Params, ParamTable, flatten, unflatten
from outlast.models.slices import Sliced
from outlast.training.config import MeshConfig
from outlast.training.phase_plan import Phase

Tree = TypeVar("Tree")

DATA, FSDP = "data", "fsdp"
AXES = (DATA, FSDP)
"""The axes of the mesh, the outermost first. The rows of a batch are divided over all of them."""

_DIVIDED = (
    *("vocab", "positions", "embed", "heads", "intermediate", "head_embed"),
    *("channels_in", "channels", "classes"),
)
RULES: Mapping[str, str] = dict.fromkeys(_DIVIDED, FSDP)
"""Which logical axis of a parameter is divided over which axis of the mesh. Of a parameter one axis is, the
first that has a rule and that the mesh divides: slices along it lie in one piece. The axis of stacked layers
is not among them: each device computes every layer."""

_STATE_SHARE = 0.75
"""Of a device's memory. If parameters, gradients and the state of the optimizer need more, they are divided;
the rest is for activations."""

ROWS, WHOLE = PartitionSpec(AXES), PartitionSpec()


@dataclass(frozen=True)
class Layout:
    """How a run lies on its devices. ``mesh`` is None where there is one."""

    mesh: Mesh | None = None

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis of the mesh."""
        return dict.fromkeys(AXES, 1) if self.mesh is None else dict(self.mesh.shape)

    @property
    def num_devices(self) -> int:
        return 1 if self.mesh is None else self.mesh.size

    def spec_of(self, param: Param) -> PartitionSpec:
        """Return what divides a parameter; ``WHOLE`` where no rule fits."""
        for axis, (logical, size) in enumerate(zip(param.logical_axes, param.shape, strict=True)):
            mesh_axis = RULES.get(logical, "")
            divisor = self.shape.get(mesh_axis, 1)
            if divisor > 1 and size % divisor == 0:
                return PartitionSpec(*[None] * axis, mesh_axis)
        return WHOLE

    def param_specs(self, table: ParamTable) -> Any:
        """Return what divides each parameter, as a tree like the parameters."""
        return unflatten({name: self.spec_of(param) for name, param in flatten(table).items()})

    def undivided(self, table: ParamTable) -> list[str]:
        """Return the names of the parameters that no rule divides."""
        return [name for name, param in flatten(table).items() if self.spec_of(param) == WHOLE]

    def shardings(self, state: Tree, table: ParamTable) -> Tree | None:
        """Return where each array of a state lies, as a tree like it; on one device None.

        What the optimizer keeps of a parameter lies as the parameter does. Where that has another shape (rows
        and columns of adafactor), the last of its axes that can be divided is.

        Args:
            state: a ``TrainState`` of arrays or of their shapes.
            table: of its parameters.
        """
        mesh, params = self.mesh, flatten(table)
        if mesh is None:
            return None

        def place(path: Any, leaf: Any) -> NamedSharding:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            owners = [known for known in params if name.endswith(f"/{known}")]
            if not owners or not name.startswith(("params/", "opt_state/")):
                return NamedSharding(mesh, WHOLE)
            param = params[max(owners, key=len)]
            spec = self.spec_of(param) if leaf.shape == param.shape else self._spec_of_shape(leaf.shape)
            return NamedSharding(mesh, spec)

        return jax.tree_util.tree_map_with_path(place, state)

    def _spec_of_shape(self, shape: tuple[int, ...]) -> PartitionSpec:
        size = self.shape[FSDP]
        axes = [axis for axis, length in enumerate(shape) if size > 1 and length % size == 0]
        return PartitionSpec(*[None] * axes[-1], FSDP) if axes else WHOLE

    def template(self, state: Tree, table: ParamTable) -> Tree:
        """Return the shapes of a state with where its arrays belong: what a checkpoint is restored into."""
        if self.mesh is None:
            return state
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state,
            self.shardings(state, table),
        )

    def kept(self, state: Tree, table: ParamTable) -> Tree:
        """Return the same state; in a compiled function, so that its arrays leave it where they belong."""
        if self.mesh is None:
            return state
        return jax.lax.with_sharding_constraint(state, self.shardings(state, table))

    def placed(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rows that this process has read of a batch as arrays of the whole batch, on the devices.

        The transfer runs beside what the devices are computing.
        """
        if self.mesh is None:
            return dict(batch)
        rows = NamedSharding(self.mesh, ROWS)

        def place(own: Any) -> Array:
            shape = (own.shape[0] * jax.process_count(), *own.shape[1:])
            return jax.make_array_from_process_local_data(rows, np.asarray(own), shape)

        return {name: place(own) for name, own in batch.items()}

    def on_each_device(self, function: Callable[..., Any], inside: Any, outside: Any) -> Callable[..., Any]:
        """Return a function that each device runs for its own part of the arguments.

        Args:
            inside, outside: what divides the arguments, and the results.
        """
        if self.mesh is None:
            return function
        # Unchecked: the kernels of Pallas do not say over which axes their results differ.
        return jax.shard_map(function, mesh=self.mesh, in_specs=inside, out_specs=outside, check_vma=False)

    def slices(self, params: Params, table: ParamTable) -> Params:
        """Return what lies of the parameters on one device, slices as ``Sliced``; in ``on_each_device``."""
        specs, declared = flatten(self.param_specs(table)), flatten(table)

        def mark(name: str, array: Array) -> Any:
            spec, param = specs[name], declared[name]
            if spec == WHOLE:
                return array
            axis = len(spec) - 1 - len(param.shape)
            return Sliced(array=array, axis=axis, mesh_axis=spec[-1], of_layers=param.stacked)

        return unflatten({name: mark(name, array) for name, array in flatten(params).items()})

    def total(self, sums: Tree, *, but: str | None = None) -> Tree:
        """Return the sums over the devices of all axes of the mesh but one. Inside ``on_each_device``."""
        axes = tuple(axis for axis, size in self.shape.items() if size > 1 and axis != but)
        return jax.lax.psum(sums, axes) if axes else sums

    def total_gradient(self, gradient: Params) -> Params:
        """Return the gradient by parameters as ``slices`` made them, summed over all devices."""

        def add(found: Any) -> Array:
            if isinstance(found, Sliced):  # it was added up over its own axis where it was gathered
                return self.total(found.array, but=found.mesh_axis)
            return self.total(found)

        return jax.tree.map(add, gradient, is_leaf=lambda leaf: isinstance(leaf, Sliced))


ONE_DEVICE = Layout()


def make_layout(
    config: MeshConfig, *, plan: Sequence[Phase], num_microbatches: int, state_bytes: int
) -> Layout:
    """Return how a run lies on the devices that jax sees.

    Args:
        plan: the phases, whose batches have to divide.
        state_bytes: of parameters, gradients and the state of the optimizer together.

    Raises:
        ConfigError: a mesh that the devices do not fill, or a batch that it does not divide.
    """
    devices = jax.devices()
    memory: int | None = (devices[0].memory_stats() or {}).get("bytes_limit")
    fsdp = config.fsdp or fsdp_by_default(state_bytes, memory, len(devices) // (config.data or 1))
    data = config.data or max(len(devices) // fsdp, 1)
    _check_devices(config, data * fsdp, len(devices), fsdp)
    for phase in plan:
        _check_batch(phase.global_batch_size, data * fsdp, num_microbatches)
    return lay_out(devices[: data * fsdp], fsdp)


def fsdp_by_default(state_bytes: int, memory_bytes: int | None, num_devices: int) -> int:
    """Return how many devices share parameters where no recipe says it: one, or all where one has too little
    memory. What a CPU has is not known.
    """
    fits = memory_bytes is None or state_bytes <= memory_bytes * _STATE_SHARE
    return 1 if fits else max(num_devices, 1)


def lay_out(devices: Sequence[Any], fsdp: int) -> Layout:
    """Return the layout on devices, or on a description of them, of which ``fsdp`` share parameters."""
    if len(devices) == 1:
        return ONE_DEVICE
    shape, types = (len(devices) // fsdp, fsdp), (AxisType.Auto, AxisType.Auto)
    return Layout(jax.make_mesh(shape, AXES, axis_types=types, devices=devices))


def _check_devices(config: MeshConfig, wanted: int, seen: int, fsdp: int) -> None:
    """Refuse a mesh that is larger than the machine, or leaves a part of it without work."""
    where = f"mesh.data = {_shown(config.data)}, mesh.fsdp = {_shown(config.fsdp)}"
    if wanted > seen:
        raise ConfigError(
            f"The mesh has {wanted} devices, jax sees {seen} here.",
            where=where,
            expected=f"a product of at most {seen}",
            remedy="leave both out to use what is there"
            + (
                f'; a CPU shows {wanted} with XLA_FLAGS="--xla_force_host_platform_device_count={wanted}"'
                if jax.default_backend() == "cpu"
                else ""
            ),
        )
    if wanted < seen and not config.allow_idle:
        rest = f"set mesh.fsdp to a divisor of {seen}" if seen % fsdp else "leave mesh.data out"
        raise ConfigError(
            f"{seen - wanted} of {seen} devices would have nothing to do.",
            where=where,
            expected=f"a product of {seen}",
            remedy=f"{rest}; or, to train on {wanted} alone, set mesh.allow_idle to true",
        )


def _shown(size: int | None) -> str:
    return "unset" if size is None else str(size)


def _check_batch(batch: int, num_devices: int, num_microbatches: int) -> None:
    """Refuse a batch of which the devices would not get equally many rows for each microbatch."""
    parts = num_devices * num_microbatches
    if batch % parts == 0:
        return
    below = batch // parts * parts
    nearest = f"{below} or {below + parts}" if below else f"{parts}"
    each = f" in {num_microbatches} microbatches each" if num_microbatches > 1 else ""
    fewer = max(n for n in range(1, num_devices) if batch % (n * num_microbatches) == 0)
    raise ConfigError(
        f"The batch of {batch} examples cannot be divided among {num_devices} devices{each}.",
        where="global_batch_size",
        expected=f"a multiple of {parts}: {nearest}",
        remedy=f"set it to {nearest}, which makes it another run: more or fewer examples a step, in another "
        f"order; or go on with this one on {fewer} of the devices: mesh.data = {fewer}, mesh.fsdp = 1, "
        "mesh.allow_idle = true",
    )
