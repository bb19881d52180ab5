"""Where the kills of a run fall: planned phase by phase, carried out, counted.

In: a home for a run, on a folder or on S3, and a seed. Out: kills that found the process alive, each with the
phase it was in.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from support.command_lives import (
    COMMIT,
    COMPILE,
    EXIT,
    PHASES,
    READ_BACK,
    RESTORE,
    RETENTION,
    SNAPSHOT,
    START,
    STEP,
    UPLOAD,
    Life,
)
from support.datasets import TINY, CloudCommand
from support.faults import FaultyProxy

RUNS_PER_STORE = 25
KILLS_PER_RUN = 4
STEPS = 45
SETTINGS = (*TINY, f"training.total_steps={STEPS}")
STEPS_OF_TWO_SAVES = 6
ANY = "any moment"

# What the 100 kills of a store aim at. The first of a run comes after the first checkpoint, so that every
# later life has one to go on from; the end of the run can only be the last.
FIRST = Counter({STEP: 5, SNAPSHOT: 5, UPLOAD: 5, COMMIT: 5, RETENTION: 5})
MIDDLE = Counter({START: 8, RESTORE: 8, COMPILE: 8, ANY: 14, STEP: 3, SNAPSHOT: 3, UPLOAD: 3, COMMIT: 3})
LAST = Counter({EXIT: 8, RETENTION: 4, ANY: 9, SNAPSHOT: 2, STEP: 2})

LIFE_SECONDS = (0.2, 4.0)
LONGEST_DELAY_SECONDS = {START: 0.5, RESTORE: 0.15, COMPILE: 0.8, STEP: 0.1, UPLOAD: 0.005, EXIT: 0.15}
"""How far into a phase a kill may come; the phases that are not here are over in a moment."""
IN_EACH_SAVE = (STEP, SNAPSHOT, UPLOAD, COMMIT, RETENTION)

REQUESTS: dict[str, Callable[[str, str], bool]] = {
    UPLOAD: lambda method, path: method == "PUT" and "/run/data/" in path,
    COMMIT: lambda method, path: method == "PUT" and "/run/commits/" in path,
    RETENTION: lambda method, path: method == "DELETE" or path.endswith("?delete"),
}


def aims_of(store: str, run: int) -> list[str]:
    """Return what the kills of a run aim at, in order."""
    rng = random.Random(store)
    first, middle, last = ([*deck.elements()] for deck in (FIRST, MIDDLE, LAST))
    for deck in (first, middle, last):
        rng.shuffle(deck)
    return [first[run], *middle[2 * run : 2 * run + 2], last[run]]


@dataclass
class Tally:
    """The kills of a whole session."""

    runs: Counter[str] = field(default_factory=Counter[str])
    kills: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By phase and store."""
    aimed: Counter[tuple[str, bool]] = field(default_factory=Counter[tuple[str, bool]])
    """By phase aimed at, and whether it was the one hit."""
    resumes: list[int] = field(default_factory=list[int])

    def table(self) -> Iterator[str]:
        stores = sorted(self.runs)
        yield f"{'phase':<12}" + "".join(f"{store:>7}" for store in stores)
        for phase in (*PHASES[: PHASES.index(RETENTION)], READ_BACK, RETENTION, EXIT):
            yield f"{phase:<12}" + "".join(f"{self.kills[phase, store]:>7}" for store in stores)
        sums = [sum(n for (_, where), n in self.kills.items() if where == store) for store in stores]
        yield f"{'kills':<12}" + "".join(f"{count:>7}" for count in sums)
        yield f"{'runs':<12}" + "".join(f"{self.runs[store]:>7}" for store in stores)


@dataclass
class Run:
    """A run that is killed again and again.

    Args:
        proxy: stands before the store; None where the run lies in a folder.
    """

    command: CloudCommand
    manifest: str
    run_dir: str
    proxy: FaultyProxy | None
    rng: random.Random
    resumes: int = 0

    def kill(self, aim: str) -> str:
        """Kill a life where the aim says, and again if it had ended by itself; return the phase it was in."""
        for _ in range(10):
            life = self.start()
            first = self.resumes == 0
            if self.proxy and aim in REQUESTS and self.rng.random() < 2 / 3:
                self._reach_request(life, aim, first=first)
            elif aim == ANY:
                life.follow(self.rng.uniform(*LIFE_SECONDS))
            else:
                self._reach(life, aim, num_saves=self.rng.randint(1, 2) if first else self.rng.randint(0, 1))
            counts = life.kill()
            if self.proxy:
                self.proxy.come_up()
                self.proxy.let_go()  # what was on its way arrives after the death
            self.resumes += 1
            if counts:
                return life.phase
            aim = self.rng.choice((START, RESTORE, EXIT))  # the run has ended: nothing else is left of it
        raise AssertionError("ten lives in a row ended before their kill")

    def start(self) -> Life:
        line = self.command.training(self.manifest, self.run_dir, *SETTINGS)
        return Life(self.command.start(*line, "--debug"))

    def _reach(self, life: Life, phase: str, *, num_saves: int) -> None:
        """Stop a life inside a phase. A phase that was missed comes again with the next save."""
        delay = self.rng.uniform(0, LONGEST_DELAY_SECONDS.get(phase, 0))
        while life.hear(0.01):
            if life.phase != phase or (phase in IN_EACH_SAVE and life.num_saves < num_saves):
                continue
            life.follow(delay)
            if not life.stop():
                return
            if life.phase == phase or phase not in IN_EACH_SAVE or life.step > STEPS - STEPS_OF_TWO_SAVES:
                return
            delay = 0.0
            life.go_on()

    def _reach_request(self, life: Life, phase: str, *, first: bool) -> None:
        """Stop a life while a request of it is on the way: the store has not heard of it, or has acted."""
        assert self.proxy
        nth = self.rng.randint(1, 3) if first else self.rng.randint(0, 1)
        kind = self.rng.choice(("held", "unanswered"))
        self.proxy.inject(lambda n: kind if n == nth else None, matching=REQUESTS[phase])
        while life.hear(0.005):
            if self.proxy.holding.is_set():
                life.follow(self.rng.uniform(0, 0.2))
                life.stop()
                return
