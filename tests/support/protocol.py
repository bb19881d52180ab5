"""The commit protocol as a machine with finitely many states: every access to the store is one transition.

In: bounds, and the protocol's decisions (the real functions, or a mutant's). Out: the successors of a state,
and a ``Violation`` where an invariant fails. An attempt that is never chosen again is dead, one that is
chosen late slept, so death, sleep and the late write of a dead process need no transition of their own.
Heartbeats are trusted with nothing: any attempt may be replaced at any moment.

Two things are counted down. A *fault*: a create or delete whose outcome its caller never learns, and who goes
on without it (the store applied it, will apply it at any later time, or never does); one that is applied a
second time later; a commit that cannot be read back. *Rot*: the bytes of a commit are destroyed.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from outlast.checkpoint.lineage import CommitKey, Start, line_of
from outlast.checkpoint.retain import Candidate, choose_deletions
from support.protocol_state import (
    ENDED,
    Data,
    Keys,
    Late,
    Next,
    Process,
    State,
    apply_late,
    change,
    committed,
    delete_data,
    delete_object,
    end,
    is_whole,
    keys_of,
    own_data,
    with_faults,
)

Line = Callable[[Iterable[CommitKey], Mapping[int, Start]], list[CommitKey]]


class Bounds(NamedTuple):
    """How far the search goes: attempts, saves of each, faults, destroyed commits."""

    attempts: int
    saves: int
    faults: int = 0
    rots: int = 0


class Rules(NamedTuple):
    """The decisions of the protocol; a mutant replaces one."""

    line_of: Line = line_of
    choose_deletions: Callable[..., list[CommitKey]] = choose_deletions
    keep_newest: int = 2
    unchecked: frozenset[str] = frozenset()
    """Moments at which no later claim is looked for."""

    verifies: bool = True
    object_first: bool = True
    data_first: bool = True
    overwrites_claims: bool = False
    repeats_withdrawn: bool = False
    """Whether an attempt may commit a step again after it took the commit away."""


class Violation(AssertionError):
    """An invariant of the protocol does not hold."""


class Protocol:
    """The transitions and invariants under some bounds and rules."""

    def __init__(self, bounds: Bounds, rules: Rules | None = None) -> None:
        self.bounds = bounds
        self.rules = rules or Rules()
        self.start = State(faults=bounds.faults, rots=bounds.rots)
        self._line = lru_cache(2**16)(self._find_line)
        self._problem = lru_cache(2**18)(self._judge_store)

    def successors(self, state: State) -> Next:
        """Yield every transition with its name. Raises Violation at one that must not happen."""
        if len(state.processes) + len(state.lookers) < self.bounds.attempts:
            yield "one looks", state._replace(lookers=(*state.lookers, len(state.processes)))
        for newest in set(state.lookers):
            yield self._claim(state, newest)
        for number, process in enumerate(state.processes, 1):
            if process.at != "ended":
                for what, after in getattr(self, f"_at_{process.at}")(state, number, process):
                    yield f"{number} {what}", after
        for late in state.late:
            yield f"late {late}", apply_late(state, late)
        if state.rots:
            for data in (state.commits & state.data) - state.rotten:
                yield f"rot {data}", state._replace(rotten=state.rotten | {data}, rots=state.rots - 1)

    def check(self, state: State) -> None:
        """Judge what a reader would find in the store at this moment. Raises Violation."""
        readable = (state.commits & state.data) - state.rotten
        problem = self._problem(
            keys_of(state.commits),
            keys_of(readable),
            state.records,
            keys_of(state.acknowledged - state.rotten),
            keys_of(state.rotten | state.ghosts),
        )
        if problem:
            raise Violation(problem)

    def _find_line(self, keys: Keys, records: tuple[Start | None, ...]) -> tuple[CommitKey, ...]:
        recorded = {number: start for number, start in enumerate(records, 1) if start}
        return tuple(self.rules.line_of(keys, recorded))

    def _judge_store(
        self, keys: Keys, readable: Keys, records: tuple[Start | None, ...], promised: Keys, damaged: Keys
    ) -> str | None:
        line = self._line(keys, records)
        if hollow := [key for key in line if key not in readable | damaged]:
            return f"in the line and cannot be read: {hollow}"
        found = next((key for key in line if key in readable), None)
        if problem := judge_start(found, records, _newest(records), promised):
            return problem
        # One more attempt, alone: what it saves next must be new, and the newest.
        attempt, step = len(records) + 1, found.step if found else 0
        saved = CommitKey(step + 1, attempt)
        line = self._line(keys | {saved}, (*records, Start(step, found)))
        if saved in keys or line[:1] != (saved,):
            return f"no way past {found}: {saved} is hidden by {line}"
        return None

    def _claim(self, state: State, newest: int) -> tuple[str, State]:
        """Create the claim of a number. A looker whose number is taken looks again, as if it never had."""
        if newest < len(state.processes):
            raise Violation(f"two attempts have the number {newest + 1}")
        kept = list(state.lookers)
        kept.remove(newest)
        return f"{newest + 1} claims", state._replace(
            lookers=tuple(kept) if self.rules.overwrites_claims else (),
            processes=(*state.processes, Process()),
            records=(*state.records, None),
        )

    def _check(
        self, state: State, number: int, moment: str, *, then: State, ended: State | None = None
    ) -> Next:
        """Look for a later claim: ``then`` where there is none, else the end."""
        if moment in self.rules.unchecked or len(state.processes) == number:
            yield f"owns the run ({moment})", then
        else:
            yield f"is replaced ({moment})", end(ended or state, number)

    def _train_on(self, state: State, number: int, *, may_repeat: bool = False) -> State:
        """Go on to the next save, or to the end."""
        process = state.processes[number - 1]
        if process.saves == self.bounds.saves:
            return end(state, number)
        copy = process.copy if may_repeat else 0
        return change(state, number, at="save", todo=(), copy=copy, may_repeat=may_repeat)

    def _work_off(
        self, state: State, number: int, process: Process, todo: tuple[CommitKey, ...], at: str
    ) -> State:
        """Go on with what is left of a list, or with what comes after it."""
        state = change(state, number, seen=frozenset[CommitKey](), cleaned=process.cleaned)
        if todo:
            return change(state, number, at=at, todo=todo)
        return (
            self._train_on(state, number) if process.cleaned else change(state, number, at="orphans", todo=())
        )

    # Each method below is the access to the store of that name; it yields all that can come of it.

    def _at_list(self, state: State, number: int, process: Process) -> Next:
        seen = frozenset(data.key for data in state.commits if data.key.attempt <= number)
        yield "lists", change(state, number, at="records", seen=seen)

    def _at_records(self, state: State, number: int, process: Process) -> Next:
        todo = self._line(process.seen, state.records[:number])
        changes = {"seen": frozenset(), "todo": todo, "successor_of": _newest(state.records[:number])}
        at = "read" if todo else "check_record"
        yield "reads the records", change(state, number, at=at, **changes)

    def _at_read(self, state: State, number: int, process: Process) -> Next:
        key, *others = process.todo
        if is_whole(state, key):
            changes = {"restored": key, "step": key.step, "verified": frozenset({key}), "todo": ()}
            yield f"restores {key}", change(state, number, at="check_record", **changes)
        elif others:
            yield f"skips {key}", change(state, number, todo=tuple(others))
        else:
            yield "finds nothing usable and stops", end(state, number)

    def _at_check_record(self, state: State, number: int, process: Process) -> Next:
        promised = keys_of(state.acknowledged - state.rotten)
        for what, after in self._check(state, number, "record", then=change(state, number, at="record")):
            problem = judge_start(process.restored, state.records, process.successor_of, promised)
            if problem and after.processes[number - 1] != ENDED:
                raise Violation(f"attempt {number}: {problem}")
            yield what, after

    def _at_record(self, state: State, number: int, process: Process) -> Next:
        start = Start(process.step, process.restored)
        records = (*state.records[: number - 1], start, *state.records[number:])
        after = state._replace(records=records)
        if process.restored and len(state.processes) == number:
            after = after._replace(acknowledged=state.acknowledged | committed(state, process.restored))
        yield f"records {start}", change(after, number, at="save", successor_of=0)

    def _at_save(self, state: State, number: int, process: Process) -> Next:
        """Train on, or try the step of a failed save once more; write the parts (a mutant: later)."""
        for step, copy in [(process.step + 1, 0)] + process.may_repeat * [(process.step, process.copy + 1)]:
            data = Data(CommitKey(step, number), copy)
            written = state._replace(data=state.data | {data}) if self.rules.data_first else state
            changes = {"step": step, "copy": copy, "saves": process.saves + 1, "may_repeat": False}
            yield f"writes {data}", change(written, number, at="check_commit", **changes)

    def _at_check_commit(self, state: State, number: int, process: Process) -> Next:
        ended = state._replace(data=state.data - {own_data(number, process)})
        yield from self._check(state, number, "commit", then=change(state, number, at="commit"), ended=ended)

    def _at_commit(self, state: State, number: int, process: Process) -> Next:
        data = own_data(number, process)
        at = "verify" if self.rules.data_first else "data"
        taken = next((other for other in state.commits if other.key == data.key), None)
        if taken:  # by an earlier save of this step, whose outcome remained unknown
            discarded = state._replace(data=state.data - {data})
            if is_whole(state, data.key):
                yield f"finds {taken}", change(discarded, number, at="verify", copy=taken.copy)
            else:
                yield f"finds {taken} damaged", self._train_on(discarded, number, may_repeat=True)
            return
        created = state._replace(commits=state.commits | {data})
        yield f"commits {data}", change(created, number, at=at)
        for what, after in with_faults(state, created, Late(data.key, data.copy)):
            if what == "twice":
                yield f"commits {data} twice", change(after, number, at=at)
            else:
                yield f"commits {data} ({what})", self._train_on(after, number, may_repeat=True)

    def _at_data(self, state: State, number: int, process: Process) -> Next:
        """Only a mutant writes the parts after the commit."""
        written = state._replace(data=state.data | {own_data(number, process)})
        yield "writes its data", change(written, number, at="verify")

    def _at_verify(self, state: State, number: int, process: Process) -> Next:
        intact = not self.rules.verifies or is_whole(state, CommitKey(process.step, number))
        at = "check_acknowledge" if intact else "check_withdraw"
        yield ("verifies" if intact else "finds damage"), change(state, number, at=at)
        if state.faults:
            after = change(state._replace(faults=state.faults - 1), number, at="check_unverified")
            yield "cannot read it back", after

    def _at_check_unverified(self, state: State, number: int, process: Process) -> Next:
        yield from self._check(state, number, "acknowledge", then=self._train_on(state, number))

    def _at_check_acknowledge(self, state: State, number: int, process: Process) -> Next:
        key = CommitKey(process.step, number)
        verified = process.verified | {key}
        after = change(state, number, at="retain_list", verified=verified)
        if self.rules.choose_deletions is choose_deletions and len(verified) < self.rules.keep_newest:
            # The real function keeps everything then, whatever it reads: no need to let it read.
            after = self._work_off(after, number, after.processes[number - 1], (), "")
        after = after._replace(acknowledged=state.acknowledged | {own_data(number, process)})
        yield from self._check(state, number, "acknowledge", then=after)

    def _at_check_withdraw(self, state: State, number: int, process: Process) -> Next:
        yield from self._check(state, number, "withdraw", then=change(state, number, at="withdraw"))

    def _at_withdraw(self, state: State, number: int, process: Process) -> Next:
        """Take away a commit that was damaged as soon as it was written."""
        key = CommitKey(process.step, number)
        for what, after in delete_object(state, key):
            gone = after if what == "fails" else delete_data(after, key)
            may_repeat = self.rules.repeats_withdrawn
            yield f"withdraws {key} {what}", self._train_on(gone, number, may_repeat=may_repeat)

    def _at_retain_list(self, state: State, number: int, process: Process) -> Next:
        seen = keys_of(state.commits)
        yield "lists for retention", change(state, number, at="retain_records", seen=seen)

    def _at_retain_records(self, state: State, number: int, process: Process) -> Next:
        line = self._line(process.seen, state.records)
        todo = self.rules.choose_deletions(
            [Candidate(key=key, in_line=key in line) for key in process.seen],
            attempt=number,
            restored_step=process.restored.step if process.restored else 0,
            verified=process.verified,
            keep_newest=self.rules.keep_newest,
            keep_every_steps=None,
            best_step=None,
        )
        yield f"may delete {todo}", self._work_off(state, number, process, tuple(todo), "check_delete")

    def _at_check_delete(self, state: State, number: int, process: Process) -> Next:
        at = "delete_object" if self.rules.object_first else "delete_data"
        yield from self._check(state, number, "delete", then=change(state, number, at=at))

    def _at_delete_object(self, state: State, number: int, process: Process) -> Next:
        key, *others = process.todo
        for what, after in delete_object(state, key):
            if what == "fails":  # retention is left to the next save
                yield f"deletes {key} {what}", self._train_on(after, number)
            elif self.rules.object_first:
                yield f"deletes {key} {what}", change(after, number, at="delete_data")
            else:
                yield (
                    f"deletes {key} {what}",
                    self._work_off(after, number, process, tuple(others), "check_delete"),
                )

    def _at_delete_data(self, state: State, number: int, process: Process) -> Next:
        key, *others = process.todo
        after = delete_data(state, key)
        if self.rules.object_first:
            yield (
                f"deletes data of {key}",
                self._work_off(after, number, process, tuple(others), "check_delete"),
            )
        else:
            yield f"deletes data of {key}", change(after, number, at="delete_object")

    def _at_orphans(self, state: State, number: int, process: Process) -> Next:
        """List data without a commit. Where a retention deletes a commit after this look, no reader minds
        whether its data are taken away here, too.
        """
        keys = {data.key for data in state.data if data.key.attempt < number} - keys_of(state.commits)
        after = self._work_off(
            state, number, process._replace(cleaned=True), tuple(sorted(keys)), "orphan_look"
        )
        yield f"finds orphans: {sorted(keys)}", after

    def _at_orphan_look(self, state: State, number: int, process: Process) -> Next:
        key, *others = process.todo
        if any(data.key == key for data in state.commits):
            yield f"leaves {key}", self._work_off(state, number, process, tuple(others), "orphan_look")
        else:
            yield f"has found the orphan {key}", change(state, number, at="check_orphan")

    def _at_check_orphan(self, state: State, number: int, process: Process) -> Next:
        yield from self._check(state, number, "orphan", then=change(state, number, at="delete_orphan"))

    def _at_delete_orphan(self, state: State, number: int, process: Process) -> Next:
        key, *others = process.todo
        after = delete_data(state, key)
        yield f"deletes orphan {key}", self._work_off(after, number, process, tuple(others), "orphan_look")


def judge_start(
    start: CommitKey | None, records: tuple[Start | None, ...], predecessor: int, promised: Keys
) -> str | None:
    """Say what is wrong with going on from a commit: a promised one is left behind, or the commit is neither
    of the predecessor nor of what that one came from.
    """
    history = _way_back(start, records)
    if lost := sorted(key for key in promised if key.step > history.get(key.attempt, -1)):
        return f"acknowledged and lost: {lost}; what is found is {start}"
    if start is None or predecessor == 0 or start.attempt == predecessor:
        return None
    record = records[predecessor - 1]
    if record and start.step <= _way_back(record.commit, records).get(start.attempt, -1):
        return None
    return f"wrong read: attempt {predecessor}, the newest, does not come from {start}"


def _newest(records: tuple[Start | None, ...]) -> int:
    return max((number for number, record in enumerate(records, 1) if record), default=0)


@lru_cache(2**16)
def _way_back(commit: CommitKey | None, records: tuple[Start | None, ...]) -> dict[int, int]:
    """Return the attempts a commit's training went through, each with the last step that it contributed."""
    way: dict[int, int] = {}
    while commit:
        way[commit.attempt] = commit.step
        record = records[commit.attempt - 1]
        commit = record.commit if record else None
    return way
