"""Working off the pieces of a job, with a line of progress for a person.

In: a job and its pieces. Out: nothing but what the job writes. A piece that fails is named at once; the
others go on.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from outlast.corpus.plan import PieceJob
from outlast.errors import OutlastError
from outlast.logs import ProgressLine, format_count, format_seconds, log
from outlast.shards.processes import Job, Progress, build_pieces, first_failure


class Run(Protocol):
    """Has pieces built somewhere; returns the errors by the number of the piece (``build_pieces``)."""

    def __call__(
        self,
        job: Job[PieceJob],
        pieces: Sequence[PieceJob],
        *,
        on_tick: Callable[[Progress], None],
        on_failure: Callable[[PieceJob, OutlastError], None],
    ) -> dict[int, OutlastError]: ...


@dataclass(frozen=True)
class InProcesses:
    """Has pieces built by so many processes of this machine."""

    num_processes: int

    def __call__(
        self,
        job: Job[PieceJob],
        pieces: Sequence[PieceJob],
        *,
        on_tick: Callable[[Progress], None],
        on_failure: Callable[[PieceJob, OutlastError], None],
    ) -> dict[int, OutlastError]:
        processes = min(self.num_processes, len(pieces))
        return build_pieces(job, pieces, processes, on_tick=on_tick, on_failure=on_failure)


def work_off(job: Job[PieceJob], pieces: Sequence[PieceJob], num_shards: int, run: Run, what: str) -> None:
    """Do a job for each of the pieces, showing how far it is as ``what``.

    Raises:
        OutlastError: the error of the first piece that failed, once all others are finished.
    """
    if not pieces:
        return

    def on_failure(piece: PieceJob, error: OutlastError) -> None:
        log.error("piece %d of %d failed: %s", piece.piece, num_shards, error)

    with ProgressLine(what, sum(piece.size_bytes for piece in pieces)) as line:
        watched = _Watched(pieces, line)
        failures = run(job, pieces, on_tick=watched.tick, on_failure=on_failure)
    log.info("%s: %s", what, watched.summary())
    if failures:
        raise first_failure(failures, len(pieces), "piece")


def describe_progress(counts: tuple[int, int, int], seconds: float) -> str:
    """Return documents, bytes, tokens and the rates for a person; without tokens where there are none."""
    documents, text_bytes, tokens = counts
    seconds = max(seconds, 1e-9)
    amounts = [f"{format_count(documents)} documents", f"{format_count(text_bytes)}B"]
    rates = [f"{format_count(text_bytes / seconds)}B/s"]
    if tokens:
        amounts.append(f"{format_count(tokens)} tokens")
        rates.append(f"{format_count(tokens / seconds)} tokens/s")
    return ", ".join(amounts + rates)


class _Watched:
    """How far the pieces are, on the line of progress."""

    def __init__(self, pieces: Sequence[PieceJob], line: ProgressLine) -> None:
        self._sizes = [piece.size_bytes for piece in pieces]
        self._line = line
        self._began = time.monotonic()
        self._progress: Progress | None = None

    def tick(self, progress: Progress) -> None:
        """Show it where it is time to: adding up costs more than a small batch."""
        self._progress = progress
        if self._line.is_due():
            counted = [progress.counted(index)[1] for index in range(len(self._sizes))]
            done = sum(
                size if index in progress.finished else min(counted[index], size)
                for index, size in enumerate(self._sizes)
            )
            self._line.update(done, self._describe(progress))

    def summary(self) -> str:
        """Return what was done and how long it took."""
        seconds = time.monotonic() - self._began
        return (
            f"{self._describe(self._progress)} in {format_seconds(seconds)}" if self._progress else "nothing"
        )

    def _describe(self, progress: Progress) -> str:
        counted = [progress.counted(index) for index in range(len(self._sizes))]
        documents, text_bytes, tokens = (sum(numbers) for numbers in zip(*counted, strict=True))
        return describe_progress((documents, text_bytes, tokens), time.monotonic() - self._began)
