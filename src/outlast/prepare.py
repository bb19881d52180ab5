"""Raw text becomes a data set: corpus, then tokenizer, then shards, then the manifest that makes it count.

In: the first three tables of a recipe and a folder (or URL) for the result. Out: the URL of
``manifest.json``, which appears last. Every step is found done or done anew, so a build that was killed
goes on where it stopped, and ends with the same bytes as one that was not (docs/design/building_shards.md).
"""

import re
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from outlast import __version__
from outlast.config import to_dict
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import CorpusFile, list_corpus, plan_pieces
from outlast.corpus.read import read_documents, split_chooser
from outlast.errors import ConfigError, CorpusError, OutlastError, TokenizerError
from outlast.logs import ProgressLine, format_count, log
from outlast.shards.build import agree_on_plan, finished_pieces, make_manifest, read_record
from outlast.shards.config import ShardsConfig, resolve_num_processes, resolve_num_shards
from outlast.shards.manifest import MANIFEST_NAME, TokenizerEntry, write_manifest
from outlast.shards.piece import TOKENIZER_FOLDER, BuildJob, PieceJob
from outlast.shards.processes import Progress, build_pieces
from outlast.shards.token_format import token_dtype
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
    task: Task | None = None,
    tokenizer_wait_seconds: float = TOKENIZER_WAIT_SECONDS,
) -> str | None:
    """Make tokenizer, token shards and manifest from raw text, or go on with what a killed build has left.

    With ``shards.num_processes`` other than 1, a script that calls this needs ``if __name__ ==
    "__main__":``, since its processes load the script's module again.

    Args:
        out: folder or URL of the result.
        task: build only this share of the pieces; task 0 trains the tokenizer, the others wait for it.
        tokenizer_wait_seconds: how long they wait.

    Returns:
        the URL of the manifest; None where other tasks still have pieces to build.

    Raises:
        CorpusError: the corpus is missing, empty or cannot be read. What is finished is kept.
        TokenizerError: the tokenizer cannot be trained or loaded.
        ShardError: the folder belongs to another build.
        StorageError: the result cannot be written.
    """
    store = open_store(out)
    files = list_corpus(corpus)
    held_out = list_corpus(corpus, held_out=True) if corpus.validation_path is not None else ()
    num_bytes = sum(file.size_bytes for file in (*files, *held_out))
    num_shards = resolve_num_shards(shards, num_bytes)
    log.info(
        "corpus: %d files, %sB, %d shards", len(files) + len(held_out), format_count(num_bytes), num_shards
    )

    identity, versions = _identity(corpus, tokenizer, num_shards, files, held_out)
    versions = agree_on_plan(store, identity, versions)
    manifest_url = f"{out.rstrip('/')}/{MANIFEST_NAME}"
    if store.exists(MANIFEST_NAME):
        log.info("complete already: %s", manifest_url)
        return manifest_url

    pieces = _pieces(files, held_out, num_shards)
    trained = _ensure_tokenizer(corpus, tokenizer, store, files, task, tokenizer_wait_seconds)
    job = BuildJob(corpus=corpus, out=out, num_shards=num_shards, tokenizer_fingerprint=trained.fingerprint)
    finished = finished_pieces(store)
    index, count = task or (0, 1)
    missing = [piece for piece in pieces if piece.piece not in finished and piece.piece % count == index]
    if missing:
        _build(job, missing, min(resolve_num_processes(shards), len(missing)))

    unfinished = sorted(set(range(num_shards)) - finished_pieces(store))
    if unfinished:
        log.info(
            "%d of %d pieces are left to other tasks: %s", len(unfinished), num_shards, _list(unfinished)
        )
        return None
    provenance = {"corpus": {**identity["corpus"], **_describe_files(files, held_out)}, "versions": versions}
    if task is None:  # with tasks, another one may be writing
        for leftover in store.list_leftovers():
            store.delete(leftover)
    _finish(corpus, store, trained, num_shards, provenance)
    return manifest_url


