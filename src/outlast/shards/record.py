"""The record of a portion of text, and the manifest that the records of all portions come to.

In: what became of each portion. Out: the ``Manifest``, a function of the records alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.errors import ShardError
from outlast.shards.manifest import Manifest, ShardEntry, TokenizerEntry

_MAX_LISTED = 100


@dataclass(frozen=True, kw_only=True)
class PortionRecord:
    """What became of a portion.

    Attributes:
        number: of the portion.
        tokenizer_fingerprint: of the tokenizer that made its tokens.
        shards: the shard of each split that got a document.
        text_bytes: UTF-8 bytes of the documents, by split.
        skipped: documents that were left out, by reason.
        undecodable_bytes: bytes that were replaced by U+FFFD.
        undecodable: the first places of such bytes: file, offset, number of bytes.
    """

    number: int
    tokenizer_fingerprint: str
    shards: dict[str, ShardEntry]
    text_bytes: dict[str, int]
    skipped: dict[str, int]
    undecodable_bytes: int
    undecodable: list[tuple[str, int, int]]

    @property
    def files(self) -> tuple[ShardEntry, ...]:
        """The files that the portion consists of."""
        return tuple(self.shards.values())


def shard_name(split: str, portion: int, num_shards: int) -> str:
    """Return the name of a shard: ``train-00003-of-00016.safetensors``."""
    return f"{split}-{portion:05d}-of-{num_shards:05d}.safetensors"


def make_manifest(
    records: Sequence[PortionRecord],
    tokenizer: TokenizerEntry,
    token_dtype: str,
    provenance: Mapping[str, Any],
) -> Manifest:
    """Put the records of all portions together, in the order of the portions.

    Raises:
        ShardError: a portion was made with another tokenizer.
    """
    splits: dict[str, tuple[ShardEntry, ...]] = {}
    counts: dict[str, dict[str, int]] = {}
    for split in ("train", "validation"):
        entries = tuple(record.shards[split] for record in records if split in record.shards)
        if entries:
            splits[split] = entries
            counts[split] = {
                "documents": sum(entry.num_documents for entry in entries),
                "text_bytes": sum(record.text_bytes.get(split, 0) for record in records),
                "tokens": sum(entry.num_tokens for entry in entries),
            }
    for record in records:
        if record.tokenizer_fingerprint != tokenizer.fingerprint:
            raise ShardError(
                f"Portion {record.number} was made with the tokenizer {record.tokenizer_fingerprint}.",
                expected=tokenizer.fingerprint,
                remedy="the tokenizer was exchanged during the build: delete the folder, prepare again",
            )
    reasons = sorted({reason for record in records for reason in record.skipped})
    listed = [list(place) for record in records for place in record.undecodable][:_MAX_LISTED]
    return Manifest(
        token_dtype=token_dtype,
        tokenizer=tokenizer,
        splits=splits,
        provenance={
            **provenance,
            "counts": counts,
            "skipped_documents": {
                reason: sum(r.skipped.get(reason, 0) for r in records) for reason in reasons
            },
            "undecodable_bytes": sum(record.undecodable_bytes for record in records),
            "undecodable": listed,
        },
    )
