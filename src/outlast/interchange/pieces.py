"""The record that each piece of an import or an export leaves: that of a build of text."""

from outlast.shards.manifest import ShardEntry
from outlast.shards.record import PieceRecord

COUNTED = ("records", "B", "tokens")
"""What they count, for the line of progress."""


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