def _identity(
    corpus: CorpusConfig,
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
        "tokenizer": {key: value for key, value in tokenizer_values.items() if key != "path"},
        "num_shards": num_shards,
        "files": {file.name: _describe_file(file) for file in files},
        "held_out_files": {file.name: _describe_file(file) for file in held_out},
    }
    return identity, {"outlast": __version__, library: version(library)}


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


def _ensure_tokenizer(
    corpus: CorpusConfig,
    config: TokenizerConfig,
    store: Store,
    files: Sequence[CorpusFile],
    task: Task | None,
    wait_seconds: float,
) -> TokenizerManifest:
    """Return the tokenizer of the output folder: found there, trained, copied, or waited for."""
    name = f"{TOKENIZER_FOLDER}/{TOKENIZER_MANIFEST_NAME}"
    deadline = time.monotonic() + wait_seconds
    if task is not None and task[0] > 0 and not store.exists(name):
        log.info("waiting for task 0/%d, which makes the tokenizer", task[1])
        while not store.exists(name):
            if time.monotonic() > deadline:
                raise TokenizerError(
                    f"There is no tokenizer after {wait_seconds:.0f} seconds.",
                    where=f"{store.url}/{name}",
                    remedy=f"start `--task 0/{task[1]}`, which makes it, then this one again",
                )
            time.sleep(min(_POLL_SECONDS, max(deadline - time.monotonic(), 0.0)))
    if store.exists(name):
        return read_tokenizer_manifest(store, TOKENIZER_FOLDER)
    if config.path is not None:
        manifest, content = _read_existing(config.path)
        write_tokenizer(store, TOKENIZER_FOLDER, manifest, content)
        return manifest

    def documents() -> Iterator[str]:
        # Held-out text must not shape the vocabulary either.
        choose = split_chooser(corpus)
        whole = plan_pieces(files, 1)[0]
        return (text for text in read_documents(corpus, whole, Tally()) if choose(text) == "train")

    return train_tokenizer(config, documents, store, TOKENIZER_FOLDER, report=log.info)


def _read_existing(path: str) -> tuple[TokenizerManifest, dict[str, bytes]]:
    folder, name = split_url(path.rstrip("/"))
    return read_tokenizer(open_store(folder), name)


def _build(job: BuildJob, pieces: Sequence[PieceJob], num_processes: int) -> None:
    """Build the missing pieces. Raises the first error, once all others are finished."""
    total = sum(piece.size_bytes for piece in pieces)
    began = time.monotonic()

    def on_failure(piece: PieceJob, error: OutlastError) -> None:
        log.error("piece %d of %d failed: %s", piece.piece, job.num_shards, error)

    with ProgressLine("shards", total) as line:

        def on_tick(progress: Progress) -> None:
            counted = [progress.counted(index) for index in range(len(pieces))]
            sizes = [piece.size_bytes for piece in pieces]
            done = sum(
                size if index in progress.finished else min(counted[index][1], size)
                for index, size in enumerate(sizes)
            )
            documents, text_bytes, tokens = (sum(numbers) for numbers in zip(*counted, strict=True))
            rate = text_bytes / max(time.monotonic() - began, 1e-9)
            line.update(
                done,
                f"{format_count(documents)} documents, {format_count(text_bytes)}B, "
                f"{format_count(tokens)} tokens, {format_count(rate)}B/s",
            )

        failures = build_pieces(job, pieces, num_processes, on_tick=on_tick, on_failure=on_failure)
    if failures:
        piece, error = min(failures.items())
        raise type(error)(
            f"{len(failures)} of {len(pieces)} pieces failed ({_list(sorted(failures))}), "
            f"the others are kept. Piece {piece}: {error.message}",
            where=error.where,
            expected=error.expected,
            remedy=(error.remedy + "; then " if error.remedy else "") + "run the same command again",
        )


def _finish(
    corpus: CorpusConfig,
    store: Store,
    tokenizer: TokenizerManifest,
    num_shards: int,
    provenance: dict[str, Any],
) -> None:
    """Write the manifest: from here on there is a data set."""
    records = [read_record(store, piece) for piece in range(num_shards)]
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


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
