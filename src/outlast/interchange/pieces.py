"""Pieces of an import or an export: every one built, by ``build.drive``, and the record of each.

In: a job and its pieces. Out: the records of all pieces, which those of a build of text are as well.
"""

from collections.abc import Sequence

from outlast.build.drive import drive_missing
from outlast.build.processes import Job, P
from outlast.shards.manifest import ShardEntry
from outlast.shards.record import PieceRecord
from outlast.storage import Store


def run_pieces(
    what: str, job: Job[P], pieces: Sequence[P], store: Store, num_processes: int | None
) -> list[PieceRecord]:
    """Build the pieces that are not finished yet; return the records of all, as ``build.drive`` does."""
    return drive_missing(
        what, job, pieces, store, num_processes, record_type=PieceRecord, more_folders=("tokenizer/",)
    )


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
