"""Raw text becomes a data set: corpus, then tokenizer, then shards, then the manifest that makes it count.

In: the first three tables of a recipe and a folder (or URL) for the result. Out: the URL of
``manifest.json``, which appears last. Every step is found done or done anew, so a build that was killed
goes on where it stopped, and ends with the same bytes as one that was not (docs/design/building_shards.md).
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any

from outlast import __version__
from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.documents import DocumentCleaning
from outlast.cleaning.drops import MERGED_NAME, read_merged
from outlast.cleaning.libraries import library_versions
from outlast.cleaning.merge import delete_scans, find_duplicates
from outlast.cleaning.report import make_report, summarize, write_report
from outlast.cleaning.scan import ScanJob, scanned_pieces
from outlast.cleaning.tally import CleaningTally
from outlast.config import to_dict
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import CorpusFile, PieceJob, list_corpus, plan_pieces
from outlast.corpus.read import read_documents, split_chooser
from outlast.errors import ConfigError, CorpusError, ShardError, TokenizerError
from outlast.logs import format_count, log
from outlast.shards.build import agree_on_plan, finished_pieces, make_manifest, read_record
from outlast.shards.config import ShardsConfig, resolve_num_processes, resolve_num_shards
from outlast.shards.manifest import MANIFEST_NAME, TokenizerEntry, write_manifest
from outlast.shards.pair_build import add_pairs
from outlast.shards.piece import TOKENIZER_FOLDER, BuildJob
from outlast.shards.processes import list_numbers
from outlast.shards.token_format import token_dtype
from outlast.shards.work import work_off
from outlast.storage import Store, open_store, split_url
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.manifest import (
    MANIFEST_NAME as TOKENIZER_MANIFEST_NAME,
)
from outlast.tokenizer.manifest import (
    TokenizerManifest,
    read_tokenizer,
    read_tokenizer_manifest,
    write_tokenizer,
)
from outlast.tokenizer.train import train_tokenizer

NO_CLEANING = CleaningConfig()
TOKENIZER_WAIT_SECONDS = 4 * 3600.0
_POLL_SECONDS = 2.0

Task = tuple[int, int]
"""This share of the pieces, and how many shares there are: 0 of 4 to 3 of 4."""


def parse_task(text: str | None) -> Task | None:
    """Parse ``i/N``; None stays None. Raises ConfigError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if not match or int(match[1]) >= int(match[2]):
        raise ConfigError(
            f"Cannot read the task {text!r}.", where="--task", expected="I/N with I from 0 to N-1"
        )
    return int(match[1]), int(match[2])


def prepare_data(
    corpus: CorpusConfig,
    tokenizer: TokenizerConfig,
    shards: ShardsConfig,
    out: str,
    *,
    cleaning: CleaningConfig = NO_CLEANING,
    task: Task | None = None,
    tokenizer_wait_seconds: float = TOKENIZER_WAIT_SECONDS,
) -> str | None:
    """Make tokenizer, token shards and manifest from raw text, or go on with what a killed build has left.

    With ``shards.num_processes`` other than 1, a script that calls this needs ``if __name__ ==
    "__main__":``, since its processes load the script's module again.

    Args:
        out: folder or URL of the result.
        cleaning: what is done to documents before they are tokenized, by default nothing.
        task: build only this share of the pieces; task 0 trains the tokenizer, the others wait for it. Where
            duplicates are dropped, task 0 waits for the scans of the others.
        tokenizer_wait_seconds: how long they wait.

    Returns:
        the URL of the manifest; None where other tasks still have pieces to build.

    Raises:
        ConfigError: the cleaning needs a library that is missing; pairs of documents without sentences.
        CorpusError: the corpus is missing, empty or cannot be read. What is finished is kept.
        TokenizerError: the tokenizer cannot be trained or loaded.
        ShardError: the folder belongs to another build, or no pairs can be made of its documents.
        StorageError: the result cannot be written.
    """
    _check_pairs(corpus, shards)
    store = open_store(out)
    files = list_corpus(corpus)
    held_out = list_corpus(corpus, held_out=True) if corpus.validation_path is not None else ()
    num_shards = _choose_num_shards(shards, (*files, *held_out))
    identity, versions = _identity(corpus, cleaning, tokenizer, num_shards, files, held_out)
    versions = _agree(store, identity, versions, cleaning)
    manifest_url = f"{out.rstrip('/')}/{MANIFEST_NAME}"
    if store.exists(MANIFEST_NAME):
        log.info("complete already: %s", manifest_url)
        _add_pairs(manifest_url, shards)
        return manifest_url

    pieces = _pieces(files, held_out, num_shards)
    num_processes = resolve_num_processes(shards)
    if cleaning.needs_scan:
        scan = ScanJob(corpus=corpus, cleaning=cleaning, out=out)
        _ensure_duplicates_found(scan, store, pieces, num_processes, task, tokenizer_wait_seconds)
    trained = _ensure_tokenizer(corpus, cleaning, tokenizer, store, pieces, task, tokenizer_wait_seconds)
    job = BuildJob(
        corpus=corpus,
        out=out,
        num_shards=num_shards,
        tokenizer_fingerprint=trained.fingerprint,
        cleaning=cleaning,
    )
    work_off(job, _share(pieces, finished_pieces(store), task), num_shards, num_processes, "shards")

    if _others_have_work(store, num_shards):
        return None
    provenance = {"corpus": {**identity["corpus"], **_describe_files(files, held_out)}, "versions": versions}
    if task is None:  # with tasks, another one may be writing
        for leftover in store.list_leftovers():
            store.delete(leftover)
        delete_scans(store)
    _finish(corpus, cleaning, store, trained, num_shards, provenance)
    _add_pairs(manifest_url, shards)
    return manifest_url


