"""Building portions side by side in processes that die with their parent.

In: portions. Out: the error of each portion that failed; the others are finished. A process that is killed
costs the portion it was at, no more, and leaves nothing half-written: what a portion leaves behind appears
whole or not at all.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar, cast

from outlast.errors import OutlastError, explained

_TICK_SECONDS = 1.0
_NUM_COUNTERS = 3


Count = Callable[[int, int, int], None]
"""Told how many documents, text bytes and tokens have been added, for the progress line."""


class Portion(Protocol):
    """A unit of work that is sent to a process, by its number."""

    @property
    def number(self) -> int: ...


P = TypeVar("P", bound=Portion)
P_contra = TypeVar("P_contra", bound=Portion, contravariant=True)


class Builder(Protocol[P_contra]):
    """Builds one portion after another; what a portion leaves behind appears whole or not at all."""

    def build(self, portion: P_contra, count: Count) -> Any: ...


class Job(Protocol[P_contra]):
    """What all portions have in common, small enough to be sent to each process, which opens it there."""

    def open(self) -> Builder[P_contra]: ...


@dataclass
class _Worker:
    process: BaseProcess
    index: int
    """The portion it is at, as an index into the list of portions."""


class Progress:
    """How far each portion is.

    The processes write into shared memory, each portion into its own three numbers and without locks: a
    process killed in between can hold nobody up.
    """

    def __init__(self, num_portions: int) -> None:
        self.shared = multiprocessing.get_context("spawn").RawArray(
            ctypes.c_int64, _NUM_COUNTERS * num_portions
        )
        self.finished: set[int] = set()

    def counted(self, index: int) -> tuple[int, int, int]:
        """Return the documents, text bytes and tokens of a portion so far."""
        documents, text_bytes, tokens = self.shared[_NUM_COUNTERS * index : _NUM_COUNTERS * (index + 1)]
        return documents, text_bytes, tokens

    def add(self, index: int, *increases: int) -> None:
        """Add to the documents, text bytes and tokens of a portion."""
        for number, increase in enumerate(increases):
            self.shared[_NUM_COUNTERS * index + number] += increase


def build_portions(
    job: Job[P],
    portions: Sequence[P],
    num_processes: int,
    *,
    on_tick: Callable[[Progress], None],
    on_failure: Callable[[P, OutlastError], None],
) -> dict[int, OutlastError]:
    """Build portions; return the errors by the number of the portion.

    With one process all happens in this one. ``on_tick`` is called about once a second, ``on_failure`` at
    once.
    """
    progress = Progress(len(portions))
    failures: dict[int, OutlastError] = {}

    def settle(index: int, error: OutlastError | None) -> None:
        progress.finished.add(index)
        if error is not None:
            failures[portions[index].number] = error
            on_failure(portions[index], error)
        on_tick(progress)

    if num_processes == 1:
        builder = job.open()
        for index, portion in enumerate(portions):
            count = _counting(progress.shared, index, lambda: on_tick(progress))
            settle(index, try_to_build(builder, portion, count))
    else:
        _share_out(job, portions, num_processes, progress, lambda: on_tick(progress), settle)
    return failures


def first_failure(failures: Mapping[int, OutlastError], num_portions: int, noun: str) -> OutlastError:
    """Return the error of the first portion that failed, and how many others did."""
    portion, error = min(failures.items())
    return type(error)(
        f"{len(failures)} of {num_portions} {noun}s failed ({list_numbers(sorted(failures))}), "
        f"the others are kept. {noun.capitalize()} {portion}: {error.message}",
        where=error.where,
        expected=error.expected,
        remedy=(error.remedy + "; then " if error.remedy else "") + "run the same command again",
    )


def list_numbers(numbers: Sequence[int]) -> str:
    """Return numbers for a message, the first ten of them."""
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")


def _share_out(
    job: Job[P],
    portions: Sequence[P],
    num_processes: int,
    progress: Progress,
    tick: Callable[[], None],
    settle: Callable[[int, OutlastError | None], None],
) -> None:
    waiting = deque(range(len(portions)))
    workers: dict[Connection, _Worker] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < num_processes:
                index = waiting.popleft()
                connection, process = _start(job, progress)
                workers[connection] = _Worker(process, index)
                _send(connection, (index, portions[index]))
            for ready in wait(list(workers), timeout=_TICK_SECONDS):
                connection = cast(Connection, ready)
                worker = workers[connection]
                index = worker.index
                error, is_alive = _receive(connection, worker)
                if is_alive and waiting:
                    worker.index = waiting.popleft()
                    _send(connection, (worker.index, portions[worker.index]))
                else:
                    _dismiss(connection, workers.pop(connection).process)
                settle(index, error)
            tick()
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.join()


def _start(job: Job[Any], progress: Progress) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(job, theirs, progress.shared), daemon=True)
    process.start()
    theirs.close()  # so that the death of the process closes the pipe
    return ours, process


def _send(connection: Connection, message: tuple[int, Portion] | None) -> None:
    try:
        connection.send(message)
    except OSError:
        return  # it has died; waiting for its answer tells how


def _receive(connection: Connection, worker: _Worker) -> tuple[OutlastError | None, bool]:
    """Return the error of the worker's portion, and whether the worker lives on."""
    try:
        return connection.recv(), True
    except (EOFError, ConnectionError):
        worker.process.join()
        code = worker.process.exitcode or 0
        how = f"by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"with exit code {code}"
        hint = "; it may have run out of memory" if code == -signal.SIGKILL else ""
        error = OutlastError(
            f"The process that built it ended {how}{hint}.",
            remedy="run the same command again, perhaps with fewer processes: --set shards.num_processes=1",
        )
        return error, False


def _dismiss(connection: Connection, process: BaseProcess) -> None:
    _send(connection, None)
    connection.close()
    process.join()


def _work(job: Job[Any], connection: Connection, shared: Any) -> None:
    """The life of a process: build what the parent sends, until it sends None or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends its children
    threading.Thread(target=_die_with_parent, daemon=True).start()
    builder: Builder[Any] | None = None
    while True:
        try:
            message: tuple[int, Portion] | None = connection.recv()
        except EOFError:
            return
        if message is None:
            return
        index, portion = message
        try:
            builder = builder or job.open()
        except OutlastError as error:
            connection.send(error)
            continue
        connection.send(try_to_build(builder, portion, _counting(shared, index)))


def _counting(shared: Any, index: int, on_tick: Callable[[], None] | None = None) -> Count:
    def count(*increases: int) -> None:
        for number, increase in enumerate(increases):
            shared[_NUM_COUNTERS * index + number] += increase
        if on_tick:
            on_tick()

    return count


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def try_to_build(builder: Builder[P], portion: P, count: Count) -> OutlastError | None:
    """Build a portion. Whatever goes wrong, the other portions go on."""
    try:
        builder.build(portion, count)
    except OutlastError as error:
        return error
    except Exception as error:
        if known := explained(error):
            return known
        place = traceback.extract_tb(error.__traceback__)[-1]
        return OutlastError(
            f"Unexpected {type(error).__name__}: {error}", where=f"{place.filename}, line {place.lineno}"
        )
    return None
