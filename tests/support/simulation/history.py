"""One history of a run: lives that overlap, die and fall asleep, on a store with its own weather.

In: a seed. Out: what the observer found. The director starts the lives, spoils bytes, plays the stranger who
deletes commits or the run, and ends with two lives in fair weather.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from outlast.checkpoint.lineage import CommitKey, parse_attempt_name, parse_commit_name, parse_data_name
from outlast.checkpoint.liveness import ProcessIdentity
from support.simulation.life import Life
from support.simulation.modules import SimulatedClock, simulated
from support.simulation.observer import UNDER_WAY_SECONDS, Observer
from support.simulation.scheduler import Process, Scheduler, Task
from support.simulation.store import DAY, Disk, Machine, Moment, SimulatedStore, Weather

COMMIT = "create commits/"
KINDS = (COMMIT, "create attempts/", "create data/", "size attempts/", "delete ", "list ", "read ")
"""What death and sleep aim at besides any request."""

_LONGEST_LIFE = 3 * DAY


@dataclass
class Outcome:
    """What became of a history."""

    seed: int
    lives: int
    requests: int
    acknowledged: int
    restored: int
    violations: list[str]


class History:
    """Everything of one seed.

    Args:
        tell: takes each line of the trace.
    """

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.tell = tell
        self.scheduler = Scheduler(self._died)
        self.weather = Weather(self.rng)
        self.disk = Disk(self.scheduler, self.weather, self)
        self.observer = Observer(self.disk.objects)
        self.machines: list[Machine] = []
        self.rots = 0
        self.stranger = ""

    # What the store tells.

    def applied(self, process: Machine, verb: str, name: str, content: bytes, *, late: bool) -> None:
        process.observer.applied(process, verb, name, content, late=late)

    def damage(self, name: str, content: bytes) -> bytes:
        if not self.rots or not name.endswith(".safetensors") or self.rng.random() > 0.02:
            return content
        self.rots -= 1
        self.observer.spoiled.add(name)
        self.say(self.scheduler.current.process, f"{name} is damaged as it is written")
        return _spoil(self.rng, content) or b""

    def kill(self, process: Machine) -> None:
        process.dead = True

    def say(self, process: Process, what: str) -> None:
        if self.tell:
            self.tell(f"{self.scheduler.now:12.3f} {process.name:10} {what}")

    def _died(self, process: Process, error: Exception) -> None:
        self.observer.violated(f"a thread of {process.name} died: {error!r}")

    # The director.

    def run(self) -> Outcome:
        with simulated(self.scheduler, self.rng, self._has_ended, self._open_own):
            self._direct()
            self._end()
        return Outcome(
            self.seed,
            len(self.machines),
            sum(machine.requests for machine in self.machines),
            sum(machine.acknowledgements for machine in self.machines),
            sum(machine.restores for machine in self.machines),
            self.observer.violations,
        )

    def _direct(self) -> None:
        rng = self.rng
        stranger = self.stranger = rng.choice(("", "", "", "", "", "loses", "empties"))
        self.rots = int(rng.random() < 0.4 and not stranger)
        if not stranger:
            self.weather.fault_rate = rng.choice((0.0, 0.01, 0.04, 0.1))
            self.weather.slow_rate = rng.choice((0.0, 0.02, 0.1))
        for _ in range(rng.randint(2, 5)):
            if self.weather.fault_rate and rng.random() < 0.3:
                begin = self.scheduler.now + 300 * rng.random()
                self.weather.outages = [(begin, begin + rng.choice((30.0, 150.0, 600.0)))]
            tasks = [self.start() for _ in range(1 + (rng.random() < 0.15))]
            patience = 400.0 * rng.random() if rng.random() < 0.2 else _LONGEST_LIFE
            if stranger == "empties":
                patience = 60.0 * rng.random()
            self._await(tasks, patience)
            if self.observer.violations:
                return
            self._meanwhile()
            self.scheduler.sleep(rng.choice((0.0, 5.0, 100.0, 100.0, DAY + 1000.0)) * rng.random())

    def _meanwhile(self) -> None:
        """What happens to the store between two lives, or beside them."""
        if self.rots and self.rng.random() < 0.3:
            self._rot()
        if self.stranger == "loses" and self._is_known(self.observer.needed()) and self.rng.random() < 0.5:
            self.say(self.scheduler.current.process, "a stranger deletes all commits")
            for name in sorted(self.disk.objects):
                if key := parse_commit_name(name):
                    del self.disk.objects[name]
                    self.observer.lost.add(key)
            self.observer.losses += 1
        if self.stranger == "empties" and any(
            machine.attempt and not machine.dead for machine in self.machines
        ):
            self._empty()

    def _empty(self) -> None:
        """Delete the run under its owners, and once more what was on its way; who sleeps on wakes up in a run
        that is another's.
        """
        self.say(self.scheduler.current.process, "a stranger deletes the run")
        for _ in range(2):
            self.observer.emptied_at = self.scheduler.now
            self.disk.objects.clear()
            self.observer = Observer(self.disk.objects, self.observer.violations)
            for machine in self.machines:
                if not machine.attempt:
                    machine.observer = self.observer
            self.scheduler.sleep(UNDER_WAY_SECONDS)
        self.stranger = ""

    def _is_known(self, key: CommitKey | None) -> bool:
        """Whether an attempt has left word of a commit: before, its loss cannot be noticed."""
        return key is not None and any(
            parse_attempt_name(name) and key.name.encode() in content
            for name, (content, _) in self.disk.objects.items()
        )

    def _rot(self) -> None:
        keys = [key for key in self.observer.standing[-2:] if key not in self.observer.rotten]
        names = [
            name
            for name in sorted(self.disk.objects)
            if keys and keys[-1] in (parse_data_name(name), parse_commit_name(name))
        ]
        if not names:
            return
        name = self.rng.choice(names)
        content, written = self.disk.objects[name]
        spoiled = _spoil(self.rng, content) if parse_data_name(name) else _spoil(self.rng, content) or b"{"
        self.say(self.scheduler.current.process, f"{name} rots")
        if spoiled is None:
            del self.disk.objects[name]
        else:
            self.disk.objects[name] = (spoiled, written)
        self.observer.rotten.add(keys[-1])
        self.rots -= 1

    def _await(self, tasks: Iterable[Task], patience: float) -> None:
        """Wait for the end of lives; not for long where one has fallen asleep."""
        end = self.scheduler.now + patience
        for task in tasks:
            task.waiters.append(self.scheduler.current)
            while not task.done and self.scheduler.now < end and not self.observer.violations:
                self.scheduler.wait(min(end, self.scheduler.now + 60.0))
                if task.process.asleep_until > self.scheduler.now and self.rng.random() < 0.4:
                    break

    def _end(self) -> None:
        """Two lives in fair weather: beside what is left of the others, then alone."""
        self.weather.fault_rate = self.weather.slow_rate = 0.0
        self.rots = 0
        self.weather.outages = []
        if not self.observer.violations:
            self._await([self.start(fair=True)], _LONGEST_LIFE)
        for machine in self.machines:
            machine.dead = True
        self.scheduler.sleep(max(0.0, self.scheduler.last_event() - self.scheduler.now) + 1.0)
        if not self.observer.violations:
            self._await([self.start(fair=True, alone=True)], _LONGEST_LIFE)
        for machine in self.machines:
            machine.dead = True
        self.scheduler.sleep(max(0.0, self.scheduler.last_event() - self.scheduler.now) + 1.0)

    def start(self, *, fair: bool = False, alone: bool = False) -> Task:
        """Begin a life."""
        rng = self.rng
        name = f"life-{len(self.machines) + 1}"
        machine = Machine(name, now=lambda: self.scheduler.now, observer=self.observer)
        if not fair:
            if rng.random() < 0.5:
                machine.death = self._moment()
                machine.dies_after_sending = rng.random() < 0.5
            if rng.random() < 0.4:
                # A claim that was looked up and a write after it are no one thing: no sleep between them
                # where another's run may come in between.
                machine.sleep = (
                    Moment("list ", rng.randint(4, 12)) if self.stranger == "empties" else self._moment()
                )
                machine.sleeps_seconds = rng.choice((200.0, 1000.0, 2 * DAY)) * rng.random()
        self.machines.append(machine)
        host = rng.choice(("here", "here", "there"))
        clock = SimulatedClock(self.scheduler, 1000.0 * (host == "there"))
        boot = "boot" if host == "here" else None
        identity = ProcessIdentity(host=host, pid=len(self.machines), started="1", machine=boot)
        life = Life(self.disk, machine, clock, identity, rng)
        return self.scheduler.spawn(machine, life.last if alone else life.live)

    def _has_ended(self, pid: int) -> bool:
        return self.machines[pid - 1].dead

    def _open_own(self) -> SimulatedStore:
        process = self.scheduler.current.process
        assert isinstance(process, Machine)
        return SimulatedStore(self.disk, process)

    def _moment(self) -> Moment:
        """Any request of a life, or one of a kind."""
        kind = self.rng.choice(("", "", *KINDS, COMMIT, COMMIT))
        return Moment(kind, self.rng.randint(1, 4 if kind == COMMIT else 12 if kind else 250))


def _spoil(rng: random.Random, content: bytes) -> bytes | None:
    """Return bytes with one changed, or cut short; None: the object is gone."""
    at = rng.randrange(len(content))
    return rng.choice((content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], content[:at], None))


def live_through(seed: int, tell: Callable[[str], None] | None = None) -> Outcome:
    """Run the history of a seed."""
    return History(seed, tell).run()
