"""The end of a build: report, manifest, and the last lines of the log.

In: the records of all portions. Out: ``manifest.json``; from there on there is a data set.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.drops import read_merged
from outlast.cleaning.report import REPORT_NAME, make_report, read_report, summarize, write_report
from outlast.corpus.config import CorpusConfig
from outlast.corpus.read import nothing_to_train_on
from outlast.errors import CorpusError, ShardError, TokenizerError
from outlast.logs import format_count, log
from outlast.prepare.portion import TOKENIZER_FOLDER, TextRecord
from outlast.prepare.unknown import tell_unknown
from outlast.prepare.words import warn_of_words
from outlast.shards.document import MANIFEST_NAME
from outlast.shards.manifest import Manifest, TokenizerEntry, read_manifest, write_manifest
from outlast.shards.record import make_manifest
from outlast.shards.token_format import token_dtype
from outlast.storage import Store
from outlast.tokenizer.manifest import MANIFEST_NAME as TOKENIZER_MANIFEST
from outlast.tokenizer.manifest import TokenizerManifest, read_tokenizer_manifest


def finish(
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    store: Store,
    tokenizer: TokenizerManifest,
    records: Sequence[TextRecord],
    provenance: dict[str, Any],
) -> None:
    """Write the manifest: from here on there is a data set."""
    if cleaning.is_on:
        merged = read_merged(store) if cleaning.needs_scan else None
        report = make_report(cleaning, (r.cleaning for r in records if r.cleaning), merged)
        write_report(store, report)
        provenance["cleaning"] = summarize(report)
    members = _sums(record.members for record in records)
    if members:
        provenance["members"] = members
    if encodings := _sums(record.encodings for record in records):
        listed = provenance["corpus"]["encodings"]
        listed.pop("auto")  # of the tars, as they were listed
        provenance["corpus"]["encodings"] = _sums((listed, encodings))
    entry = TokenizerEntry(
        path=TOKENIZER_FOLDER,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
    )
    provenance |= tell_unknown(records)
    manifest = make_manifest(records, entry, token_dtype(tokenizer.vocab_size).name, provenance)
    if "train" not in manifest.splits:
        held_out = manifest.provenance["counts"].get("validation", {"documents": 0})
        raise nothing_to_train_on(0 if corpus.validation_path else held_out["documents"])
    if "validation" not in manifest.splits:
        _tell_nothing_held_out(corpus, manifest.provenance["counts"]["train"]["documents"])
    undecodable = manifest.provenance["undecodable_bytes"]
    if undecodable:
        first = ", ".join(
            f"{file} at byte {offset}" for file, offset, _ in manifest.provenance["undecodable"][:5]
        )
        log.warning("%d undecodable bytes were replaced by U+FFFD, first: %s", undecodable, first)
    warn_of_words(manifest)
    write_manifest(store, _as_before(store, manifest))
    if members:
        log.info("%s", _describe_members(members))
    for split in manifest.splits:
        counts = manifest.provenance["counts"][split]
        log.info("%s: %d documents, %s tokens", split, counts["documents"], format_count(counts["tokens"]))


def _tell_nothing_held_out(corpus: CorpusConfig, num_documents: int) -> None:
    """Say why there is nothing to evaluate on, where something was asked for."""
    if corpus.validation_path:
        log.warning("nothing is held out: the files of corpus.validation_path hold no document")
    elif corpus.validation_fraction and num_documents == 1:
        log.warning(
            "the corpus is one document: all of it is trained on, in one shard; nothing can be held out, and "
            "no sentence pairs can be made. If it is several documents, say what ends one (corpus.documents, "
            "blank lines between them); to evaluate, name other text as corpus.validation_path"
        )
    elif corpus.validation_fraction:
        log.warning(
            "nothing is held out: of %d documents each had a chance of %g. Raise "
            "corpus.validation_fraction, or name corpus.validation_path",
            num_documents,
            corpus.validation_fraction,
        )


def _describe_members(members: dict[str, int]) -> str:
    read, left_out = members.get("read", 0), members.get("left_out", 0)
    others = [
        f"{count} {kind.removesuffix('s') if count == 1 else kind}"
        for kind, count in members.items()
        if kind not in ("read", "left_out")
    ]
    others += [f"{left_out} by corpus.include and corpus.exclude"] if left_out else []
    return f"tars: {read} members read" + (f"; passed over: {', '.join(others)}" if others else "")


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _as_before(store: Store, manifest: Manifest) -> Manifest:
    """Return the manifest of a data set that was mended, which keeps its pairs. Raises ShardError."""
    if not store.exists(MANIFEST_NAME):
        return manifest
    before, _ = read_manifest(f"{store.url}/{MANIFEST_NAME}")
    if before.fingerprint != manifest.fingerprint:
        raise ShardError(
            "What was missing is made again, and makes another data set than before.",
            where=f"{store.url}/{MANIFEST_NAME}",
            expected=f"fingerprint {before.fingerprint}",
            remedy="restore what was lost, or prepare into another folder",
        )
    return replace(manifest, pairs=before.pairs)


def has_own_tokenizer(url: str) -> bool:
    """Return whether the tokenizer of a data set is there, whole; where not, make it ready to be mended.

    Raises:
        ShardError: the manifest is damaged; another tokenizer.
        StorageError: the store does not answer, or cannot be written.
    """
    manifest, store = read_manifest(url)
    tokenizer = manifest.tokenizer
    try:
        found = read_tokenizer_manifest(store, tokenizer.path).fingerprint
        if found != tokenizer.fingerprint:
            raise ShardError(
                f"The folder holds another tokenizer, {found}.",
                where=f"{store.url}/{tokenizer.path}",
                expected=f"{tokenizer.fingerprint} by the manifest",
                remedy="restore it, or delete the folder and give the same line again",
            )
    except TokenizerError as error:
        log.warning("%s", error)
        store.delete(f"{tokenizer.path}/{TOKENIZER_MANIFEST}")
        return False
    return True


def read_cleaning_report(url: str) -> dict[str, Any]:
    """Return what cleaning dropped and changed in a data set. Raises ShardError, or CorpusError where there
    is no report or that of another data set.
    """
    manifest, store = read_manifest(url)
    report = read_report(store)
    if summarize(report) != manifest.provenance.get("cleaning"):
        raise CorpusError(
            "The report is that of another data set.",
            where=store.url_of(REPORT_NAME),
            expected="the counts that the manifest has in provenance.cleaning",
            remedy="restore the file, or prepare again into another folder",
        )
    return report
