"""What makes a run the same run.

In: two descriptions, of the checkpoint and of this attempt. Out: silence, or an error that lists every
difference with both values. The identity (seed, data, order, model, objective, optimizer) must agree, or the
result would be neither run's. What it runs on may differ (``arithmetic``).
"""

from typing import Any

import numpy as np

from outlast.config import build, differences, to_dict
from outlast.errors import ConfigError, listed
from outlast.objectives.config import in_todays_words
from outlast.training.config import OptimizerConfig
from outlast.training.optimizer import make_schedule

Identity = dict[str, Any]


def check_identity(checkpoint: Identity, run: Identity, *, step: int, run_dir: str) -> None:
    """Check that a run may go on from a checkpoint.

    The number of steps may change as long as every learning rate up to now stays the same: the rates that
        were used are compared with those the new number would have given. A run in phases gets longer by
        further phases.

    A key of the optimizer that the checkpoint does not know had its default then; its objective may be in the
    words of an earlier version.

    Raises:
        ConfigError: listing each field that differs, with both values and the way out.
    """
    checkpoint = {
        **checkpoint,
        "objective": in_todays_words(checkpoint["objective"]),
        "optimizer": {**to_dict(OptimizerConfig()), **checkpoint["optimizer"]},
    }
    found = [
        f"{name}: the checkpoint has {old!r}, the recipe {new!r}"
        for name, old, new in differences(checkpoint, run)
        if name != "total_steps" and not _is_added_phase(name, checkpoint)
    ]
    remedy = (
        "set them back to go on with this run, or start another one: "
        f"--run-dir NEW --initialize-from {run_dir}"
    )
    if not found:
        found, remedy = _check_length(checkpoint, run, step, run_dir)
    if found:
        raise ConfigError(
            listed(
                f"The run's checkpoint of step {step} was made with other settings:",
                (f"  - {difference}" for difference in found),
            ),
            where=run_dir,
            remedy=remedy,
        )


def _check_length(checkpoint: Identity, run: Identity, step: int, run_dir: str) -> tuple[list[str], str]:
    """Return what is wrong with the number of steps, and the way out; nothing where the run may go on."""
    old, new = checkpoint["total_steps"], run["total_steps"]
    if new < step:
        return [f"total_steps: the checkpoint is of step {step}, the recipe ends at {new}"], (
            f"give at least {step} steps; an earlier checkpoint is evaluated or exported with --step"
        )
    if old == new or _same_rates(checkpoint, run, step):
        return [], ""
    schedule = run["optimizer"]["schedule"]
    return [
        f"total_steps: the checkpoint has {old}, the recipe {new}; "
        f"with it the {schedule!r} schedule has other rates up to step {step}"
    ], (
        f"go on with its {old} steps; or train its parameters further as a run of their own: "
        f"--run-dir NEW --initialize-from {run_dir}. A run gets longer only where no rate that it had would "
        'change: one begun with optimizer.schedule = "step", or with "constant" before its last decay_steps'
    )


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
