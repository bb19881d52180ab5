"""TFRecord files of training examples become a data set.

In: files, and the tokenizer that their ids belong to. Out: a manifest and one shard for each file: fixed
examples with their masks, or token shards in which the masks are undone. Every record is checked; what cannot
be names its file, record and byte. A killed import goes on with the files that are missing
(docs/formats/tfrecord.md).
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

from outlast.build.drive import Build
from outlast.build.plan import write_record
from outlast.build.processes import Count
from outlast.errors import ConfigError, ShardError
from outlast.interchange.feature_sets import FEATURE_SETS, Batch, FeatureSet, Shape, recognise, to_batch
from outlast.interchange.portions import COUNTED, make_record
from outlast.interchange.record_files import batches, check_count, file_size, listed, place
from outlast.interchange.restore import restore_documents
from outlast.interchange.tf_example import decode_example
from outlast.interchange.tfrecord import Compression
from outlast.logs import format_count, log
from outlast.shards.document import MANIFEST_NAME
from outlast.shards.example_shard import ExampleShardWriter, check_rows
from outlast.shards.manifest import (
    ArrayName,
    ShardEntry,
    StaticExamples,
    TokenizerEntry,
    named_files,
    write_manifest,
)
from outlast.shards.record import PortionRecord, make_manifest, shard_name
from outlast.shards.token_format import token_dtype
from outlast.shards.write import TokenShardWriter
from outlast.storage import Store, open_store, split_url
from outlast.tokenizer.manifest import TokenizerManifest, holds_tokenizer, read_tokenizer, write_tokenizer

Target = Literal["examples", "tokens"]

TOKENIZER_FOLDER = "tokenizer"


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """What the data set depends on, beside the files.

    Attributes:
        target: ``examples``: records stay as they are, masks included; ``tokens``: masks are undone.
        features: the set the records have; None: as the first record shows.
        sequence_length, max_predictions: what the records must have (L, P); None: what the first one has.
        compression: of the files; None: as each file shows.
    """

    target: Target = "examples"
    features: FeatureSet | None = None
    sequence_length: int | None = None
    max_predictions: int | None = None
    compression: Compression | None = None


@dataclass(frozen=True, kw_only=True)
class ImportJob:
    """What all files have in common."""

    config: ImportConfig
    shape: Shape
    tokenizer: TokenizerManifest
    num_shards: int
    out: str

    def open(self) -> "FileImporter":
        """Return what reads files in a process."""
        return FileImporter(self)


@dataclass(frozen=True, kw_only=True)
class ImportPortion:
    """One file."""

    number: int
    split: str
    url: str


def import_tfrecord(
    files: Sequence[str],
    out: str,
    config: ImportConfig,
    *,
    tokenizer: str,
    validation_files: Sequence[str] = (),
    num_processes: int | None = None,
    verify: bool = False,
) -> str:
    """Make a data set of TFRecord files, or go on with what a killed import has left.

    Args:
        files, validation_files: URLs of the files of the two splits, in order. That of a ``manifest.json``
            that an export wrote stands for all files it lists.
        out: folder or URL for tokenizer, shards and manifest.
        tokenizer: folder or URL of the tokenizer that the ids belong to.
        num_processes: that read files side by side; None: one for each core. A script that calls this with
            more than one needs ``if __name__ == "__main__":``.
        verify: of a data set that is complete already, compare digests and not sizes alone.

    Returns:
        the URL of the manifest.

    Raises:
        ConfigError: records of another length than asked for.
        ShardError: a file that is missing or damaged, or whose records are of another kind; a folder that
            belongs to another import.
        TokenizerError: no tokenizer.
        StorageError: the data set cannot be written.
    """
    folder, name = split_url(tokenizer.rstrip("/"))
    trained, tokenizer_files = read_tokenizer(open_store(folder), name)
    splits = [
        (split, url)
        for split, urls in (("train", files), ("validation", validation_files))
        for url in listed(urls)
    ]
    sizes = [file_size(url) for _, url in splits]
    portions = [
        ImportPortion(number=number, split=split, url=url) for number, (split, url) in enumerate(splits)
    ]
    shape = _first_shape(portions, config)
    store = open_store(out)
    identity = {
        "target": config.target,
        "shape": shape._asdict(),
        "tokenizer": trained.fingerprint,
        "files": [[split, split_url(url)[1], size] for (split, url), size in zip(splits, sizes, strict=True)],
    }
    build = Build(store, out, MANIFEST_NAME, identity, PortionRecord)
    if build.is_complete(
        named_files,
        verify=verify,
        has_more=lambda: holds_tokenizer(store, TOKENIZER_FOLDER, trained.fingerprint),
    ):
        return build.url
    build.begin()
    write_tokenizer(store, TOKENIZER_FOLDER, trained, tokenizer_files)
    log.info(
        "%d files, %sB: %s, %d tokens, %d predictions",
        *(len(portions), format_count(sum(sizes)), *shape),
    )
    job = ImportJob(config=config, shape=shape, tokenizer=trained, num_shards=len(portions), out=out)
    folders = (f"{TOKENIZER_FOLDER}/",)
    records = build.run("import", job, portions, num_processes, counted=COUNTED, more_folders=folders)
    _write_manifest(store, job, records, {"tfrecord": identity, "versions": build.versions})
    return build.url


def _write_manifest(
    store: Store, job: ImportJob, records: list[PortionRecord], provenance: Mapping[str, Any]
) -> None:
    tokenizer = job.tokenizer
    entry = TokenizerEntry(
        path=TOKENIZER_FOLDER,
        fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
    )
    manifest = make_manifest(records, entry, token_dtype(tokenizer.vocab_size).name, provenance)
    examples = static_examples(job.shape) if job.config.target == "examples" else None
    write_manifest(store, replace(manifest, examples=examples))


def static_examples(shape: Shape) -> StaticExamples:
    """Return the arrays of examples that have a shape."""
    arrays = dict.fromkeys(["input_ids", "attention_mask", *(column.array for column in shape.columns)])
    return StaticExamples(
        sequence_length=shape.sequence_length,
        num_predictions=shape.num_predictions,
        arrays=cast(tuple[ArrayName, ...], tuple(arrays)),
    )


class _Writer(Protocol):
    def add(self, batch: Batch) -> None: ...

    def write(self, name: str) -> ShardEntry | None: ...


class FileImporter:
    """Reads files, one after another, into one shard each."""

    def __init__(self, job: ImportJob) -> None:
        self.job = job
        self.store = open_store(job.out)

    def build(self, portion: ImportPortion, count: Count) -> PortionRecord:
        """Write a file's shard and its record. Raises ShardError, StorageError."""
        job = self.job
        pad = job.tokenizer.special_ids["pad"]
        examples = static_examples(job.shape)
        num_records = 0
        with ExitStack() as stack:
            writer = stack.enter_context(_open_writer(job, self.store))
            for records in batches(portion.url, job.config.compression):
                places = [place(portion.url, record) for record in records]
                features = [
                    decode_example(record.payload, where)
                    for record, where in zip(records, places, strict=True)
                ]
                batch = to_batch(features, job.shape, places, pad_id=pad)
                if not num_records:
                    self._check_first(batch, places[0])
                check_rows(
                    batch,
                    examples,
                    vocab_size=job.tokenizer.vocab_size,
                    place=places.__getitem__,
                )
                writer.add(batch)
                num_records += len(records)
                num_bytes = sum(len(record.payload) for record in records)
                count(len(records), num_bytes, int(batch["attention_mask"].sum()))
            check_count(portion.url, num_records)
            entry = writer.write(shard_name(portion.split, portion.number, job.num_shards))
        shards = {} if entry is None else {portion.split: entry}
        record = make_record(portion.number, job.tokenizer.fingerprint, shards)
        write_record(self.store, record)
        return record

    def _check_first(self, batch: Batch, where: str) -> None:
        """The ids of another tokenizer would train without an error, and to nothing."""
        found, expected = int(batch["input_ids"][0, 0]), self.job.tokenizer.special_ids["cls"]
        if self.job.shape.features != "tokens" and found != expected:
            raise ShardError(
                f"The first record begins with the id {found}, not with [CLS].",
                where=where,
                expected=f"{expected}, the tokenizer's cls",
                remedy="name the tokenizer that the records were made with: --tokenizer",
            )


