"""The ``[checkpoint]`` table of a recipe: how often to save, what to keep, when an owner counts as gone."""

from typing import Annotated

import pydantic

from outlast.config import Operation, table

MIB = 1024 * 1024


@table
class CheckpointConfig:
    interval_steps: Operation[Annotated[int, pydantic.Field(ge=1)] | None] = None
    """Save when a multiple of this many steps has been passed. None: by time."""

    interval_seconds: Operation[Annotated[float, pydantic.Field(gt=0)] | None] = None
    """Save after this many seconds.

    Where both intervals are None, Young's rule chooses (docs/design/commit.md).
    """

    keep_newest: Operation[Annotated[int, pydantic.Field(ge=2)]] = 2
    """Keep this many of the newest checkpoints that were read back and verified; at least 2, so that a
    damaged one costs one interval and not the run."""

    keep_every_steps: Operation[Annotated[int, pydantic.Field(ge=1)] | None] = None
    """Keep the first checkpoint at or after each multiple of this many steps for good."""

    keep_best: Operation[bool] = True
    """Keep the best of the evaluated checkpoints."""

    best_metric: Operation[str | None] = None
    """The metric of the evaluations that says which checkpoint is the best, such as loss or accuracy.
    Default: loss, of images accuracy."""

    verify_after_save: Operation[bool] = True
    """Read every checkpoint back after it was committed and compare its digests."""

    max_failed_saves: Operation[Annotated[int, pydantic.Field(ge=1)]] = 10
    """After so many saves in a row that failed, training pauses and tries until one succeeds."""

    max_unsaved_seconds: Operation[Annotated[float, pydantic.Field(gt=0)]] = 3600.0
    """The same after so long without a save that succeeded, once one has failed."""

    give_up_seconds: Operation[Annotated[float, pydantic.Field(gt=0)]] = 1800.0
    """A paused run ends with exit code 1 when no save has succeeded for so long."""

    heartbeat_seconds: Operation[Annotated[float, pydantic.Field(gt=0)]] = 10.0
    """Time between two signs of life of the process that owns the run."""

    heartbeat_limit_seconds: Operation[Annotated[float, pydantic.Field(gt=0)]] = 60.0
    """An owner without a sign of life for this long may be replaced; at least twice ``heartbeat_seconds``."""

    part_bytes: Operation[Annotated[int, pydantic.Field(ge=1)]] = 256 * MIB
    """Upper size of one file of a checkpoint; a single row of an array may be larger."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "CheckpointConfig":
        if self.heartbeat_limit_seconds < 2 * self.heartbeat_seconds:
            raise ValueError(
                f"heartbeat_limit_seconds ({self.heartbeat_limit_seconds:g}) must be at least twice "
                f"heartbeat_seconds ({self.heartbeat_seconds:g})"
            )
        return self
