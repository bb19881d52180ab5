"""The states of the commit protocol's model: a store, attempts, requests under way; and how they change.

In: a state. Out: another one; states are values. Nothing here decides anything (``support.protocol`` does).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from outlast.checkpoint.lineage import CommitKey, Start

Keys = frozenset[CommitKey]


class Data(NamedTuple):
    """The parts of one save. ``copy`` stands for the random id: it counts an attempt's saves of one step."""

    key: CommitKey
    copy: int


class Late(NamedTuple):
    """A request that the store may apply at any later time; ``copy`` is None for a deletion."""

    key: CommitKey
    copy: int | None


class Process(NamedTuple):
    """One attempt: ``at`` is its next access to the store, ``seen`` and ``todo`` what it works on there,
    ``successor_of`` the newest attempt whose record it read.
    """

    at: str = "list"
    seen: Keys = frozenset()
    todo: tuple[CommitKey, ...] = ()
    successor_of: int = 0
    restored: CommitKey | None = None
    step: int = 0
    copy: int = 0
    saves: int = 0
    may_repeat: bool = False
    verified: Keys = frozenset()
    cleaned: bool = False


ENDED = Process(at="ended")


class State(NamedTuple):
    """The store, the attempts by number, and what only an observer knows: ``acknowledged`` commits (those
    that an owner restored and recorded among them), ``rotten`` ones, and ``ghosts``: those that came late,
    when their data may be gone.

    ``lookers`` are processes that looked for the newest attempt and are about to claim the next number.
    """

    processes: tuple[Process, ...] = ()
    lookers: tuple[int, ...] = ()
    records: tuple[Start | None, ...] = ()
    commits: frozenset[Data] = frozenset()
    data: frozenset[Data] = frozenset()
    rotten: frozenset[Data] = frozenset()
    ghosts: frozenset[Data] = frozenset()
    late: frozenset[Late] = frozenset()
    acknowledged: frozenset[Data] = frozenset()
    faults: int = 0
    rots: int = 0


Next = Iterator[tuple[str, State]]


def change(state: State, number: int, **changes: Any) -> State:
    processes = list(state.processes)
    processes[number - 1] = processes[number - 1]._replace(**changes)
    return state._replace(processes=tuple(processes))


def end(state: State, number: int) -> State:
    return state._replace(processes=(*state.processes[: number - 1], ENDED, *state.processes[number:]))


def own_data(number: int, process: Process) -> Data:
    return Data(CommitKey(process.step, number), process.copy)


def keys_of(found: frozenset[Data]) -> Keys:
    return frozenset(data.key for data in found)


def committed(state: State, key: CommitKey) -> frozenset[Data]:
    return frozenset(data for data in state.commits if data.key == key)


def is_whole(state: State, key: CommitKey) -> bool:
    return any(data.key == key and data in state.data and data not in state.rotten for data in state.commits)


def delete_data(state: State, key: CommitKey) -> State:
    return state._replace(data=frozenset(data for data in state.data if data.key != key))


def delete_object(state: State, key: CommitKey) -> Next:
    deleted = state._replace(commits=frozenset(data for data in state.commits if data.key != key))
    yield "", deleted
    for what, after in with_faults(state, deleted, Late(key, None)):
        yield ("twice" if what == "twice" else "fails"), after


def with_faults(before: State, done: State, late: Late) -> Next:
    """Yield what a request may leave behind that goes wrong. One of unknown outcome may be applied at once,
    later or never: that is when the late request is chosen.
    """
    if before.faults:
        left = before.faults - 1
        yield "outcome unknown", before._replace(faults=left, late=before.late | {late})
        yield "twice", done._replace(faults=left, late=done.late | {late})


def apply_late(state: State, late: Late) -> State:
    after = state._replace(late=state.late - {late})
    if late.copy is None:
        return after._replace(commits=frozenset(data for data in state.commits if data.key != late.key))
    if any(data.key == late.key for data in state.commits):
        return after  # a name that is taken is not overwritten
    data = Data(late.key, late.copy)
    return after._replace(commits=state.commits | {data}, ghosts=state.ghosts | {data})