@contextmanager
def _open_writer(job: ImportJob, store: Store) -> Generator[_Writer]:
    tokenizer, spool_folder = job.tokenizer, store.local_path(".")
    if job.config.target == "examples":
        with ExampleShardWriter(
            static_examples(job.shape),
            vocab_size=tokenizer.vocab_size,
            tokenizer_fingerprint=tokenizer.fingerprint,
            spool_folder=spool_folder,
        ) as writer:
            yield _Examples(store, writer)
    else:
        with TokenShardWriter(
            vocab_size=tokenizer.vocab_size,
            separator_id=tokenizer.special_ids["sep"],
            tokenizer_fingerprint=tokenizer.fingerprint,
            spool_folder=spool_folder,
        ) as writer:
            yield _Tokens(store, writer, tokenizer.special_ids)


@dataclass(frozen=True)
class _Examples:
    store: Store
    writer: ExampleShardWriter

    def add(self, batch: Batch) -> None:
        self.writer.add(batch)

    def write(self, name: str) -> ShardEntry | None:
        return self.writer.write(self.store, name) if self.writer.num_examples else None


@dataclass(frozen=True)
class _Tokens:
    store: Store
    writer: TokenShardWriter
    special_ids: dict[str, int]

    def add(self, batch: Batch) -> None:
        for document in restore_documents(batch, self.special_ids):
            self.writer.add(document)

    def write(self, name: str) -> ShardEntry | None:
        return self.writer.write(self.store, name) if self.writer.num_documents else None


def _first_shape(portions: Sequence[ImportPortion], config: ImportConfig) -> Shape:
    """Return the shape of the first record of all, checked against what was asked for."""
    for portion in portions:
        for records in batches(portion.url, config.compression):
            where = place(portion.url, records[0])
            shape = recognise(decode_example(records[0].payload, where), config.features, where)
            _check_asked("--sequence-length", config.sequence_length, shape.sequence_length, "tokens", where)
            _check_asked(
                "--max-predictions", config.max_predictions, shape.num_predictions, "predictions", where
            )
            if config.target == "tokens" and shape.features == "classifier":
                raise ConfigError(
                    "The records have labels, which token shards have no place for.",
                    where="--as tokens",
                    remedy="import them with --as examples",
                )
            return shape
    raise ShardError(
        "The files hold no record.",
        where=", ".join(portion.url for portion in portions[:3]) or "no file",
        expected=f"records of one of the sets {', '.join(FEATURE_SETS)}",
    )


def _check_asked(option: str, asked: int | None, found: int, what: str, where: str) -> None:
    if asked not in (None, found):
        raise ConfigError(
            f"The first record has {found} {what}, {option} asks for {asked}.",
            where=where,
            remedy=f"set {option} to {found}, or leave it out",
        )
