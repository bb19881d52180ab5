"""Pieces of an import or an export: every one built, by ``shards.pieces``, and the record of each.

In: a job and its pieces. Out: the records of all pieces, which those of a build of text are as well.
"""

from collections.abc import Sequence

from outlast.shards.build import PieceRecord
from outlast.shards.manifest import ShardEntry
from outlast.shards.pieces import run_pieces as run_any_pieces
from outlast.shards.processes import Job, P
from outlast.storage import Store


def run_pieces(
    what: str, job: Job[P], pieces: Sequence[P], store: Store, num_processes: int | None
) -> list[PieceRecord]:
    """Build the pieces that are not finished yet; return the records of all, as ``shards.pieces`` does."""
    return run_any_pieces(what, job, pieces, store, num_processes, record_type=PieceRecord)


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
