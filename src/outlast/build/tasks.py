"""Shares of a build: which portions a task makes, which are left to others, and waiting for these.

In: ``--task i/N``, the portions, the output folder. Out: the portions to build here.
"""

import re
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from outlast.build.drive import Run, by_size, drive
from outlast.build.plan import finished_portions
from outlast.build.processes import Job, P, Portion, list_numbers
from outlast.errors import ConfigError
from outlast.logs import log
from outlast.storage import Store

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 10.0

Task = tuple[int, int]
"""This share of the portions, and how many shares there are: 0 of 4 to 3 of 4."""


def parse_task(text: str | None) -> Task | None:
    """Parse ``i/N``; None stays None. Raises ConfigError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise ConfigError(
            f"Cannot read the task {text!r}.", where="--task", expected="I/N with I from 0 to N-1"
        )
    return int(match[1]), int(match[2])


def share_of(portions: Sequence[P], finished: set[int], task: Task | None) -> list[P]:
    """Return the unfinished portions of a task."""
    index, count = task or (0, 1)
    return [
        portion for portion in portions if portion.number not in finished and portion.number % count == index
    ]


class SizedPortion(Portion, Protocol):
    """A portion that tells how many bytes it reads."""

    @property
    def size_bytes(self) -> int: ...


S = TypeVar("S", bound=SizedPortion)


def drive_share(
    what: str, job: Job[S], portions: Sequence[S], finished: set[int], task: Task | None, run: Run
) -> None:
    """Do a job for the unfinished portions of a task. Raises the first one's error (``drive``)."""
    own = share_of(portions, finished, task)
    gauge = by_size(what, [portion.size_bytes for portion in own])
    drive(job, own, run, gauge, name=lambda portion: f"portion {portion.number} of {len(portions)}")


def others_have_work(store: Store, num_shards: int) -> bool:
    """Return whether portions are unfinished, and say which."""
    unfinished = sorted(set(range(num_shards)) - finished_portions(store))
    if unfinished:
        log.info(
            "%d of %d portions are left to other tasks: %s",
            len(unfinished),
            num_shards,
            list_numbers(unfinished),
        )
    return bool(unfinished)


def wait_for(is_there: Callable[[], bool], wait_seconds: float, check: Callable[[], None]) -> bool:
    """Wait until something is there; return whether it is. What ``check`` raises ends the waiting."""
    deadline = time.monotonic() + wait_seconds
    pause = _FIRST_PAUSE_SECONDS
    while not is_there():
        if time.monotonic() > deadline:
            return False
        check()
        time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return True
