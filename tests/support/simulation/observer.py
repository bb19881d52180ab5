"""What must hold, judged from outside by one who sees everything.

In: what was handed to saves, what the store applied, what attempts acknowledged, restored and recorded. Out:
violations. Nothing here asks the code under test: training is a tree of states, each the child of one, and a
checkpoint's bytes are a function of its state, so it is known of every restore whose history it is.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.checkpoint.lineage import CommitKey, parse_attempt_name, parse_commit_name, parse_data_name
from support.simulation.store import DAY, Machine

_GRACE_SECONDS = DAY
UNDER_WAY_SECONDS = 30.0
"""What an owner had begun when its folder went is over after this."""

_PARTS = re.compile(rb'"name":"(data/[^"]+)"')


def arrays_of(state: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of a state; every byte depends on it."""
    digest = hashlib.sha512(str(state).encode()).digest()
    return {
        "params/w": np.frombuffer(digest, np.uint8).reshape(2, 32),
        "training/state": np.array(state, np.int64),
    }


@dataclass
class Observer:
    """The all-seeing one.

    Attributes:
        violations: what did not hold, the first first.
        objects: what the store holds: bytes and time of writing, by name.
        standing: what was acknowledged and not given up since, oldest first.
        rotten: checkpoints whose bytes were destroyed; nobody has to restore these.
        ghosts: commits that came into being when nobody waited for them any more.
        unread: checkpoints of which their writer said that they could not be read back.
    """

    objects: Mapping[str, tuple[bytes, float]]
    violations: list[str] = field(default_factory=list[str])
    standing: list[CommitKey] = field(default_factory=list[CommitKey])
    rotten: set[CommitKey] = field(default_factory=set[CommitKey])
    spoiled: set[str] = field(default_factory=set[str])
    """Parts that were damaged as they were written."""
    ghosts: set[CommitKey] = field(default_factory=set[CommitKey])
    unread: set[CommitKey] = field(default_factory=set[CommitKey])
    losses: int = 0
    """How often a stranger has deleted the commits since they were made again."""
    lost: set[CommitKey] = field(default_factory=set[CommitKey])
    """Commits that a stranger deleted."""
    emptied_at: float | None = None
    """When the folder was taken away from those whom this observer watches."""
    _parents: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Of each state: the state before it, and its step."""
    _handed: dict[CommitKey, int] = field(default_factory=dict[CommitKey, int])
    _claims: dict[int, int] = field(default_factory=dict[int, int])
    """Of each claim: the newest attempt that had recorded a start by then, 0 for none."""
    _starts: dict[int, int] = field(default_factory=dict[int, int])
    """Of each record: the state that its attempt went on from."""
    _deleted: set[CommitKey] = field(default_factory=set[CommitKey])
    _parts: dict[CommitKey, frozenset[str]] = field(default_factory=dict[CommitKey, frozenset[str]])

    def train(self, state: int, attempt: int, step: int) -> int:
        """Return the state after a step; no two attempts ever reach the same one."""
        self._parents.append((state, step))
        self._handed[CommitKey(step, attempt)] = len(self._parents) - 1
        return len(self._parents) - 1

    def needed(self) -> CommitKey | None:
        """Return the newest checkpoint that whoever comes must find or have in its past."""
        return next((key for key in reversed(self.standing) if key not in self.rotten), None)

    def applied(self, process: Machine, verb: str, name: str, content: bytes, *, late: bool) -> None:
        if self.emptied_at is not None:
            if verb == "create" and parse_commit_name(name) and self._should_know(process):
                self._violated(
                    f"{process.name} committed {name} to a run that began after its own was deleted"
                )
            return
        if commit := parse_commit_name(name):
            if verb == "delete":
                self._judge_deletion(commit, process)
            else:
                self._committed(commit, content, late=late)
        elif data := parse_data_name(name):
            if verb == "delete":
                self._judge_lost_data(name, data, process)
        elif parsed := parse_attempt_name(name):
            self._attempt_wrote(parsed[0], parsed[1], verb, content)

    def restored(self, key: CommitKey, arrays: Mapping[str, NDArray[Any]]) -> int:
        """Return the state that a restore gave."""
        state = int(arrays["training/state"]) if "training/state" in arrays else -1
        if self._handed.get(key) != state:
            self._violated(f"{key} was restored as state {state}, saved was {self._handed.get(key)}")
            return self._handed.get(key, 0)
        for name, array in arrays_of(state).items():
            if arrays[name].tobytes() != array.tobytes():
                self._violated(f"{key} was restored with other bytes of {name}")
        return state

    def acknowledged(self, key: CommitKey, process: Machine) -> None:
        process.acknowledgements += 1
        if self.emptied_at is not None:
            if self._should_know(process):
                self._violated(f"{key} was acknowledged after the run's folder had gone")
            return
        if key in self.rotten and key not in self.unread:
            self._violated(f"{key} was acknowledged, and was damaged when it was written")
        if key not in self.rotten | self.lost and not self._is_whole(key):
            self._violated(f"{key} was acknowledged and is not there")
        newest = max(self._starts, default=0)
        if newest > key.attempt and not self._descends(self._starts[newest], self._handed[key]):
            self._violated(f"{key} was acknowledged when attempt {newest} had begun without it")
        self.standing.append(key)

    def _should_know(self, process: Machine) -> bool:
        """Whether a process has asked the store since the folder went."""
        return self.emptied_at is not None and process.now() - self.emptied_at > UNDER_WAY_SECONDS

    def judge_line(self, line: Iterator[tuple[CommitKey, bool]]) -> None:
        """Judge what ``checkpoint list`` and ``verify`` say of the commits that count."""
        for key, is_whole in line:
            if not is_whole and key not in self.rotten | self.ghosts:
                self._violated(f"{key} is in the line and cannot be read")

    def violated(self, what: str) -> None:
        self._violated(what)

    def _committed(self, key: CommitKey, content: bytes, *, late: bool) -> None:
        self._parts[key] = frozenset(name.decode() for name in _PARTS.findall(content))
        if self._parts[key] & self.spoiled:
            self.rotten.add(key)
        if late or key in self._deleted:  # made again by `recover`, perhaps under the hands of retention
            self.ghosts.add(key)
            return
        if key not in self.rotten and not self._is_whole(key):
            self._violated(f"{key} was committed before its data")

    def _is_whole(self, key: CommitKey) -> bool:
        return key.name in self.objects and all(name in self.objects for name in self._parts[key])

    def _judge_deletion(self, key: CommitKey, process: Machine) -> None:
        self._deleted.add(key)
        if key == self.needed() and key not in self.lost:
            self._violated(f"{process.name} deleted the commit {key}, which a live line needs")

    def _judge_lost_data(self, name: str, key: CommitKey, process: Machine) -> None:
        is_part = name in self._parts.get(key, ())
        if is_part and key == self.needed():
            self._violated(f"{process.name} deleted data of {key}, which a live line needs")
        if is_part and key.name in self.objects and key not in self.rotten | self.ghosts:
            self._violated(f"{process.name} deleted data of {key}, whose commit is there")
        if key.attempt < process.attempt and key not in self._deleted | self.ghosts:
            now = process.now()
            age = now - max(
                [written for other, (_, written) in self.objects.items() if parse_data_name(other) == key],
                default=now - _GRACE_SECONDS,
            )
            if age < _GRACE_SECONDS:
                self._violated(
                    f"{process.name} deleted data of {key}, uncommitted and {age:.0f} s old, before its day"
                )

    def _attempt_wrote(self, number: int, kind: str, verb: str, content: bytes) -> None:
        if kind == "json":
            if number in self._claims:
                self._violated(f"attempt {number} was claimed twice")
            self._claims[number] = max(self._starts, default=0)
        elif kind == "from.json" and verb == "create":
            document = json.loads(content)
            key = parse_commit_name(document["commit"]) if document["commit"] else None
            if number == max(self._claims):
                self._judge_start(number, key)
            self._starts[number] = self._handed[key] if key else 0

    def _judge_start(self, number: int, key: CommitKey | None) -> None:
        """Judge what the owner of the run goes on from; what is beyond it is given up."""
        start = self._handed[key] if key else 0
        needed = self.needed()
        if needed and not self._descends(start, self._handed[needed]):
            self._violated(f"{needed} was acknowledged; attempt {number} goes on from {key}")
        if self.standing and not key:
            self._violated(f"attempt {number} begins anew where {self.standing[-1]} was acknowledged")
        earlier = [other for other in self._starts if self._claims[number] <= other < number]
        if key and earlier and not any(self._is_of(key, start, other) for other in earlier):
            self._violated(f"attempt {number} goes on from {key}, of another history than {max(earlier)}")
        self.standing = [other for other in self.standing if self._descends(start, self._handed[other])]
        if key and key not in self.standing:
            self.standing.append(key)

    def _is_of(self, key: CommitKey, state: int, attempt: int) -> bool:
        """Whether a commit is in the past of an attempt, or its own."""
        return key.attempt == attempt or self._descends(self._starts[attempt], state)

    def _descends(self, state: int, ancestor: int) -> bool:
        while state > ancestor:
            state = self._parents[state][0]
        return state == ancestor

    def _violated(self, what: str) -> None:
        self.violations.append(what)
