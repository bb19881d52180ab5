"""The first lines of a run: the device, the data and the caches, as they were found.

In: the parts of a run. Out: lines for a person.
"""

from typing import Any

import jax

from outlast.logs import format_count
from outlast.run.kind import Parts
from outlast.stream.config import StreamConfig
from outlast.stream.files import cache_folder
from outlast.training.arithmetic import environment
from outlast.training.mesh import FSDP


def describe_opening(parts: Parts[Any, Any]) -> list[str]:
    """Return what a run computes with and reads."""
    recipe, phase = parts.recipe, parts.phases.plan[0]
    found = environment()
    kind = found.get("processor") or found["device_kind"]
    examples = parts.phases.streams[0].num_examples
    batch, epoch = f"{phase.global_batch_size} examples", f"{examples} examples"
    if phase.sequence_length is not None:
        batch += f" of {phase.sequence_length} tokens"
        epoch += f", {format_count(examples * phase.sequence_length)} tokens"
    steps = max(examples // phase.global_batch_size, 1)
    lines = [
        f"device: {parts.layout.num_devices} of {jax.device_count()} {found['platform']} devices ({kind}), "
        f"computes in {recipe.training.compute_dtype}",
        *_mesh(parts),
        f"data: {' and '.join(_manifests(recipe.stream))}",
        f"batch: {batch}; an epoch: {epoch}, {format_count(steps)} steps",
    ]
    return lines + _caches(parts)


def _mesh(parts: Parts[Any, Any]) -> list[str]:
    """Say what lies where, if there are several devices."""
    layout = parts.layout
    if layout.num_devices == 1:
        return []
    rows = parts.phases.plan[0].global_batch_size // layout.num_devices
    axes = " x ".join(f"{axis} {size}" for axis, size in layout.shape.items())
    line = f"mesh: {axes}; {rows} example{'s' if rows > 1 else ''} of a batch on each device"
    if (divisor := layout.shape[FSDP]) == 1:
        return [f"{line}, and all parameters"]
    lines = [f"{line}, and 1/{divisor} of parameters, gradients and optimizer"]
    if parts.recipe.mesh.fsdp is None:
        lines[0] += ", which do not fit into one"
    if names := layout.undivided(parts.learner.objective.param_table):
        lines.append(f"mesh: whole on each device, for no axis divides by {divisor}: {', '.join(names)}")
    return lines


def _manifests(config: StreamConfig) -> list[str]:
    return [source.manifest for source in config.sources] or [str(config.manifest)]


def _caches(parts: Parts[Any, Any]) -> list[str]:
    config = parts.recipe.stream
    programs: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    lines = [f"compiled programs are kept in {programs}" if programs else "no compiled programs are kept"]
    if any("://" in url and not url.startswith("file://") for url in _manifests(config)):
        most = format_count(config.cache_bytes)
        lines.append(f"shards are kept in {cache_folder(config)}, {most}B at most")
    return lines