def _check_pairs(corpus: CorpusConfig, shards: ShardsConfig) -> None:
    if shards.pairs.lengths and corpus.sentences == "none":
        raise ConfigError(
            "Pairs are made of sentences, and the documents are not divided into any.",
            where="shards.pairs",
            remedy="set corpus.sentences",
        )


def _add_pairs(manifest_url: str, shards: ShardsConfig) -> None:
    """Build the pair tables that are asked for: who finds all shards there builds all of them."""
    if shards.pairs.lengths:
        add_pairs(manifest_url, shards.pairs, num_processes=resolve_num_processes(shards))


def _choose_num_shards(shards: ShardsConfig, files: Sequence[CorpusFile]) -> int:
    num_bytes = sum(file.size_bytes for file in files)
    num_shards = resolve_num_shards(shards, num_bytes)
    log.info("corpus: %d files, %sB, %d shards", len(files), format_count(num_bytes), num_shards)
    return num_shards


def _identity(
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    tokenizer: TokenizerConfig,
    num_shards: int,
    files: Sequence[CorpusFile],
    held_out: Sequence[CorpusFile],
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what the result depends on, and the versions of what makes it.

    Where the corpus lies is no part of it: a copy on another machine is the same corpus.
    """
    tokenizer_values = to_dict(tokenizer)
    library: str = tokenizer.library
    if tokenizer.path is not None:
        existing = _read_existing(tokenizer.path)[0]
        tokenizer_values = {"fingerprint": existing.fingerprint}
        library = existing.library
    corpus_values = to_dict(corpus)
    corpus_values.pop("path")
    corpus_values["validation_path"] = corpus.validation_path is not None
    identity = {
        "corpus": corpus_values,
        **({"cleaning": to_dict(cleaning)} if cleaning.is_on else {}),
        "tokenizer": {key: value for key, value in tokenizer_values.items() if key != "path"},
        "num_shards": num_shards,
        "files": {file.name: _describe_file(file) for file in files},
        "held_out_files": {file.name: _describe_file(file) for file in held_out},
    }
    return identity, {"outlast": __version__, library: version(library)}


def _agree(
    store: Store, identity: dict[str, Any], versions: dict[str, str], cleaning: CleaningConfig
) -> dict[str, str]:
    """Agree on the plan; return the versions that the build was begun with.

    An unfinished build is not gone on with by other versions of what cleans its documents.
    """
    cleaning_versions = {} if store.exists(MANIFEST_NAME) else library_versions(cleaning)
    begun = agree_on_plan(store, identity, versions | cleaning_versions)
    for name, number in cleaning_versions.items():
        if begun.get(name) != number:
            raise ShardError(
                f"The build was begun with {name} {begun.get(name)}, here is {number}.",
                where=store.url,
                expected="one version throughout, for what it computes may differ",
                remedy=f"install {name} {begun.get(name)}, or prepare into another folder",
            )
    return begun


def _others_have_work(store: Store, num_shards: int) -> bool:
    """Return whether pieces are unfinished, and say which."""
    unfinished = sorted(set(range(num_shards)) - finished_pieces(store))
    if unfinished:
        log.info(
            "%d of %d pieces are left to other tasks: %s",
            len(unfinished),
            num_shards,
            list_numbers(unfinished),
        )
    return bool(unfinished)


def _describe_file(file: CorpusFile) -> list[str | int]:
    return [file.size_bytes, file.digest, file.encoding]


def _describe_files(files: Sequence[CorpusFile], held_out: Sequence[CorpusFile]) -> dict[str, Any]:
    encodings = [file.encoding for file in (*files, *held_out) if file.encoding]
    return {
        "num_files": len(files) + len(held_out),
        "size_bytes": sum(file.size_bytes for file in (*files, *held_out)),
        "encodings": {name: encodings.count(name) for name in sorted(set(encodings))},
    }


def _pieces(files: Sequence[CorpusFile], held_out: Sequence[CorpusFile], num_shards: int) -> list[PieceJob]:
    cuts = zip(plan_pieces(files, num_shards), plan_pieces(held_out, num_shards), strict=True)
    return [
        PieceJob(piece=number, extents=extents, held_out=held) for number, (extents, held) in enumerate(cuts)
    ]


def _share(pieces: Sequence[PieceJob], finished: set[int], task: Task | None) -> list[PieceJob]:
    """Return the unfinished pieces of a task."""
    index, count = task or (0, 1)
    return [piece for piece in pieces if piece.piece not in finished and piece.piece % count == index]


def _ensure_duplicates_found(
    job: ScanJob,
    store: Store,
    pieces: Sequence[PieceJob],
    num_processes: int,
    task: Task | None,
    wait_seconds: float,
) -> None:
    """Scan this share of the corpus; task 0 then decides for all of it which documents are dropped."""
    if not store.exists(MERGED_NAME):
        work_off(job, _share(pieces, scanned_pieces(store), task), len(pieces), num_processes, "scan")
        if task is not None and task[0] > 0:
            return  # what task 0 decides is there once its tokenizer is
        missing = set(range(len(pieces)))

        def is_scanned() -> bool:
            missing.difference_update(scanned_pieces(store))
            return not missing

        if not _wait(is_scanned, wait_seconds):
            raise CorpusError(
                f"{len(missing)} of {len(pieces)} pieces are not scanned for duplicates after "
                f"{wait_seconds:.0f} seconds: {list_numbers(sorted(missing))}.",
                where=store.url,
                remedy="start the other tasks, whose pieces they are, then this one again",
            )
        find_duplicates(store, job.cleaning, len(pieces))
    delete_scans(store)
    merged = read_merged(store)
    found = [f"{count} {reason.replace('_', ' ')}s" for reason, count in merged.dropped.items()]
    found += [f"{merged.dropped_lines} duplicate lines"] if merged.dropped_lines else []
    log.info("cleaning: of %d documents %s", merged.num_documents, ", ".join(found) or "no two are alike")


def _wait(is_there: Callable[[], bool], wait_seconds: float) -> bool:
    """Wait until something is there; return whether it is."""
    deadline = time.monotonic() + wait_seconds
    while not is_there():
        if time.monotonic() > deadline:
            return False
        time.sleep(min(_POLL_SECONDS, max(deadline - time.monotonic(), 0.0)))
    return True


def _ensure_tokenizer(
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    config: TokenizerConfig,
    store: Store,
    pieces: Sequence[PieceJob],
    task: Task | None,
    wait_seconds: float,
) -> TokenizerManifest:
    """Return the tokenizer of the output folder: found there, trained, copied, or waited for."""
    name = f"{TOKENIZER_FOLDER}/{TOKENIZER_MANIFEST_NAME}"
    if task is not None and task[0] > 0 and not store.exists(name):
        log.info("waiting for task 0/%d, which makes the tokenizer", task[1])
        if not _wait(lambda: store.exists(name), wait_seconds):
            raise TokenizerError(
                f"There is no tokenizer after {wait_seconds:.0f} seconds.",
                where=f"{store.url}/{name}",
                remedy=f"start `--task 0/{task[1]}`, which makes it, then this one again",
            )
    if store.exists(name):
        return read_tokenizer_manifest(store, TOKENIZER_FOLDER)
    if config.path is not None:
        manifest, content = _read_existing(config.path)
        write_tokenizer(store, TOKENIZER_FOLDER, manifest, content)
        return manifest

    def documents() -> Iterator[str]:
        # Held-out text must not shape the vocabulary either.
        choose = split_chooser(corpus)
        stage = DocumentCleaning(cleaning, store)
        for piece in pieces:
            read = read_documents(corpus, piece.extents, Tally())
            for text in stage.clean(read, piece.piece, "corpus", CleaningTally()):
                if choose(text) == "train":
                    yield text

    return train_tokenizer(config, documents, store, TOKENIZER_FOLDER, report=log.info)


def _read_existing(path: str) -> tuple[TokenizerManifest, dict[str, bytes]]:
    folder, name = split_url(path.rstrip("/"))
    return read_tokenizer(open_store(folder), name)


def _finish(
    corpus: CorpusConfig,
    cleaning: CleaningConfig,
    store: Store,
    tokenizer: TokenizerManifest,
    num_shards: int,
    provenance: dict[str, Any],
) -> None:
    """Write the manifest: from here on there is a data set."""
    records = [read_record(store, piece) for piece in range(num_shards)]
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
    write_manifest(store, manifest)
    for split in manifest.splits:
        counts = manifest.provenance["counts"][split]
        log.info("%s: %d documents, %s tokens", split, counts["documents"], format_count(counts["tokens"]))
