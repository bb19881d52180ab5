"""The end of a build: report, manifest, what is said of it.

In: the records of all pieces. Out: ``manifest.json``; from there on there is a data set.
"""

from typing import Any

from outlast.build.plan import read_record_as
from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.drops import read_merged
from outlast.cleaning.report import make_report, read_report, summarize, write_report
from outlast.corpus.config import CorpusConfig
from outlast.errors import CorpusError
from outlast.logs import format_count, log
from outlast.prepare.piece import TOKENIZER_FOLDER, TextRecord
from outlast.prepare.unknown import tell_unknown
from outlast.prepare.words import warn_of_words
from outlast.shards.manifest import TokenizerEntry, read_manifest, write_manifest
from outlast.shards.record import make_manifest
from outlast.shards.token_format import token_dtype
from outlast.storage import Store
from outlast.tokenizer.manifest import TokenizerManifest


def finish(
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    store: Store,
    tokenizer: TokenizerManifest,
    num_shards: int,
    provenance: dict[str, Any],
) -> None:
    """Write the manifest: from here on there is a data set."""
    records = [read_record_as(TextRecord, store, piece) for piece in range(num_shards)]
    if cleaning.is_on:
        merged = read_merged(store) if cleaning.needs_scan else None
        report = make_report(cleaning, (r.cleaning for r in records if r.cleaning), merged)
        write_report(store, report)
        provenance["cleaning"] = summarize(report)
    entry = TokenizerEntry(
        path=TOKENIZER_FOLDER,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
    )
    provenance |= tell_unknown(records)
    manifest = make_manifest(records, entry, token_dtype(tokenizer.vocab_size).name, provenance)
    if "train" not in manifest.splits:
        raise CorpusError(
            "The corpus holds no document to train on.",
            expected="text that is more than white space",
            remedy="check corpus.path, corpus.format and corpus.validation_fraction",
        )
    if "validation" not in manifest.splits and (corpus.validation_fraction or corpus.validation_path):
        log.warning(
            "no document is held out: raise corpus.validation_fraction, or name corpus.validation_path"
        )
    undecodable = manifest.provenance["undecodable_bytes"]
    if undecodable:
        first = ", ".join(
            f"{file} at byte {offset}" for file, offset, _ in manifest.provenance["undecodable"][:5]
        )
        log.warning("%d undecodable bytes were replaced by U+FFFD, first: %s", undecodable, first)
    warn_of_words(manifest)
    write_manifest(store, manifest)
    for split in manifest.splits:
        counts = manifest.provenance["counts"][split]
        log.info("%s: %d documents, %s tokens", split, counts["documents"], format_count(counts["tokens"]))


def read_cleaning_report(url: str) -> dict[str, Any]:
    """Return what cleaning dropped and changed in a data set. Raises ShardError, or CorpusError where there
    is no report.
    """
    return read_report(read_manifest(url)[1])
