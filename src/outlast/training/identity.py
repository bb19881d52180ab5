"""What makes a run the same run, and what makes it bit-identical.

In: two descriptions, of the checkpoint and of this attempt. Out: silence, or an error that lists every
difference with both values. The identity (seed, data, order, model, objective, optimizer) must agree, or the
result would be neither run's. The environment (devices, versions) may differ; it decides which of the two
promises a resume can keep.
"""

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jaxlib.version
import numpy as np

from outlast.config import build, to_dict
from outlast.errors import ConfigError
from outlast.training.config import OptimizerConfig, TrainingConfig
from outlast.training.optimizer import make_schedule

Identity = dict[str, Any]


def check_identity(checkpoint: Identity, run: Identity, *, step: int, run_dir: str) -> None:
    """Check that a run may go on from a checkpoint.

    The number of steps may change as long as every learning rate up to now stays the same: the rates that
        were used are compared with those the new number would have given. A run in phases gets longer by
        further phases.

    A key of the optimizer that the checkpoint does not know had its default then.

    Raises:
        ConfigError: listing each field that differs, with both values and the way out.
    """
    checkpoint = {**checkpoint, "optimizer": {**to_dict(OptimizerConfig()), **checkpoint["optimizer"]}}
    differences = [
        f"{name}: the checkpoint has {old!r}, the recipe {new!r}"
        for name, old, new in _differences(checkpoint, run)
        if name != "total_steps" and not _is_added_phase(name, checkpoint)
    ]
    if (
        not differences
        and checkpoint["total_steps"] != run["total_steps"]
        and not _same_rates(checkpoint, run, step)
    ):
        differences = [
            f"total_steps: the checkpoint has {checkpoint['total_steps']}, the recipe {run['total_steps']}; "
            f"with it the {run['optimizer']['schedule']!r} schedule has other rates up to step {step}"
        ]
    if not differences and run["total_steps"] < step:
        differences = [
            f"total_steps: the checkpoint is of step {step}, the recipe ends at {run['total_steps']}"
        ]
    if differences:
        raise ConfigError(
            f"The run's checkpoint of step {step} was made with other settings:\n"
            + "\n".join(f"  - {difference}" for difference in differences),
            where=run_dir,
            remedy="set them back to go on with this run, or start another one: "
            f"--run-dir NEW --initialize-from {run_dir}",
        )


def environment() -> dict[str, Any]:
    """Return what the bits of a result depend on besides the identity."""
    device = jax.devices()[0]
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "platform": device.platform,
        "device_kind": device.device_kind,
        "num_devices": 1,
        "processor": _processor() if device.platform == "cpu" else "",
        "num_cores": len(os.sched_getaffinity(0)) if device.platform == "cpu" else 0,
    }


def arithmetic(training: TrainingConfig) -> dict[str, Any]:
    """Return the environment, and the operation fields that change rounding."""
    fields: dict[str, Any] = {
        **environment(),
        "num_microbatches": training.num_microbatches,
        "compute_dtype": training.compute_dtype,
        "remat": training.remat,
    }
    if fields["platform"] != "cpu":  # a CPU has the plain formula only
        fields["attention_kernel"] = training.attention_kernel
    return fields


def describe_promise(checkpoint: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say in one line which promise this resume keeps.

    Args:
        checkpoint, now: what ``arithmetic`` gave then and gives now.
    """
    changed = [f"{name} {old} -> {new}" for name, old, new in _differences(checkpoint, now)]
    if not changed:
        return "same environment: the result is bit-identical to that of an unbroken run"
    return "the same examples and masks in the same order; losses equal within rounding, since " + ", ".join(
        changed
    )


def _differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = list(dict.fromkeys([*old, *new]))
        pairs = [
            _differences(old.get(name), new.get(name), f"{prefix}.{name}" if prefix else name)
            for name in names
        ]
        return [difference for found in pairs for difference in found]
    return [] if old == new else [(prefix, old, new)]


def _is_added_phase(name: str, checkpoint: Identity) -> bool:
    """Whether a field is that of a phase behind all those that the checkpoint knows."""
    known = checkpoint.get("phases")
    table, _, rest = name.partition(".")
    return bool(known) and table == "phases" and rest != "" and rest.partition(".")[0] not in known


def _same_rates(checkpoint: Identity, run: Identity, step: int) -> bool:
    """Whether both numbers of steps give the same learning rates to all completed steps."""
    config = build(OptimizerConfig, run["optimizer"], where="[optimizer]")
    steps = np.arange(max(step, 1), dtype=np.int32)
    old, new = (
        np.asarray(make_schedule(config, fields["total_steps"])(steps)) for fields in (checkpoint, run)
    )
    return step == 0 or bool((old == new).all())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
