"""Code that is wrong in known ways: what finds faults must find these.

In: functions of the package, each with a piece of its text and what stands there instead. Out: the package
with those functions, for as long as a ``with`` lasts. A piece that is no longer there fails the test, so a
mutant cannot outlive the code it was made from.
"""

import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple


class Edit(NamedTuple):
    """One piece of text of a function, and what stands there instead."""

    function: str
    """As ``checkpoint.save:CheckpointWriter.save``, of the package."""
    old: str
    new: str


@contextmanager
def mutated(edits: Sequence[Edit]) -> Generator[None]:
    """Run the package with edits. Several of one function are applied one after the other."""
    texts: dict[Callable[..., Any], str] = {}
    for name, old, new in edits:
        function = inspect.unwrap(pkgutil.resolve_name(f"outlast.{name}"))
        text = texts.get(function) or textwrap.dedent(inspect.getsource(function))
        assert text.count(old) == 1, f"{name} has changed: {old!r}"
        texts[function] = text.replace(old, new)
    kept = [(function, function.__code__) for function in texts]
    try:
        for function, text in texts.items():
            made: dict[str, Any] = {}
            exec(text, function.__globals__, made)
            function.__code__ = inspect.unwrap(made[function.__name__]).__code__
        yield
    finally:
        for function, code in kept:
            function.__code__ = code
