"""The modules of the package, given the clock, the threads and the randomness of a simulation.

In: a scheduler, a source of randomness. Out: the modules with these in place of the machine's, for as long as
a ``with`` lasts.
"""

import contextlib
import random
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from outlast.checkpoint import attempts, owner, recover, retain, save
from outlast.checkpoint import threads as pools
from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.liveness import Clock, ProcessIdentity
from outlast.storage import Store, store
from support.simulation.scheduler import Scheduler, Threads
from support.simulation.store import EPOCH

_STRANGER = ProcessIdentity(host="elsewhere", pid=0, started="1", machine=None)
"""Who recovers, as others see it."""


class SimulatedClock(Clock):
    """The clock of one machine, which shows another time than its neighbour's."""

    def __init__(self, scheduler: Scheduler, offset: float) -> None:
        self._scheduler = scheduler
        self._offset = offset

    def now(self) -> float:
        return self._scheduler.now + self._offset

    def wall(self) -> float:
        return EPOCH + self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)


class _Pool:
    """A pool whose work the caller does, in order."""

    def __init__(self, _: int) -> None:
        pass

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, action: Callable[[Any], Any], work: Iterable[Any]) -> Iterator[Any]:
        return map(action, work)


@contextlib.contextmanager
def simulated(
    scheduler: Scheduler, rng: random.Random, has_ended: Callable[[int], bool], open_own: Callable[[], Store]
) -> Generator[None]:
    """Give the modules the clock, the threads and the randomness of a simulation.

    Args:
        has_ended: whether the process of a pid has.
        open_own: opens the store for the process that runs.
    """
    threads = Threads(scheduler)
    time = SimpleNamespace(monotonic=lambda: scheduler.now, sleep=scheduler.sleep)
    names = SimpleNamespace(uuid4=lambda: uuid.UUID(int=rng.getrandbits(128), version=4))

    def is_gone(theirs: ProcessIdentity, ours: ProcessIdentity) -> bool:
        comparable = theirs.machine is not None and theirs.machine == ours.machine
        return comparable and has_ended(theirs.pid)

    clock = SimulatedClock(scheduler, 0.0)
    replaced: list[tuple[Any, str, Any]] = [
        (attempts, "threading", threads),
        (save, "threading", threads),
        (attempts, "uuid", names),
        (save, "uuid", names),
        (save, "time", time),
        (retain, "time", time),
        (store, "time", time),
        (pools, "ThreadPoolExecutor", _Pool),
        (owner, "is_gone", is_gone),
        (recover, "open_store", lambda _: open_own()),
        (recover, "claim_attempt", partial(claim_attempt, clock=clock, process=_STRANGER)),
    ]
    kept = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
