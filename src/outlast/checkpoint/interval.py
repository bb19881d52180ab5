"""When to save: by steps, by time, or by a rule from what was measured.

In: the cost of a save and the lives of earlier attempts. Out: seconds until the next save; whether one is
due now. Source: Young (1974), "A first order approximation to the optimum checkpoint interval", CACM 17(9):
tau = sqrt(2 C M) for a cost C and a mean time M between preemptions. Two differences: M starts from a guess,
since a young run has seen none, and the first save comes soon, since spot machines that die at all often die
within minutes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.checkpoint.config import CheckpointConfig

GUESSED_SECONDS_BETWEEN_PREEMPTIONS = 2 * 3600.0
FIRST_SAVE_SECONDS = 60.0
SHORTEST_SECONDS = 10.0
LONGEST_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class Life:
    """One earlier attempt: wall-clock times in seconds since 1970, steps None where they are not known."""

    attempt: int
    start: float
    last_heartbeat: float
    first_step: int | None
    last_step: int | None
    closed: bool

    @property
    def seconds(self) -> float:
        return max(0.0, self.last_heartbeat - self.start)


def mean_seconds_between_preemptions(lives: Sequence[Life]) -> float:
    """Return the observed mean, as if one more preemption had been seen, after two hours."""
    preemptions = sum(not life.closed for life in lives)
    return (GUESSED_SECONDS_BETWEEN_PREEMPTIONS + sum(life.seconds for life in lives)) / (1 + preemptions)


def young_seconds(save_seconds: float, seconds_between_preemptions: float) -> float:
    """Return sqrt(2 C M)."""
    return math.sqrt(2 * save_seconds * seconds_between_preemptions)


def seconds_to_next_save(*, save_seconds: float | None, seconds_between_preemptions: float) -> float:
    """Return the time from the start of one save to the next.

    Args:
        save_seconds: what a save cost; None before the first one, which also measures it.
    """
    if save_seconds is None:
        return FIRST_SAVE_SECONDS
    wanted = young_seconds(save_seconds, seconds_between_preemptions)
    return min(max(wanted, 2 * save_seconds, SHORTEST_SECONDS), max(LONGEST_SECONDS, 2 * save_seconds))


class SaveTimer:
    """Says when a save is due, from the keys of ``[checkpoint]`` and from what saves have cost.

    ``save_seconds`` and ``seconds_between_preemptions`` are what the rule goes by where the recipe names no
    interval; None until they are known.
    """

    def __init__(self, config: CheckpointConfig) -> None:
        self.save_seconds: float | None = None
        self.seconds_between_preemptions: float | None = None
        self._config = config
        self._saved: tuple[int, float] | None = None
        self._now = 0.0

    def due(self, step: int, now: float, *, first_step: int) -> bool:
        """Whether a save is due.

        Args:
            now: seconds of a steady clock, the same in every call.
            first_step: what the attempt started from, and need not save again.
        """
        if self._saved is None:
            self._saved = (first_step, now)
        self._now = now
        saved_step, saved_at = self._saved
        if step <= saved_step:
            return False
        steps = self._config.interval_steps
        if steps and step // steps > saved_step // steps:
            return True
        if self._config.interval_seconds:
            return now - saved_at >= self._config.interval_seconds
        return steps is None and now - saved_at >= self._seconds_by_rule()

    def saved(self, step: int) -> None:
        """Note that a save of a step has begun, at the time of the last question."""
        self._saved = (step, self._now)

    def _seconds_by_rule(self) -> float:
        return seconds_to_next_save(
            save_seconds=self.save_seconds,
            seconds_between_preemptions=self.seconds_between_preemptions
            or mean_seconds_between_preemptions([]),
        )
