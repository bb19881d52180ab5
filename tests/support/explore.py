"""Visit every state that a machine can reach, breadth first: the way to a violation is a shortest one.

In: a machine (``start``, ``successors``, ``check``). Out: how many states and transitions there are. States
are remembered by their 64-bit hashes: among n states two different ones share one with probability
n^2 / 2^65, a millionth at six million.
"""

from collections.abc import Hashable, Iterator
from typing import NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Machine(Protocol[S]):
    """What can be explored. ``successors`` and ``check`` raise AssertionError at a violation."""

    @property
    def start(self) -> S: ...
    def successors(self, state: S) -> Iterator[tuple[str, S]]: ...
    def check(self, state: S) -> None: ...


class Explored(NamedTuple):
    """``depth`` is the number of transitions to the farthest state."""

    states: int
    transitions: int
    depth: int


class Counterexample(AssertionError):
    """A violation, with the transitions that lead to it."""


def explore(machine: Machine[S], *, limit: int | None = None) -> Explored:
    """Visit all states.

    Args:
        limit: stop with an error beyond this many states: a bound that exploded.

    Raises:
        Counterexample: an invariant fails; the message tells the way there.
    """
    came_from: dict[int, tuple[int, str]] = {hash(machine.start): (0, "")}
    layer, transitions, depth = [machine.start], 0, 0
    while layer:
        following: list[S] = []
        for state in layer:
            try:
                for what, after in machine.successors(state):
                    transitions += 1
                    mark = hash(after)
                    if mark not in came_from:
                        came_from[mark] = (hash(state), what)
                        machine.check(after)
                        following.append(after)
            except AssertionError as violation:
                raise Counterexample(_tell(came_from, state, violation)) from None
        if limit and len(came_from) > limit:
            raise RuntimeError(f"more than {limit} states at depth {depth}")
        layer, depth = following, depth + bool(following)
    return Explored(len(came_from), transitions, depth)


def _tell(came_from: dict[int, tuple[int, str]], state: Hashable, violation: AssertionError) -> str:
    way: list[str] = []
    mark = hash(state)
    while came_from[mark][1]:
        mark, what = came_from[mark]
        way.append(what)
    return "\n  ".join([str(violation), *reversed(way)])
