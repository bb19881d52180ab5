"""The checkpoints of one attempt, as the train loop sees them.

In: a step and the state on the device. Out: a save in the background. The copy off the device is the only
part that holds up training, and its duration is what Young's rule takes as the cost of a save.
"""

import time

from outlast.checkpoint.attempts import Attempt
from outlast.checkpoint.save import CheckpointWriter
from outlast.logs import log
from outlast.training.state import TrainState, snapshot


class Saves:
    """Starts, awaits and watches the saves of one attempt.

    Args:
        restored_step: what the attempt started from, None where it started anew.
    """

    def __init__(self, writer: CheckpointWriter, attempt: Attempt, *, restored_step: int | None) -> None:
        self._writer = writer
        self._attempt = attempt
        self._restored_step = restored_step

    def due(self, step: int) -> bool:
        """Whether it is time for a save. Cheap; for every step."""
        return self._writer.due(step, time.monotonic())

    def save(self, step: int, state: TrainState, *, wait: bool = False) -> None:
        """Start a save in the background; with ``wait``, finish it and raise what goes wrong.

        One that is still being written is finished first: what an evaluation judges must be kept.
        """
        self._writer.close()
        log.debug("step %d: copying the state off the device", step)
        began = time.monotonic()
        arrays = snapshot(state)
        blocking_seconds = time.monotonic() - began
        log.debug("step %d: copied in %.4f s", step, blocking_seconds)
        self._writer.save(step, arrays, wait=wait, blocking_seconds=blocking_seconds)

    def wait(self) -> int | None:
        """Wait for the save under way; return the newest step that is committed."""
        self._writer.close()
        return self._restored_step if self._writer.last_step is None else self._writer.last_step

    def check(self) -> None:
        """Raise Fenced where another attempt owns the run."""
        self._writer.raise_if_fenced()
        self._attempt.check_owned_locally()
