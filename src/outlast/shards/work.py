"""Working off the pieces of a job, with a line of progress for a person.

In: a job and its pieces. Out: nothing but what the job writes. A piece that fails is named at once; the
others go on.
"""

import time
from collections.abc import Sequence

from outlast.corpus.plan import PieceJob
from outlast.errors import OutlastError
from outlast.logs import ProgressLine, format_count, log
from outlast.shards.processes import Job, Progress, build_pieces, first_failure


def work_off(
    job: Job[PieceJob], pieces: Sequence[PieceJob], num_shards: int, num_processes: int, what: str
) -> None:
    """Do a job for each of the pieces, showing how far it is as ``what``.

    Raises:
        OutlastError: the error of the first piece that failed, once all others are finished.
    """
    if not pieces:
        return
    total = sum(piece.size_bytes for piece in pieces)
    began = time.monotonic()

    def on_failure(piece: PieceJob, error: OutlastError) -> None:
        log.error("piece %d of %d failed: %s", piece.piece, num_shards, error)

    with ProgressLine(what, total) as line:

        def on_tick(progress: Progress) -> None:
            counted = [progress.counted(index) for index in range(len(pieces))]
            sizes = [piece.size_bytes for piece in pieces]
            done = sum(
                size if index in progress.finished else min(counted[index][1], size)
                for index, size in enumerate(sizes)
            )
            documents, text_bytes, tokens = (sum(numbers) for numbers in zip(*counted, strict=True))
            rate = text_bytes / max(time.monotonic() - began, 1e-9)
            line.update(
                done,
                f"{format_count(documents)} documents, {format_count(text_bytes)}B, "
                + (f"{format_count(tokens)} tokens, " if tokens else "")
                + f"{format_count(rate)}B/s",
            )

        processes = min(num_processes, len(pieces))
        failures = build_pieces(job, pieces, processes, on_tick=on_tick, on_failure=on_failure)
    if failures:
        raise first_failure(failures, len(pieces), "piece")
