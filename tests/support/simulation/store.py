"""A store in memory whose requests take time and go wrong: lost, unanswered, late, doubled, refused, rotten.

In: the requests of processes. Out: their effects, each at one moment between the request and its answer, or
long after both. Every request is a moment at which its process may die (before it is sent, or after) or fall
asleep. Who watches is told of every effect.
"""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

from outlast.errors import ObjectExists, ObjectNotFound, StorageError, StoreUnreachable
from outlast.storage import Chunks, ObjectInfo, Store
from outlast.storage.regular import MOST_BYTES
from support.simulation.scheduler import Process, Scheduler, Stopped

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1.8e9
DAY = 86400.0
_TIMEOUT = 10.0
_WRITES = ("create", "replace", "delete")


@dataclass(eq=False)
class Machine(Process):
    """A process with what will happen to it: at which of its requests it dies or falls asleep."""

    now: Callable[[], float] = lambda: 0.0
    observer: Any = None
    attempt: int = 0
    requests: int = 0
    restores: int = 0
    acknowledgements: int = 0
    death: "Moment | None" = None
    dies_after_sending: bool = False
    sleep: "Moment | None" = None
    sleeps_seconds: float = 0.0


@dataclass
class Moment:
    """The ``left``-th request from now whose verb and name begin with ``kind``."""

    kind: str
    left: int

    def has_come(self, request: str) -> bool:
        self.left -= request.startswith(self.kind)
        return self.left == 0


@dataclass
class Weather:
    """How often a request goes wrong, and when the store is away."""

    rng: random.Random
    fault_rate: float = 0.0
    slow_rate: float = 0.0
    outages: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def fault(self, verb: str) -> str:
        if not self.fault_rate or self.rng.random() >= self.fault_rate:
            return ""
        if verb not in _WRITES:
            return self.rng.choice(("lost", "lost", "refused"))
        return self.rng.choice(
            ("lost", "unanswered", "late", "late", "twice", "twice", "repeated", "refused")
        )

    def latency(self) -> float:
        if self.slow_rate and self.rng.random() < self.slow_rate:
            return self.rng.choice((0.5, 5.0, 60.0)) * self.rng.random()
        return 0.001 + 0.02 * self.rng.random()

    def lateness(self) -> float:
        return self.rng.choice((5.0, 100.0, 3000.0, 1.5 * DAY)) * self.rng.random()

    def is_away(self, now: float) -> bool:
        return any(begin <= now < end for begin, end in self.outages)


class Watcher(Protocol):
    """Who is told of what happens."""

    def applied(self, process: Machine, verb: str, name: str, content: bytes, *, late: bool) -> None:
        """A write or deletion has taken effect (``late``: not as the one that its sender waits for)."""
        ...

    def damage(self, name: str, content: bytes) -> bytes:
        """Return the bytes that the store keeps of those it was given."""
        ...

    def kill(self, process: Machine) -> None: ...

    def say(self, process: Process, what: str) -> None: ...


@dataclass
class Disk:
    """What all processes share."""

    scheduler: Scheduler
    weather: Weather
    watcher: Watcher
    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict[str, tuple[bytes, float]])


