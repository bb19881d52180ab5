"""The real storage and checkpoint code in simulated histories: what was acknowledged is restorable, what is
restored was committed, nothing is of another history, nothing is deleted that a live line needs.

A seed's history again, told line by line: ``PYTHONPATH=tests python -m support.simulation SEED``.
"""

import pytest

from support.mutants import Edit, mutated
from support.simulation.history import Outcome, live_through

SEEDS = 60
LONG_LIVES = 100_000
BLOCKS = 20
MOST_LIVES = 20_000
"""Within so many lives every mutant must be found."""


def live_all(first: int, *, lives: int) -> list[Outcome]:
    """Live through histories from a seed on, until so many lives have been lived. Fails at a violation."""
    outcomes: list[Outcome] = []
    lived = 0
    while lived < lives:
        outcome = live_through(first + len(outcomes))
        assert not outcome.violations, f"seed {outcome.seed}: {outcome.violations[0]}"
        lived += outcome.lives
        outcomes.append(outcome)
    return outcomes


def test_no_life_loses_anything() -> None:
    outcomes = live_all(0, lives=300)
    assert sum(outcome.acknowledged for outcome in outcomes) > 300
    assert sum(outcome.restored for outcome in outcomes) > 100


def test_a_seed_tells_the_same_history_again() -> None:
    told: list[list[str]] = [[], []]
    assert live_through(7, told[0].append) == live_through(7, told[1].append)
    assert told[0] == told[1]
    assert len(told[0]) > 100


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_life_of_many_loses_anything(block: int) -> None:
    outcomes = live_all(1_000_000 * (block + 1), lives=LONG_LIVES // BLOCKS)
    counts = {
        what: sum(getattr(outcome, what) for outcome in outcomes)
        for what in ("lives", "requests", "acknowledged", "restored")
    }
    print(f"block {block}: {counts}")  # noqa: T201


CREATE = "self._store.create_or_confirm(built.part.name, built.content)"
CHECK = "self._attempt.check_owned()  # only now it is certain that every later attempt will see this commit"
OWN_CLAIM = "read_or_none(self.store, claim_name(self.number))"

MUTANTS: dict[str, list[Edit]] = {
    "the commit before its parts": [
        Edit(
            "checkpoint.save:CheckpointWriter._write_parts",
            CREATE,
            "self.__dict__.setdefault('later', []).append(built)",
        ),
        Edit(
            "checkpoint.save:CheckpointWriter._save",
            "    commit = self._commit(commit, content, prefix)\n",
            "    commit = self._commit(commit, content, prefix)\n"
            "    for built in self.__dict__.pop('later'):\n"
            "        self._store.create_or_confirm(built.part.name, built.content)\n",
        ),
    ],
    "acknowledged before the look for later claims": [
        Edit("checkpoint.save:CheckpointWriter._save", CHECK, "pass"),
    ],
    "no look for later claims": [
        Edit(
            "checkpoint.attempts:Attempt._look_for_later_claim",
            "self.store.exists(claim_name(self.number + 1))",
            "False",
        )
    ],
    "no look for the own claim": [
        Edit("checkpoint.attempts:Attempt._look_for_own_claim", f"{OWN_CLAIM} != self._claim", "False"),
    ],
    "any claim of the own number counts": [
        Edit(
            "checkpoint.attempts:Attempt._look_for_own_claim",
            f"{OWN_CLAIM} != self._claim",
            f"{OWN_CLAIM} is None",
        ),
    ],
    "a claim that overwrites": [
        Edit("checkpoint.attempts:claim_attempt", "store.create_or_confirm(", "store.replace("),
    ],
    "no reading back": [
        Edit("checkpoint.save:CheckpointWriter._verify", "if not problems:", "if True:"),
    ],
    "no digests": [
        Edit("checkpoint.restore:_compare", "hashlib.sha256(content).hexdigest() != digest", "False")
    ],
    "no line in restoring": [
        Edit(
            "checkpoint.restore:_restore_newest",
            "for key in line_of(keys, recorded):",
            "for key in reversed(keys):",
        ),
    ],
    "retention keeps one": [
        Edit("checkpoint.retain:choose_deletions", "[-keep_newest:]", "[-1:]"),
        Edit("checkpoint.retain:choose_deletions", "if len(trusted) < keep_newest", "if not trusted"),
    ],
    "retention deletes the data first": [
        Edit(
            "checkpoint.retain:Retention.run",
            "self._delete(key.name)\n        self._delete_data(key)",
            "self._delete_data(key)\n        self._delete(key.name)",
        )
    ],
    "no day of grace": [
        Edit("checkpoint.retain:Retention._delete_orphans", "now - newest[key] < GRACE_SECONDS", "False"),
    ],
    "orphans are not looked up": [
        Edit(
            "checkpoint.retain:Retention._delete_orphans",
            "if not store.retry(store.exists, key.name)",
            "",
        )
    ],
    "lost commits are not missed": [
        Edit(
            "checkpoint.restore:refuse_lost", "if known is None or (line and line[0] >= known):", "if True:"
        ),
    ],
    "a commit is taken away when its outcome is unknown": [
        Edit(
            "checkpoint.save:CheckpointWriter._save",
            "commit = self._commit(commit, content, prefix)",
            "try:\n"
            "        commit = self._commit(commit, content, prefix)\n"
            "    except OutlastError:\n"
            "        self._discard(prefix)\n"
            "        raise",
        )
    ],
    "a lost answer counts as done": [
        Edit(
            "storage.store:Store.create_or_confirm",
            "except ObjectNotFound:\n                pass",
            "except ObjectNotFound:\n                return",
        )
    ],
    "a damaged record of the start counts as a new run": [
        Edit(
            "checkpoint.records:_read_start",
            "commit = parse_commit_name(name) if isinstance(name, str) else None",
            "commit = None; name = None",
        ),
    ],
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    lived = 0
    with mutated(MUTANTS[name]):
        for seed in range(MOST_LIVES):
            outcome = live_through(seed)
            lived += outcome.lives
            if outcome.violations:
                print(f"{name}: found after {lived} lives (seed {seed}): {outcome.violations[0]}")  # noqa: T201
                return
            assert lived < MOST_LIVES, f"{lived} lives have not shown that something is wrong"
