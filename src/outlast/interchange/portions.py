"""The record that each portion of an import or an export leaves, of the same kind as in a build of text."""

from outlast.shards.manifest import ShardEntry
from outlast.shards.record import PortionRecord

COUNTED = ("records", "B", "tokens")
"""What they count, for the line of progress."""


def make_record(portion: int, tokenizer_fingerprint: str, shards: dict[str, ShardEntry]) -> PortionRecord:
    """Return the record of a portion that was not made from text."""
    return PortionRecord(
        number=portion,
        tokenizer_fingerprint=tokenizer_fingerprint,
        shards=shards,
        text_bytes={},
        skipped={},
        undecodable_bytes=0,
        undecodable=[],
    )
