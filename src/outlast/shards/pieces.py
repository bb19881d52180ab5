"""Pieces of a build that reads files, side by side in processes, with a line of progress.

In: a job and its pieces. Out: every piece built, or the first error once the others are finished. A piece
that a killed run had finished is not built again.
"""

import os
import time
from collections.abc import Sequence

from outlast.errors import OutlastError
from outlast.logs import ProgressLine, format_count, log
from outlast.shards.build import R, delete_leftovers, finished_pieces, read_record_as, withdraw_plan
from outlast.shards.processes import Job, P, Progress, build_pieces, first_failure
from outlast.storage import Store


def run_pieces(
    what: str,
    job: Job[P],
    pieces: Sequence[P],
    store: Store,
    num_processes: int | None,
    *,
    record_type: type[R],
    counted: tuple[str, str, str] = ("records", "B", "tokens"),
) -> list[R]:
    """Build the pieces that are not finished yet; return the records of all.

    Where no piece could be built the plan is withdrawn.

    Args:
        what: for the line of progress.
        store: of the result.
        num_processes: at most so many; None: one for each core.
        record_type: the dataclass that a finished piece leaves.
        counted: what the pieces count, for the line of progress; "" for nothing.

    Raises:
        OutlastError: what went wrong with the first piece that failed.
    """
    finished = finished_pieces(store)
    missing = [piece for piece in pieces if piece.piece not in finished]
    if missing:
        most = num_processes or len(os.sched_getaffinity(0))
        try:
            _build(what, job, missing, min(most, len(missing)), counted)
        except OutlastError:
            withdraw_plan(store)
            raise
    delete_leftovers(store)
    return [read_record_as(record_type, store, piece.piece) for piece in pieces]


def _build(
    what: str, job: Job[P], pieces: Sequence[P], num_processes: int, names: tuple[str, str, str]
) -> None:
    began = time.monotonic()

    def on_failure(piece: P, error: OutlastError) -> None:
        log.error("piece %d failed: %s", piece.piece, error)

    with ProgressLine(what, len(pieces)) as line:

        def on_tick(progress: Progress) -> None:
            totals = [sum(n) for n in zip(*map(progress.counted, range(len(pieces))), strict=True)]
            rate = totals[0] / max(time.monotonic() - began, 1e-9)
            # "12k records, 3.1MB": a unit of one letter stands at its number.
            shown = [
                format_count(total) + (name if len(name) == 1 else f" {name}")
                for total, name in zip(totals, names, strict=True)
                if name
            ]
            line.update(len(progress.finished), ", ".join([*shown, f"{format_count(rate)} {names[0]}/s"]))

        failures = build_pieces(job, pieces, num_processes, on_tick=on_tick, on_failure=on_failure)
    if failures:
        raise first_failure(failures, len(pieces), "piece")
