"""Building pieces side by side in processes that die with their parent.

In: pieces. Out: the error of each piece that failed; the others are finished. A process that is killed
costs the piece it was at, no more, and leaves nothing half-written: what a piece leaves behind appears
whole or not at all.
"""

import ctypes
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

from outlast.errors import OutlastError
from outlast.shards.piece import BuildJob, Count, PieceBuilder, PieceJob

_TICK_SECONDS = 1.0
_NUM_COUNTERS = 3


@dataclass
class _Worker:
    process: BaseProcess
    index: int
    """The piece it is at, as an index into the list of pieces."""


class Progress:
    """How far each piece is.

    The processes write into shared memory, each piece into its own three numbers and without locks: a process
    killed in between can hold nobody up.
    """

    def __init__(self, num_pieces: int) -> None:
        self.shared = multiprocessing.get_context("spawn").RawArray(
            ctypes.c_int64, _NUM_COUNTERS * num_pieces
        )
        self.finished: set[int] = set()

    def counted(self, index: int) -> tuple[int, int, int]:
        """Return the documents, text bytes and tokens of a piece so far."""
        documents, text_bytes, tokens = self.shared[_NUM_COUNTERS * index : _NUM_COUNTERS * (index + 1)]
        return documents, text_bytes, tokens


def build_pieces(
    job: BuildJob,
    pieces: Sequence[PieceJob],
    num_processes: int,
    *,
    on_tick: Callable[[Progress], None],
    on_failure: Callable[[PieceJob, OutlastError], None],
) -> dict[int, OutlastError]:
    """Build pieces; return the errors by the number of the piece.

    With one process all happens in this one. ``on_tick`` is called about once a second, ``on_failure`` at
    once.
    """
    progress = Progress(len(pieces))
    failures: dict[int, OutlastError] = {}

    def settle(index: int, error: OutlastError | None) -> None:
        progress.finished.add(index)
        if error is not None:
            failures[pieces[index].piece] = error
            on_failure(pieces[index], error)
        on_tick(progress)

    if num_processes == 1:
        builder = PieceBuilder(job)
        for index, piece in enumerate(pieces):
            count = _counting(progress.shared, index, lambda: on_tick(progress))
            settle(index, _try_to_build(builder, piece, count))
    else:
        _share_out(job, pieces, num_processes, progress, lambda: on_tick(progress), settle)
    return failures


def _share_out(
    job: BuildJob,
    pieces: Sequence[PieceJob],
    num_processes: int,
    progress: Progress,
    tick: Callable[[], None],
    settle: Callable[[int, OutlastError | None], None],
) -> None:
    waiting = deque(range(len(pieces)))
    workers: dict[Connection, _Worker] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < num_processes:
                index = waiting.popleft()
                connection, process = _start(job, progress)
                workers[connection] = _Worker(process, index)
                _send(connection, (index, pieces[index]))
            for ready in wait(list(workers), timeout=_TICK_SECONDS):
                connection = cast(Connection, ready)
                worker = workers[connection]
                index = worker.index
                error, is_alive = _receive(connection, worker)
                if is_alive and waiting:
                    worker.index = waiting.popleft()
                    _send(connection, (worker.index, pieces[worker.index]))
                else:
                    _dismiss(connection, workers.pop(connection).process)
                settle(index, error)
            tick()
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.join()


def _start(job: BuildJob, progress: Progress) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(job, theirs, progress.shared), daemon=True)
    process.start()
    theirs.close()  # so that the death of the process closes the pipe
    return ours, process


def _send(connection: Connection, message: tuple[int, PieceJob] | None) -> None:
    try:
        connection.send(message)
    except OSError:
        return  # it has died; waiting for its answer tells how


def _receive(connection: Connection, worker: _Worker) -> tuple[OutlastError | None, bool]:
    """Return the error of the worker's piece, and whether the worker lives on."""
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


def _work(job: BuildJob, connection: Connection, shared: Any) -> None:
    """The life of a process: build what the parent sends, until it sends None or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends its children
    threading.Thread(target=_die_with_parent, daemon=True).start()
    builder: PieceBuilder | None = None
    while True:
        try:
            message: tuple[int, PieceJob] | None = connection.recv()
        except EOFError:
            return
        if message is None:
            return
        index, piece = message
        try:
            builder = builder or PieceBuilder(job)
        except OutlastError as error:
            connection.send(error)
            continue
        connection.send(_try_to_build(builder, piece, _counting(shared, index)))


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


def _try_to_build(builder: PieceBuilder, piece: PieceJob, count: Count) -> OutlastError | None:
    """Build a piece. Whatever goes wrong, the other pieces go on."""
    try:
        builder.build(piece, count)
    except OutlastError as error:
        return error
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return OutlastError(
            f"Unexpected {type(error).__name__}: {error}", where=f"{place.filename}, line {place.lineno}"
        )
    return None
