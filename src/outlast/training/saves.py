"""The checkpoints of one attempt, as the train loop sees them.

In: a step and the state on the device. Out: a save in the background. The copy off the device is the only
part that holds up training, and its duration is what Young's rule takes as the cost of a save. Invariant:
the training that a kill can cost is bounded. A failed save is made again later; where saves go on failing,
training waits until one succeeds, or ends with an error that no supervisor takes for a preemption.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import Fenced, OutlastError, RunError, StorageError
from outlast.logs import format_seconds, log
from outlast.training.state import TrainState, snapshot

_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 60.0
_LOOK_SECONDS = 0.5
"""How often a pause looks for a notice to stop."""


class Saves:
    """Starts, awaits and watches the saves of one attempt.

    Args:
        restored_step: what the attempt started from, None where it started anew.
        stop: whether the run is to end; a pause ends with it, and the last save says what is wrong.
    """

    def __init__(
        self,
        writer: CheckpointWriter,
        attempt: Attempt,
        config: CheckpointConfig,
        *,
        restored_step: int | None,
        stop: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._writer = writer
        self._attempt = attempt
        self._config = config
        self._restored_step = restored_step
        self._stop = stop
        self._now = now
        self._sleep = sleep
        self._num_committed = 0
        self._safe_at = now()
        self._paused_at: float | None = None

    def due(self, step: int) -> bool:
        """Whether it is time for a save. Cheap; for every step."""
        return self._writer.due(step, self._now()) or (not self._writer.saving and self._must_pause())

    def save(self, step: int, state: TrainState, *, wait: bool = False) -> None:
        """Start a save in the background; with ``wait``, finish it and raise what goes wrong.

        One that is still being written is finished first: what an evaluation judges must be kept. Where saves
        have failed for too long this one is tried until it succeeds.

        Raises:
            RunError: it did not succeed in time.
        """
        self._writer.close()
        log.debug("step %d: copying the state off the device", step)
        began = self._now()
        arrays = snapshot(state)
        blocking_seconds = self._now() - began
        log.debug("step %d: copied in %.4f s", step, blocking_seconds)
        if self._must_pause() and not wait:
            self._insist(step, arrays)
        else:
            self._writer.save(step, arrays, wait=wait, blocking_seconds=blocking_seconds)

    def wait(self) -> int | None:
        """Wait for the save under way; return the newest step that is committed."""
        self._writer.close()
        return self._restored_step if self._writer.last_step is None else self._writer.last_step

    def check(self) -> None:
        """Raise Fenced where this attempt owns the run no more."""
        self._writer.raise_if_fenced()
        self._attempt.check_owned_locally()

    def _must_pause(self) -> bool:
        if self._writer.num_committed > self._num_committed or self._writer.last_error is None:
            self._num_committed, self._safe_at = self._writer.num_committed, self._now()
            return False
        return (
            self._writer.num_failed_in_a_row >= self._config.max_failed_saves
            or self._now() - self._safe_at >= self._config.max_unsaved_seconds
        )

    def _insist(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save, with growing pauses between, while nothing is trained; leave where the run is to end.

        A step whose checkpoint was damaged as it was written cannot be committed again: then training goes on
        for one step, and the next one is tried. The time until the end is counted on.
        """
        self._paused_at = self._now() if self._paused_at is None else self._paused_at
        pause = _FIRST_PAUSE_SECONDS
        while not self._stop():
            self.check()
            try:
                self._writer.save(step, arrays, wait=True)
            except Fenced:
                raise
            except OutlastError as error:
                if self._now() - self._paused_at >= self._config.give_up_seconds:
                    raise self._given_up(step, error) from error
                log.error(
                    "TRAINING IS PAUSED at step %d: %d saves in a row have failed, the next try is in %s: %s",
                    step,
                    self._writer.num_failed_in_a_row,
                    format_seconds(pause),
                    error.message,
                )
                if not isinstance(error, StorageError):
                    return
            else:
                self._paused_at = None
                log.info("step %d is saved, training goes on", step)
                return
            self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        end = self._now() + seconds
        while self._now() < end and not self._stop():
            self._sleep(min(_LOOK_SECONDS, seconds))

    def _given_up(self, step: int, error: OutlastError) -> RunError:
        newest = self.wait()
        return RunError(
            f"No save has succeeded for {format_seconds(self._now() - self._safe_at)}, so the run ends at "
            f"step {step}. The newest checkpoint is of step {newest or 0}. The last save failed: "
            f"{error.message}",
            where=error.where,
            expected=error.expected,
            remedy=(f"{error.remedy}; then " if error.remedy else "")
            + "give the same line again: it goes on "
            "from the newest checkpoint",
        )
