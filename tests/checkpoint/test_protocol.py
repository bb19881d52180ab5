"""The protocol as a random model: attempts that die, pause and race, bad commits, bit rot, retention.

The decisions (line rule, deletions) are the real functions; the store is a dict, and every access to it is a
point where another attempt may go on, die or be born. A heartbeat is never trusted to protect anything: any
attempt may be replaced at any moment and may wake up later.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from outlast.checkpoint.lineage import CommitKey, Start, line_of
from outlast.checkpoint.retain import Candidate, choose_deletions


class LostRun(AssertionError):
    pass


class WrongRead(AssertionError):
    pass


@dataclass
class World:
    """What is in the store, and what an all-seeing observer knows."""

    rng: random.Random
    checks_claims: bool
    keep_every_steps: int | None
    keep_best: bool
    commits: dict[CommitKey, bool] = field(default_factory=dict[CommitKey, bool])
    """Each commit object, with whether its bytes are still right."""
    best_step: int | None = None
    recorded: dict[int, Start] = field(default_factory=dict[int, Start])
    newest_claim: int = 0
    history: dict[int, set[CommitKey]] = field(default_factory=dict[int, set[CommitKey]])
    """For each attempt the commits its training went through: its ancestors' and its own."""
    acknowledged: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """For each attempt the step it started from and those it verified while nobody else had claimed."""

    damages: int = 0
    damages_at_start: dict[int, int] = field(default_factory=dict[int, int])

    def one_is_bad(self) -> bool:
        return not all(self.commits.values())

    def rot(self) -> None:
        """Damage the newest commit of the line, unless a bad one is there or it is the last good one."""
        line = line_of(self.commits, self.recorded)
        if len(line) >= 2 and not self.one_is_bad():
            self.commits[line[0]] = False
            self.damages += 1


def attempt(world: World, number: int) -> Iterator[None]:
    """One life: each ``yield`` is a moment before the store is touched."""
    yield
    world.damages_at_start[number] = world.damages
    keys = [key for key in world.commits if key.attempt < number]
    yield
    recorded = {earlier: started for earlier, started in world.recorded.items() if earlier < number}
    promised = max(recorded, default=0)
    step = 0
    restored: CommitKey | None = None
    for key in line_of(keys, recorded):
        yield
        if world.commits.get(key):
            restored, step = key, key.step
            break
    _judge(world, promised, restored, owns=world.newest_claim == number)
    if world.checks_claims and world.newest_claim > number:
        return
    yield
    if number in world.recorded:
        raise AssertionError("two attempts of one number")
    history = (
        {restored} | {key for key in world.history[restored.attempt] if key <= restored}
        if restored
        else set()
    )
    world.recorded[number] = Start(step, restored)
    world.history[number] = set[CommitKey](history)
    world.acknowledged[number] = [step]
    yield from _train(world, number, restored, step)


def _judge(world: World, promised: int, restored: CommitKey | None, *, owns: bool) -> None:
    """Compare a restore with what the run was promised: the newest attempt's history, less an interval for a
    bad one.
    """
    if not promised:
        return
    history = world.history[promised]
    if restored and restored not in history:
        raise WrongRead(f"{restored} is not in the history of attempt {promised}")
    if not owns:
        return  # replaced while it looked: it will stop, and its successor reads what the run has
    reached = world.acknowledged[promised]
    if reached[-1] and not restored:
        raise LostRun(f"attempt {promised} had reached step {reached[-1]}, nothing is left")
    damages = world.damages - world.damages_at_start[promised]
    if restored and damages < min(2, len(reached)) and restored.step < reached[-1 - damages]:
        raise LostRun(f"attempt {promised} had reached step {reached[-1]}, {restored} is left")


def _train(world: World, number: int, restored: CommitKey | None, step: int) -> Iterator[None]:
    verified = {restored} if restored else set[CommitKey]()
    while True:
        step += world.rng.randint(1, 3)
        key = CommitKey(step, number)
        yield
        if world.checks_claims and world.newest_claim > number:
            return
        yield
        is_bad = world.rng.random() < 0.1 and not world.one_is_bad()
        world.commits[key] = not is_bad
        world.damages += is_bad
        world.history[number].add(key)
        if world.rng.random() < 0.3:
            world.best_step = step
        yield
        if not world.commits.get(key):
            if world.checks_claims and world.newest_claim > number:
                return
            yield
            world.commits.pop(key, None)
            continue
        verified.add(key)
        if world.newest_claim == number:
            world.acknowledged[number].append(step)
        yield from _retain(world, number, restored, verified)


def _retain(
    world: World, number: int, restored: CommitKey | None, verified: set[CommitKey]
) -> Iterator[None]:
    keys = list(world.commits)
    yield
    recorded = dict(world.recorded)
    line = set(line_of(keys, recorded))
    deletions = choose_deletions(
        [Candidate(key=key, in_line=key in line) for key in keys],
        attempt=number,
        restored_step=restored.step if restored else 0,
        verified=verified,
        keep_newest=2,
        keep_every_steps=world.keep_every_steps,
        best_step=world.best_step if world.keep_best else None,
    )
    for key in deletions:
        yield
        if world.checks_claims and world.newest_claim > number:
            return
        yield
        world.commits.pop(key, None)


def live(seed: int, *, checks_claims: bool = True) -> int:
    """Run one history; return how many attempts it had. Raises LostRun, WrongRead."""
    rng = random.Random(seed)
    world = World(
        rng=rng,
        checks_claims=checks_claims,
        keep_every_steps=rng.choice([None, 5]),
        keep_best=rng.random() < 0.5,
    )
    living: list[Iterator[None]] = []
    patience = rng.choice([0.02, 0.05, 0.15])
    for _ in range(rng.randint(20, 160)):
        luck = rng.random()
        if not living or luck < patience:
            world.newest_claim += 1
            living.append(attempt(world, world.newest_claim))
        elif luck < 1.5 * patience:
            living.pop(rng.randrange(len(living)))
        elif luck < 1.5 * patience + 0.02:
            world.rot()
        else:
            chosen = rng.choice(living[-3:])
            if next(chosen, "ended") == "ended":
                living.remove(chosen)
    world.newest_claim += 1
    last = attempt(world, world.newest_claim)
    while world.newest_claim not in world.recorded:
        next(last)
    return world.newest_claim


def test_nothing_is_lost_and_nothing_wrong_is_read() -> None:
    attempts = [live(seed) for seed in range(4000)]
    assert max(attempts) > 10
    assert sum(attempts) > 4 * len(attempts)


def test_without_the_check_for_later_claims_a_run_is_lost() -> None:
    def live_carelessly() -> None:
        for seed in range(4000):
            live(seed, checks_claims=False)

    with pytest.raises(LostRun):
        live_carelessly()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_nothing_is_lost_in_many_histories() -> None:
    for seed in range(200_000):
        live(seed)
