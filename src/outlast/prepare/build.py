"""Raw text becomes a data set: corpus, then tokenizer, then shards, then the manifest that makes it count.

In: a recipe, of which the tables of the data half count, and a folder (or URL) for the result. Out: the URL
of ``manifest.json``, which appears last. Every step is found done or done anew, so a build that was killed
goes on where it stopped, and ends with the same bytes as one that was not (docs/design/building_shards.md).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from outlast.build.drive import Build, InProcesses, Run
from outlast.build.failures import delete_notes, noting_failure, tell_failures
from outlast.build.plan import delete_leftovers, finished_portions
from outlast.build.tasks import Task, drive_share, others_have_work
from outlast.cleaning.libraries import library_versions
from outlast.cleaning.merge import delete_scans
from outlast.cleaning.scan import ScanJob
from outlast.config import checked
from outlast.corpus.changes import check_remote
from outlast.corpus.config import CorpusConfig
from outlast.corpus.extent import CorpusFile, TextPortion
from outlast.corpus.files import would_read
from outlast.corpus.formats import describe_corpus
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.errors import ConfigError
from outlast.logs import format_count, log
from outlast.prepare.duplicates import ensure_duplicates_found
from outlast.prepare.finish import finish, has_own_tokenizer
from outlast.prepare.identity import build_identity, describe_files
from outlast.prepare.pairs import add_pairs, other_pairs
from outlast.prepare.portion import BuildJob, TextRecord
from outlast.prepare.tokenizer import ensure_tokenizer
from outlast.prepare.words import find_word_rule, name_words, versions_of
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig, resolve_num_processes, resolve_num_shards
from outlast.shards.document import MANIFEST_NAME
from outlast.shards.manifest import named_files
from outlast.storage import Store, open_store, place_of
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.manifest import TokenizerManifest
from outlast.tokenizer.words import Segmenter

TOKENIZER_WAIT_SECONDS = 4 * 3600.0
_MADE_FIRST = ("cleaning/", "tokenizer/")
_MORE_FOLDERS = (*_MADE_FIRST, "cleaning/scan/", "cleaning/drops/", "failed/")


@checked
def prepare_data(
    recipe: Recipe,
    out: str | Path,
    *,
    segmenter: Segmenter | None = None,
    task: Task | None = None,
    ray: str | None = None,
    tokenizer_wait_seconds: float = TOKENIZER_WAIT_SECONDS,
    verify: bool = False,
) -> str | None:
    """Make tokenizer, token shards and manifest from raw text, or go on with what a killed build has left.

    With ``shards.num_processes`` other than 1, a script that calls this needs ``if __name__ ==
    "__main__":``, since its processes load the script's module again.

    Args:
        recipe: its tables ``corpus``, ``cleaning``, ``tokenizer`` and ``shards``.
        out: folder or URL of the result.
        segmenter: finds words in the text, instead of ``shards.words``.
        task: build only this share of the portions; task 0 trains the tokenizer, the others wait for it.
            Where duplicates are dropped, task 0 waits for the scans of the others.
        ray: build the portions on the Ray cluster at this address (``on_ray``); not with tasks.
        tokenizer_wait_seconds: how long they wait.
        verify: of a data set that is complete already, compare digests and not sizes alone.

    Returns:
        the URL of the manifest; None where other tasks still have portions to build.

    Raises:
        ConfigError: a library that is missing; pairs of documents without sentences; no Ray cluster.
        CorpusError: the corpus is missing, empty or cannot be read. What is finished is kept.
        TokenizerError: the tokenizer cannot be trained or loaded.
        ShardError: the folder belongs to another build, or no pairs can be made of its documents.
        StorageError: the result cannot be written.
    """
    corpus, cleaning, tokenizer, shards = recipe.corpus, recipe.cleaning, recipe.tokenizer, recipe.shards
    out = place_of(out)
    _check(corpus, shards, out, task, ray)
    store, files = open_store(out), list_corpus(corpus)
    held_out = list_corpus(corpus, held_out=True) if corpus.validation_path is not None else ()
    portions = _portions(files, held_out, shards)
    num_shards = len(portions)
    words = name_words(shards, segmenter)
    identity, versions = build_identity(corpus, cleaning, tokenizer, num_shards, files, held_out, words)
    build = Build(store, out, MANIFEST_NAME, identity, TextRecord, versions)
    if build.is_complete(named_files, verify=verify, has_more=lambda: has_own_tokenizer(build.url)):
        return _end(store, build.url, shards, verify=verify)
    rule = find_word_rule(shards, segmenter)
    build.begin({**library_versions(cleaning), **versions_of(rule)})
    scan = ScanJob(corpus=corpus, cleaning=cleaning, out=out)
    with _runner(shards, ray) as run, noting_failure(store, task), _freeing(build, task):
        trained = _ensure_tokenizer(scan, tokenizer, store, portions, run, task, tokenizer_wait_seconds)
        build.begin()
        job = BuildJob(
            corpus=corpus,
            out=out,
            num_shards=num_shards,
            tokenizer_fingerprint=trained.fingerprint,
            cleaning=cleaning,
            words=rule,
        )
        drive_share("shards", job, portions, finished_portions(store), task, run)
        check_remote((*files, *held_out))
    if others_have_work(store, num_shards):
        tell_failures(store)
        return None
    provenance = _provenance(identity, build.versions, files, held_out)
    finish(corpus, cleaning, store, trained, build.records(num_shards), provenance)
    return _end(store, build.url, shards, verify=verify)


def _freeing(build: Build[TextRecord], task: Task | None) -> AbstractContextManager[None]:
    """Free the folder of a build that fails; but the other tasks wait for task 0, whose plan they know."""
    return build.freeing_folder(_MADE_FIRST) if task is None or task[0] == 0 else nullcontext()


def _ensure_tokenizer(
    scan: ScanJob,
    config: TokenizerConfig,
    store: Store,
    portions: Sequence[TextPortion],
    run: Run,
    task: Task | None,
    wait_seconds: float,
) -> TokenizerManifest:
    """Find the duplicates where they are dropped, then return the tokenizer."""
    if scan.cleaning.needs_scan:
        ensure_duplicates_found(scan, store, portions, run, task, wait_seconds)
    return ensure_tokenizer(scan.corpus, scan.cleaning, config, store, portions, task, wait_seconds)


def _provenance(
    identity: dict[str, Any],
    versions: dict[str, str],
    files: Sequence[CorpusFile],
    held_out: Sequence[CorpusFile],
) -> dict[str, Any]:
    described = {**identity["corpus"], **describe_files(files, held_out)}
    words = {"words": identity["words"]} if "words" in identity else {}
    return {"corpus": described, **words, "versions": versions}


def _check(corpus: CorpusConfig, shards: ShardsConfig, out: str, task: Task | None, ray: str | None) -> None:
    for paths in filter(None, (corpus.path, corpus.validation_path)) if "://" not in out else ():
        if found := would_read(paths, corpus.include, corpus.exclude, Path(out, MANIFEST_NAME)):
            raise ConfigError(
                "The result would lie among the texts, and be read as one of them.",
                where=f"--out {out}",
                expected=f"a folder outside {found}",
                remedy="choose another --out, or leave its files out by corpus.include or corpus.exclude",
            )
    if shards.pairs.lengths and corpus.sentences == "none":
        raise ConfigError(
            "Pairs are made of sentences, and the documents are not divided into any.",
            where="shards.pairs",
            remedy="set corpus.sentences",
        )
    if task is not None and ray is not None:
        raise ConfigError(
            "Ray shares out all portions by itself.",
            where="--ray",
            remedy="leave out --task, or leave out --ray",
        )


def _runner(shards: ShardsConfig, ray: str | None) -> AbstractContextManager[Run]:
    if ray is None:
        return nullcontext(InProcesses(resolve_num_processes(shards)))
    from outlast.build.on_ray import on_ray

    return on_ray(ray, shards.num_processes)


def _end(store: Store, manifest_url: str, shards: ShardsConfig, *, verify: bool) -> str:
    """Build all pair tables that are asked for, look again at those that the manifest names, and take away
    what killed processes left; return the URL of the manifest.

    Another task may do the same at this moment: it writes the same bytes, and writes again what is taken away
    before it is whole.
    """
    num_processes = resolve_num_processes(shards)
    for pairs in (shards.pairs, *other_pairs(manifest_url, shards.pairs.lengths or ())):
        if pairs.lengths:
            add_pairs(manifest_url, pairs, num_processes=num_processes, verify=verify)
    delete_leftovers(store, _MORE_FOLDERS)
    delete_scans(store)
    delete_notes(store)
    return manifest_url


def _portions(
    files: Sequence[CorpusFile], held_out: Sequence[CorpusFile], shards: ShardsConfig
) -> list[TextPortion]:
    """Cut the corpus, and say what is read as what and into how many shards."""
    num_bytes = sum(file.size_bytes for file in (*files, *held_out))
    num_shards = resolve_num_shards(shards, num_bytes)
    cuts = zip(plan_portions(files, num_shards), plan_portions(held_out, num_shards), strict=True)
    portions = [
        TextPortion(number=number, extents=extents, held_out=held)
        for number, (extents, held) in enumerate(cuts)
    ]
    num_with_text = sum(bool(portion.extents or portion.held_out) for portion in portions)
    said = f"{num_with_text} shard{'' if num_with_text == 1 else 's'}"
    if num_with_text < num_shards:
        said += f", fewer than {num_shards}: what is compressed or a document as a whole is not cut"
    apart = f", held out: {describe_corpus(held_out)}" if held_out else ""
    log.info("corpus: %s%s, %sB, %s", describe_corpus(files), apart, format_count(num_bytes), said)
    return portions
