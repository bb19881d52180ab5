"""What a person sees while a verb works: messages, and one line of progress.

In: text and numbers. Out: standard error, so that standard output holds results alone. On a terminal the
progress is a line that redraws itself; in a log it is a plain line now and then. Library users get the
messages through the standard logger ``outlast``.
"""

import copy
import logging
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import PurePath
from types import TracebackType
from typing import TYPE_CHECKING

from outlast.errors import OutlastError, one_line, printable_text

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("outlast")

_PLAIN_INTERVAL_SECONDS = 10.0
_LIVE_INTERVAL_SECONDS = 0.1


def set_up(*, debug: bool = False) -> None:
    """Send the package's messages to standard error, with ``debug`` those of level DEBUG too.

    For the command line only.
    """
    if sys.stderr.isatty():
        handler = _TerminalHandler()
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.DEBUG if debug else logging.INFO)
    log.propagate = False


class _Printable(logging.Formatter):
    """Messages may hold names of files, and those whatever a file system takes: none of them begins a line of
    its own, or tells the terminal what to do.
    """

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        if isinstance(record.args, tuple):
            shown.args = tuple(map(_shown, record.args))
        return printable_text(super().format(shown))


def _shown(argument: object) -> object:
    if isinstance(argument, OutlastError) or not isinstance(argument, str | PurePath | Exception):
        return argument
    return one_line(argument if isinstance(argument, str) else str(argument))


class _TerminalHandler(logging.Handler):
    """Prints messages as they are: nothing in a name is markup, and a path or URL is never cut into rows."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        _terminal().print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


@cache
def _terminal() -> "Console":
    """The one console: it knows of the line of progress, so no message lands in the middle of it."""
    from rich.console import Console

    return Console(stderr=True)


class ProgressLine:
    """One line that tells how far long work is.

    Args:
        what: what is going on, two or three words.
        total: the amount of work, in any unit; None where it is not known.
        start: the amount already done before, which does not count for the rate.
    """

    def __init__(
        self, what: str, total: float | None, *, start: float = 0, clock: Callable[[], float] = time.monotonic
    ):
        self.what = one_line(what)
        self.total = total
        self.start = start
        self.clock = clock
        self.began = self.printed = self.shown = clock()
        self.live = None
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn

            what_column = TextColumn("{task.description}", markup=False)
            columns = (what_column, BarColumn(), TextColumn("{task.fields[note]}", markup=False))
            self.live = Progress(*columns, console=_terminal(), transient=True)
            self.task = self.live.add_task(self.what, total=total, note="")
            self.live.update(self.task, completed=start)

    def __enter__(self) -> "ProgressLine":
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.stop()

    def is_due(self) -> bool:
        """Whether it is time to show something new. Asking costs little, so whoever works may ask often."""
        if self.live:
            return self.clock() - self.shown >= _LIVE_INTERVAL_SECONDS
        return self.clock() - self.printed >= _PLAIN_INTERVAL_SECONDS

    def update(self, done: float, note: str) -> None:
        """Show how much is done, and a note beside it."""
        self.shown = self.clock()
        left = self.seconds_left(done)
        text = one_line(f"{note}, {format_seconds(left)} left" if left is not None else note)
        if self.live:
            self.live.update(self.task, completed=done, note=text)
        elif self.clock() - self.printed >= _PLAIN_INTERVAL_SECONDS:
            self.printed = self.clock()
            share = f" {done / self.total:.0%}" if self.total else ""
            log.info("%s%s: %s", self.what, share, text)

    def seconds_left(self, done: float) -> float | None:
        """Return the time left at the rate so far, in seconds; None while it cannot be told."""
        if self.total is None or done <= self.start:
            return None
        return (self.clock() - self.began) / (done - self.start) * (self.total - done)


def tell_end(result: str, *commands: Sequence[object]) -> None:
    """Say what a verb has come to, and where, and which commands may follow.

    Args:
        commands: each the words behind ``outlast``.
    """
    lines = [shlex.join(["outlast", *map(str, words)]) for words in commands]
    log.info("%s%s", result, f"; next: {'   or: '.join(lines)}" if lines else "")


def format_seconds(seconds: float) -> str:
    """Return a duration for a person: ``42s``, ``3m10s``, ``2h05m``, ``3d04h``."""
    whole = round(seconds)
    for unit, letter, smaller, small_letter in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= unit:
            return f"{whole // unit}{letter}{whole % unit // smaller:02d}{small_letter}"
    return f"{whole}s"


def format_count(count: float) -> str:
    """Return a large number for a person, rounded to three digits: ``950``, ``12.3k``, ``4.1M``."""
    count = float(f"{count:.3g}")
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g}{letter}"
    return f"{count:.3g}"
