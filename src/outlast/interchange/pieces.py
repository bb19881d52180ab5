"""Pieces of an import or an export, side by side in processes, with a line of progress.

In: a job and its pieces. Out: every piece built, or the first error once the others are finished. A piece
that a killed run had finished is not built again.
"""

import os
import time
from collections.abc import Sequence

from outlast.errors import OutlastError
from outlast.logs import ProgressLine, format_count, log
from outlast.shards.build import PieceRecord, finished_pieces, read_record
from outlast.shards.manifest import ShardEntry
from outlast.shards.processes import Job, P, Progress, build_pieces, first_failure
from outlast.storage import Store


def run_pieces(
    what: str, job: Job[P], pieces: Sequence[P], store: Store, num_processes: int | None
) -> list[PieceRecord]:
    """Build the pieces that are not finished yet; return the records of all.

    Args:
        what: for the line of progress.
        store: of the result.
        num_processes: at most so many; None: one for each core.

    Raises:
        OutlastError: what went wrong with the first piece that failed.
    """
    finished = finished_pieces(store)
    missing = [piece for piece in pieces if piece.piece not in finished]
    if missing:
        _build(what, job, missing, min(num_processes or len(os.sched_getaffinity(0)), len(missing)))
    for leftover in store.list_leftovers():
        store.delete(leftover)
    return [read_record(store, piece.piece) for piece in pieces]


def make_record(piece: int, tokenizer_fingerprint: str, shards: dict[str, ShardEntry]) -> PieceRecord:
    """Return the record of a piece that was not made from text."""
    return PieceRecord(
        piece=piece,
        tokenizer_fingerprint=tokenizer_fingerprint,
        shards=shards,
        text_bytes={},
        skipped={},
        undecodable_bytes=0,
        undecodable=[],
    )


def _build(what: str, job: Job[P], pieces: Sequence[P], num_processes: int) -> None:
    began = time.monotonic()

    def on_failure(piece: P, error: OutlastError) -> None:
        log.error("piece %d failed: %s", piece.piece, error)

    with ProgressLine(what, len(pieces)) as line:

        def on_tick(progress: Progress) -> None:
            counted = [progress.counted(index) for index in range(len(pieces))]
            records, num_bytes, tokens = (sum(numbers) for numbers in zip(*counted, strict=True))
            rate = records / max(time.monotonic() - began, 1e-9)
            line.update(
                len(progress.finished),
                f"{format_count(records)} records, {format_count(num_bytes)}B, "
                f"{format_count(tokens)} tokens, {format_count(rate)} records/s",
            )

        failures = build_pieces(job, pieces, num_processes, on_tick=on_tick, on_failure=on_failure)
    if failures:
        raise first_failure(failures, len(pieces), "piece")