class SimulatedStore(Store):
    """The disk as one process reaches it."""

    url = "sim://run"

    def __init__(self, disk: Disk, process: Machine) -> None:
        self._disk = disk
        self._process = process
        self._objects = disk.objects

    def retry(
        self, action: Callable[[*Ts], T], *arguments: *Ts, pause: Callable[[float], object] | None = None
    ) -> T:
        return super().retry(action, *arguments, pause=pause or self._disk.scheduler.sleep)

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        return self._ask("read", name, lambda late: self._get(name))

    def read_range(self, name: str, start: int, length: int) -> bytes:
        content = self._ask("range", name, lambda late: self._get(name))[start : start + length]
        if len(content) != length:
            raise StorageError("The object ends early.", where=name)
        return content

    def size_bytes(self, name: str) -> int:
        return self._ask("size", name, lambda late: len(self._get(name)))

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        def look(late: bool) -> list[ObjectInfo]:
            return sorted(
                ObjectInfo(name, len(content), EPOCH + modified)
                for name, (content, modified) in self._objects.items()
                if name.startswith(prefix)
            )

        return self._ask("list", prefix, look)

    def create(self, name: str, content: Chunks) -> None:
        joined = b"".join(content)

        def put(late: bool) -> None:
            if name in self._objects:
                raise ObjectExists("The object exists already.", where=name)
            self._put("create", name, joined, late=late)

        self._ask("create", name, put)

    def replace(self, name: str, content: Chunks) -> None:
        joined = b"".join(content)
        self._ask("replace", name, lambda late: self._put("replace", name, joined, late=late))

    def delete(self, name: str) -> None:
        def drop(late: bool) -> None:
            self._objects.pop(name, None)
            self._disk.watcher.applied(self._process, "delete", name, b"", late=late)

        self._ask("delete", name, drop)

    def _get(self, name: str) -> bytes:
        if name not in self._objects:
            raise ObjectNotFound("There is no such object.", where=name)
        return self._objects[name][0]

    def _put(self, verb: str, name: str, content: bytes, *, late: bool) -> None:
        kept = self._disk.watcher.damage(name, content)
        self._objects[name] = (kept, self._disk.scheduler.now)
        self._disk.watcher.applied(self._process, verb, name, content, late=late)

    def _ask(self, verb: str, name: str, effect: Callable[[bool], T]) -> T:
        """Send a request and wait for what becomes of it."""
        disk, process = self._disk, self._process
        scheduler, weather = disk.scheduler, disk.weather
        if process.dead:
            raise Stopped
        process.requests += 1
        title = f"{verb} {name}"
        if process.sleep and process.sleep.has_come(title):
            process.sleep = None
            disk.watcher.say(process, f"falls asleep for {process.sleeps_seconds:.0f} s before {title}")
            process.asleep_until = scheduler.now + process.sleeps_seconds
            scheduler.sleep(0)
        dies = process.death is not None and process.death.has_come(title)
        if dies and not process.dies_after_sending:
            disk.watcher.say(process, f"dies before {title}")
            disk.watcher.kill(process)
            raise Stopped
        fault = "away" if weather.is_away(scheduler.now) else weather.fault(verb)
        applied_at = scheduler.now + weather.latency()
        answered_at = applied_at + weather.latency()
        request = _Request(effect, disk.watcher, process, title)
        if fault == "late":
            scheduler.at(scheduler.now + weather.lateness(), request.apply_late)
        elif fault not in ("lost", "away", "refused"):
            scheduler.at(applied_at, request.apply)
        if fault == "repeated":
            scheduler.at(applied_at, request.apply)
        if fault == "twice":
            scheduler.at(answered_at + weather.lateness(), request.apply_late)
        if dies:
            disk.watcher.say(process, f"dies after {title}")
            disk.watcher.kill(process)
            raise Stopped
        if fault:
            disk.watcher.say(process, f"{title}: {fault}")
        if fault in ("lost", "away", "late", "unanswered"):
            scheduler.wait(max(answered_at, scheduler.now + _TIMEOUT))
            raise StoreUnreachable(f"injected: {fault}", where=name)
        scheduler.wait(answered_at)
        if fault == "refused":
            raise StorageError("injected: refused", where=name)
        return request.answer()


class _Request(Generic[T]):
    """A request on its way: its effect, once or more, and what its sender will hear."""

    def __init__(self, effect: Callable[[bool], T], watcher: Watcher, process: Machine, title: str) -> None:
        self._effect = effect
        self._watcher = watcher
        self._process = process
        self._title = title
        self._result: T
        self._error: StorageError | None = None

    def apply(self) -> None:
        self._error = None
        try:
            self._result = self._effect(False)
        except StorageError as error:
            self._error = error
        self._watcher.say(
            self._process, f"{self._title}{f': {type(self._error).__name__}' if self._error else ''}"
        )

    def apply_late(self) -> None:
        self._watcher.say(self._process, f"{self._title}: takes effect late")
        with contextlib.suppress(StorageError):
            self._effect(True)

    def answer(self) -> T:
        if self._error:
            raise self._error
        return self._result
