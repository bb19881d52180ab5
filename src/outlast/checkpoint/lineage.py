"""The line of a run: which commits count. Names and one rule, all pure.

In: the names of the commits, and what each attempt recorded before it trained: the commit it restored. Out:
the commits that belong to the run: those on the way from the newest attempt back to the start. What an
attempt wrote beyond the point where its successor left it is another history. So neither the late commit of a
writer that came back from the dead nor a damaged one that was stepped back over can ever be restored, and
nobody has to delete anything for it (docs/design/commit.md).
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

COMMITS = "commits/"
DATA = "data/"
ATTEMPTS = "attempts/"

_COMMIT = re.compile(r"commits/(\d{12})-([1-9]\d{0,11})\.json")
_PREFIX = re.compile(r"data/(\d{12})/([1-9]\d{0,11})-[^/]+/")
_LIST = re.compile(r"data/\d{12}/[1-9]\d{0,11}-[^/]+/commit\.json")
_ATTEMPT = re.compile(r"attempts/([1-9]\d{0,11})\.(json|heartbeat|from\.json|run\.json)")


class CommitKey(NamedTuple):
    """What a commit's name says.

    The order of the tuples is the order of the run: by step, then by attempt.
    """

    step: int
    attempt: int

    @property
    def name(self) -> str:
        return f"{COMMITS}{self.step:012d}-{self.attempt}.json"

    @property
    def data_prefix(self) -> str:
        """The start of the names of all data this attempt wrote for this step."""
        return f"{DATA}{self.step:012d}/{self.attempt}-"


def parse_commit_name(name: str) -> CommitKey | None:
    """Return the step and attempt of a commit's name, None for any other name."""
    match = _COMMIT.fullmatch(name)
    return CommitKey(int(match[1]), int(match[2])) if match else None


def parse_data_name(name: str) -> CommitKey | None:
    """Return the step and attempt that a data object was written for, None for any other name."""
    match = _PREFIX.match(name)
    return CommitKey(int(match[1]), int(match[2])) if match else None


def list_name(prefix: str) -> str:
    """Return the name of the sealed list of the parts below a prefix. It holds what the commit will hold."""
    return f"{prefix}commit.json"


def is_list_name(name: str) -> bool:
    """Whether a name is that of a sealed list of parts."""
    return _LIST.fullmatch(name) is not None


def claim_name(attempt: int) -> str:
    """Return the name of an attempt's claim."""
    return f"{ATTEMPTS}{attempt}.json"


def heartbeat_name(attempt: int) -> str:
    """Return the name of an attempt's sign of life."""
    return f"{ATTEMPTS}{attempt}.heartbeat"


def record_name(attempt: int) -> str:
    """Return the name of what an attempt writes down before it trains."""
    return f"{ATTEMPTS}{attempt}.from.json"


def description_name(attempt: int) -> str:
    """Return the name of what an attempt says of its run: the recipe it trains by."""
    return f"{ATTEMPTS}{attempt}.run.json"


def parse_attempt_name(name: str) -> tuple[int, str] | None:
    """Return the number and the kind (``json``, ``heartbeat``, ``from.json``,
    ``run.json``) of an attempt's object."""
    match = _ATTEMPT.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


class Start(NamedTuple):
    """What an attempt recorded before it trained: the step, and the commit it restored (None: a new run)."""

    step: int
    commit: CommitKey | None


UNREADABLE = Start(-1, None)
"""A record that is damaged: where its attempt came from is not known, so no earlier commit counts."""


def history_of(recorded: Mapping[int, Start]) -> dict[int, int | None]:
    """Return the attempts that the run went through, each with the last of its steps that counts (None: all).

    The newest attempt that recorded a start decides. It is followed back: to the attempt whose commit it
    restored, up to that commit's step; from there to what that attempt had restored; and so on.
    """
    # The newest record decides, not the highest step. By steps alone a sleeper could overrule its successor:
    # it wakes up, records the early step that it once saw, and cuts off what was restored since. A record
    # that names the commit it came from cannot be overruled by a lower number, whenever it arrives.
    history: dict[int, int | None] = {}
    attempt = max(recorded, default=None)
    last_step: int | None = None
    while attempt is not None and attempt not in history:
        history[attempt] = last_step
        came_from = recorded.get(attempt, UNREADABLE).commit
        attempt, last_step = (came_from.attempt, came_from.step) if came_from else (None, None)
    return history


def ignored_because(commit: CommitKey, recorded: Mapping[int, Start]) -> str | None:
    """Return why a commit does not belong to the run, None where it does. This is the line rule.

    Args:
        commit: the step and attempt of the commit.
        recorded: what each attempt that began to train recorded. Where nobody did, all commits count.
    """
    history = history_of(recorded)
    newest = max(recorded, default=0)
    if not recorded or commit.attempt > newest:
        return None
    if commit.attempt not in history:
        return f"attempt {newest}, the newest, does not descend from attempt {commit.attempt}"
    last_step = history[commit.attempt]
    if last_step is not None and commit.step > last_step:
        return f"attempt {newest}, the newest, descends from step {last_step} of attempt {commit.attempt}"
    return None


def line_of(commits: Iterable[CommitKey], recorded: Mapping[int, Start]) -> list[CommitKey]:
    """Return the commits that belong to the run, newest first: highest step, then highest attempt."""
    return sorted((commit for commit in commits if ignored_because(commit, recorded) is None), reverse=True)
