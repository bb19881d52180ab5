"""Raw text becomes a data set: corpus, then tokenizer, then shards, then the manifest that makes it count.

In: the first three tables of a recipe and a folder (or URL) for the result. Out: the URL of
``manifest.json``, which appears last. Every step is found done or done anew, so a build that was killed
goes on where it stopped, and ends with the same bytes as one that was not (docs/design/building_shards.md).
"""

from collections.abc import Sequence

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.merge import delete_scans
from outlast.cleaning.scan import ScanJob
from outlast.corpus.config import CorpusConfig
from outlast.corpus.plan import CorpusFile, PieceJob, list_corpus, plan_pieces
from outlast.errors import ConfigError
from outlast.logs import format_count, log
from outlast.prepare.duplicates import ensure_duplicates_found
from outlast.prepare.finish import finish
from outlast.prepare.identity import agree_on_build, build_identity, describe_files
from outlast.prepare.tasks import Task, others_have_work, share_of
from outlast.prepare.tokenizer import ensure_tokenizer
from outlast.shards.build import finished_pieces
from outlast.shards.config import ShardsConfig, resolve_num_processes, resolve_num_shards
from outlast.shards.manifest import MANIFEST_NAME
from outlast.shards.pair_build import add_pairs
from outlast.shards.piece import BuildJob
from outlast.shards.work import work_off
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig

NO_CLEANING = CleaningConfig()
TOKENIZER_WAIT_SECONDS = 4 * 3600.0


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
    identity, versions = build_identity(corpus, cleaning, tokenizer, num_shards, files, held_out)
    versions = agree_on_build(store, identity, versions, cleaning)
    manifest_url = f"{out.rstrip('/')}/{MANIFEST_NAME}"
    if store.exists(MANIFEST_NAME):
        log.info("complete already: %s", manifest_url)
        _add_pairs(manifest_url, shards)
        return manifest_url

    pieces = _pieces(files, held_out, num_shards)
    num_processes = resolve_num_processes(shards)
    if cleaning.needs_scan:
        scan = ScanJob(corpus=corpus, cleaning=cleaning, out=out)
        ensure_duplicates_found(scan, store, pieces, num_processes, task, tokenizer_wait_seconds)
    trained = ensure_tokenizer(corpus, cleaning, tokenizer, store, pieces, task, tokenizer_wait_seconds)
    job = BuildJob(
        corpus=corpus,
        out=out,
        num_shards=num_shards,
        tokenizer_fingerprint=trained.fingerprint,
        cleaning=cleaning,
    )
    work_off(job, share_of(pieces, finished_pieces(store), task), num_shards, num_processes, "shards")

    if others_have_work(store, num_shards):
        return None
    provenance = {"corpus": {**identity["corpus"], **describe_files(files, held_out)}, "versions": versions}
    if task is None:  # with tasks, another one may be writing
        for leftover in store.list_leftovers():
            store.delete(leftover)
        delete_scans(store)
    finish(corpus, cleaning, store, trained, num_shards, provenance)
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


def _pieces(files: Sequence[CorpusFile], held_out: Sequence[CorpusFile], num_shards: int) -> list[PieceJob]:
    cuts = zip(plan_pieces(files, num_shards), plan_pieces(held_out, num_shards), strict=True)
    return [
        PieceJob(piece=number, extents=extents, held_out=held) for number, (extents, held) in enumerate(cuts)
    ]
