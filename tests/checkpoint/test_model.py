"""Every history of the commit protocol within some bounds, with the real decision functions.

Where ``test_simulator.py`` draws long histories of the real code at random, this visits all short ones: every
interleaving of the accesses to the store of every attempt, with deaths, sleeps, late and doubled writes and
damaged commits.
In every state: no reader is led to another history, nothing acknowledged and undamaged is left behind,
whatever the line lists can be read, and one more attempt can go on past what is there. docs/design/commit.md
has the counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from outlast.checkpoint.lineage import CommitKey, Start
from outlast.checkpoint.retain import Candidate, choose_deletions
from support.explore import Counterexample, explore
from support.protocol import Bounds, Protocol, Rules


def visit(bounds: Bounds, rules: Rules | None = None) -> int:
    """Visit every state; return their number. ``pytest -s`` shows the counts."""
    explored = explore(Protocol(bounds, rules), limit=20_000_000)
    print(f"{bounds}: {explored}")  # noqa: T201
    return explored.states


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(attempts=2, saves=2, faults=1, rots=1), 40_000),
        (Bounds(attempts=3, saves=1, rots=1), 10_000),
        (Bounds(attempts=3, saves=2), 40_000),
    ],
)
def test_no_history_breaks_the_protocol(bounds: Bounds, least: int) -> None:
    assert visit(bounds) > least


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(attempts=3, saves=1, faults=1, rots=1), 90_000),
        (Bounds(attempts=3, saves=2, rots=1), 300_000),
        (Bounds(attempts=3, saves=2, faults=1), 500_000),
        (Bounds(attempts=2, saves=3, faults=1, rots=1), 300_000),
        (Bounds(attempts=4, saves=1, rots=1), 500_000),
    ],
)
def test_no_longer_history_breaks_the_protocol(bounds: Bounds, least: int) -> None:
    assert visit(bounds) > least


# The model can fail: each mutant of the protocol is caught.


def design_rule(commits: Iterable[CommitKey], recorded: Mapping[int, Start]) -> list[CommitKey]:
    """An earlier line rule: a commit counts if its step is at most the step every later attempt recorded."""

    def counts(commit: CommitKey) -> bool:
        return all(start.step >= commit.step for number, start in recorded.items() if number > commit.attempt)

    return sorted(filter(counts, commits), reverse=True)


def every_commit(commits: Iterable[CommitKey], recorded: Mapping[int, Start]) -> list[CommitKey]:
    return sorted(commits, reverse=True)


def without_restored(candidates: Sequence[Candidate], **fields: Any) -> list[CommitKey]:
    """Delete the restored commit as soon as there is a newer one that was verified."""
    restored = fields.pop("restored_step")
    own = {key for key in fields["verified"] if key.attempt == fields["attempt"]}
    old = {candidate.key for candidate in candidates if candidate.key.step == restored} if own else set()
    return sorted({*choose_deletions(candidates, restored_step=None, **fields), *old})


def all_but_one(candidates: Sequence[Candidate], **fields: Any) -> list[CommitKey]:
    fields["keep_newest"] = 1
    return choose_deletions(candidates, **fields)


MUTANTS: dict[str, tuple[Bounds, Rules, str]] = {
    "no look for later claims": (
        Bounds(attempts=2, saves=1),
        Rules(unchecked=frozenset({"record", "commit", "acknowledge", "withdraw", "delete", "orphan"})),
        "acknowledged and lost",
    ),
    "no look before the record": (
        Bounds(attempts=2, saves=1),
        Rules(unchecked=frozenset({"record"})),
        "acknowledged and lost",
    ),
    "no look after the commit": (
        Bounds(attempts=2, saves=1),
        Rules(unchecked=frozenset({"acknowledge"})),
        "acknowledged and lost",
    ),
    "the line by steps alone": (
        Bounds(attempts=3, saves=1),
        Rules(line_of=design_rule),
        "acknowledged and lost",
    ),
    "no line": (Bounds(attempts=2, saves=2, rots=1), Rules(line_of=every_commit), "no way past|wrong read"),
    "retention deletes data before the commit object": (
        Bounds(attempts=2, saves=2),
        Rules(object_first=False),
        "cannot be read",
    ),
    "retention deletes the commit that was restored": (
        Bounds(attempts=2, saves=1, rots=1),
        Rules(choose_deletions=without_restored),
        "acknowledged and lost",
    ),
    "retention keeps one": (
        Bounds(attempts=1, saves=2, rots=1),
        Rules(choose_deletions=all_but_one),
        "acknowledged and lost",
    ),
    "the commit before its data": (
        Bounds(attempts=1, saves=1),
        Rules(data_first=False),
        "cannot be read",
    ),
    "a withdrawn step is committed again": (
        Bounds(attempts=1, saves=2, faults=1, rots=1),
        Rules(repeats_withdrawn=True),
        "acknowledged and lost",
    ),
    "a claim that overwrites": (Bounds(attempts=2, saves=1), Rules(overwrites_claims=True), "two attempts"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_protocol_is_caught(name: str) -> None:
    bounds, rules, message = MUTANTS[name]
    with pytest.raises(Counterexample, match=message):
        visit(bounds, rules)
    assert visit(bounds) > 10, "what broke is the rule, not the bounds"
