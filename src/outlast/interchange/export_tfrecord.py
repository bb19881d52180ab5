"""A data set becomes TFRecord files that other trainers read.

In: the manifest of a data set. Out: ``dataset-<i>-<n>.tfrecord``, n the number of records in the file, and
the manifest that counts them all, which appears last. Memory is bounded by a batch; a killed export goes on
with the files that are missing, and ends with the same bytes (docs/formats/tfrecord.md).
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.build.drive import Build
from outlast.build.plan import write_record
from outlast.build.processes import Count
from outlast.errors import ConfigError, ShardError
from outlast.interchange.export_config import (
    ExportConfig,
    check_padding,
    choose_num_predictions,
    choose_packing,
    choose_sequence_length,
    masking_of,
)
from outlast.interchange.feature_sets import Batch, Shape, has_masks, to_messages
from outlast.interchange.portions import COUNTED, make_record
from outlast.interchange.static_masks import StaticMasks
from outlast.interchange.tfrecord import SUFFIXES, frame, make_compressor
from outlast.logs import log
from outlast.shards.document import MANIFEST_NAME, parse_document, read_manifest_bytes
from outlast.shards.manifest import FileEntry, Manifest, ShardEntry, read_manifest
from outlast.shards.record import PortionRecord
from outlast.storage import open_store
from outlast.storage.checksummed_json import Kind, encode
from outlast.storage.spool import Spool
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream

LIST = Kind(
    "outlast-tfrecord",
    (1, 2),
    "list of TFRecord files",
    "name what `outlast shards export-tfrecord` wrote, or the files themselves",
    ShardError,
)
"""The manifest of an export."""
_BATCH_TOKENS = 2**17


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """What all files have in common. ``masks`` is None where none are made."""

    config: ExportConfig
    stream: StreamConfig
    shape: Shape
    masks: StaticMasks | None
    out: str

    def open(self) -> "ShardExporter":
        """Return what writes files in a process. Raises ShardError."""
        return ShardExporter(self)


@dataclass(frozen=True, kw_only=True)
class ExportPortion:
    """One file: its number, and which records it holds."""

    number: int
    first: int
    stop: int


def export_tfrecord(
    manifest: str, out: str, config: ExportConfig, *, num_processes: int | None = None, verify: bool = False
) -> str:
    """Write a split of a data set as TFRecord files, or go on with what a killed export has left.

    Args:
        manifest: URL of the data set's ``manifest.json``.
        out: folder or URL for the files.
        num_processes: that write files side by side; None: one for each core. A script that calls this with
            more than one needs ``if __name__ == "__main__":``.
        verify: of a data set that is complete already, compare digests and not sizes alone.

    Returns:
        the URL of the files' own manifest.

    Raises:
        ConfigError: lengths or features that do not fit the data set.
        ShardError: a data set that is missing or damaged; a folder that belongs to another export.
        StorageError: the files cannot be written.
    """
    job = _make_job(manifest, out, config)
    stream = job.open().stream
    store = open_store(out)
    identity = _identity(job, stream)
    build = Build(store, out, MANIFEST_NAME, identity, PortionRecord)
    if build.is_complete(_read_files, verify=verify):
        return build.url
    build.begin()
    total, step = stream.num_examples, config.records_per_shard
    portions = [
        ExportPortion(number=number, first=first, stop=min(first + step, total))
        for number, first in enumerate(range(0, total, step))
    ]
    log.info(
        "%d records of %d tokens (%s) into %d files",
        *(total, job.shape.sequence_length, _describe_packing(job, stream.manifest), len(portions)),
    )
    records = build.run("export", job, portions, num_processes, counted=COUNTED)
    document = {
        "features": config.features,
        "sequence_length": job.shape.sequence_length,
        "num_predictions": job.shape.num_predictions,
        "compression": config.compression,
        "num_records": total,
        "files": [_describe(record.shards[config.split]) for record in records],
        "provenance": {"versions": build.versions, **identity},
    }
    store.replace(MANIFEST_NAME, [encode(LIST, document)])
    return build.url


def _identity(job: ExportJob, stream: TokenStream) -> dict[str, Any]:
    """Return what the files depend on. Runs of tokens are not named, as in exports of earlier versions."""
    is_paired = job.stream.packing == "pairs"
    pairs = {"pairs": stream.manifest.pair_set(job.shape.sequence_length).fingerprint} if is_paired else {}
    return {
        "data": stream.manifest.fingerprint,
        **pairs,
        "shape": job.shape._asdict(),
        "masks": None if job.masks is None else asdict(job.masks),
        "export": {key: value for key, value in asdict(job.config).items() if key != "packing"},
    }


def _describe_packing(job: ExportJob, manifest: Manifest) -> str:
    if manifest.examples is not None:
        return "as they are"
    if job.stream.packing == "pairs":
        return f"pairs, {manifest.pair_set(job.shape.sequence_length).num_passes} passes"
    return "runs of tokens"


class ShardExporter:
    """Writes files, one after another, from one stream."""

    def __init__(self, job: ExportJob) -> None:
        self.job = job
        self.store = open_store(job.out)
        words = job.masks is not None and job.masks.whole_words
        self.stream = TokenStream(job.stream, seed=job.config.seed, split=job.config.split, word_starts=words)
        sizes = np.asarray(self.stream.order.shard_examples, np.int64)
        self._begins = np.cumsum(sizes) - sizes

    def build(self, portion: ExportPortion, count: Count) -> PortionRecord:
        """Write a file and its record. Raises ShardError, StorageError."""
        compression = self.job.config.compression
        name = f"dataset-{portion.number:05d}-{portion.stop - portion.first}.tfrecord{SUFFIXES[compression]}"
        compressor = make_compressor(compression)
        num_tokens = 0
        spool = Spool(1, self.store.local_path("."))
        try:
            for batch in self._batches(portion):
                messages = to_messages(batch, self.job.shape)
                content = b"".join([frame(message) for message in messages])
                spool.write(content if compressor is None else compressor.compress(content))
                tokens = int(batch["attention_mask"].sum())
                num_tokens += tokens
                count(len(messages), len(content), tokens)
            if compressor is not None:
                spool.write(compressor.flush())
            size_bytes, sha256 = spool.put(self.store, name, b"")
        finally:
            spool.close()
        entry = ShardEntry(
            name=name,
            size_bytes=size_bytes,
            sha256=sha256,
            num_tokens=num_tokens,
            num_documents=0,
            num_examples=portion.stop - portion.first,
        )
        fingerprint = self.stream.manifest.tokenizer.fingerprint
        record = make_record(portion.number, fingerprint, {self.job.config.split: entry})
        write_record(self.store, record)
        return record

    def _batches(self, portion: ExportPortion) -> Iterator[Batch]:
        for indices in self._indices(portion):
            batch = self.stream.examples(indices)
            yield batch if self.job.masks is None else self.job.masks.apply(batch, indices)

    def _indices(self, portion: ExportPortion) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the examples of a file, a batch at a time."""
        size = self.job.stream.global_batch_size
        position = portion.first
        while position < portion.stop:
            step, row = divmod(position, size)
            stop = min(portion.stop, (step + 1) * size)
            if self.job.config.shuffle:
                shards, records = self.stream.order.rows(step, row, row + stop - position)
                yield self._begins[shards] + records
            else:
                yield np.arange(position, stop)
            position = stop


def _make_job(url: str, out: str, config: ExportConfig) -> ExportJob:
    """Check what was asked against the data set. Raises ConfigError, ShardError."""
    if config.records_per_shard < 1:
        raise ConfigError(
            f"{config.records_per_shard} records in a file.",
            where="--records-per-shard",
            expected="1 or more",
        )
    manifest, _ = read_manifest(url)
    packing = choose_packing(manifest, config)
    length = choose_sequence_length(manifest, config, packing)
    shape = Shape(config.features, length, choose_num_predictions(manifest, config, length))
    check_padding(manifest, config)
    static = manifest.examples
    is_masked = static is not None and static.num_predictions > 0
    if is_masked and not has_masks(config.features):
        raise ConfigError(
            f"The examples are masked already, and {config.features!r} has no place for what was hidden.",
            where="--features",
            remedy="export bert or bigbird, or import the records with --as tokens and export those",
        )
    tokenizer, masking = manifest.tokenizer, masking_of(config)
    masks = StaticMasks(
        num_predictions=shape.num_predictions,
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.special_ids["mask"],
        special_ids=tuple(sorted(set(tokenizer.special_ids.values()))),
        mask_probability=masking.probability,
        mask_share=masking.mask_share,
        random_share=masking.random_share,
        random_special_ids=config.random_special_ids,
        seed=config.seed,
        whole_words=config.whole_words,
    )
    stream = StreamConfig(
        manifest=url,
        packing=packing,
        sequence_length=length,
        special_tokens=config.special_tokens,
        global_batch_size=max(1, _BATCH_TOKENS // length),
        num_lanes=1,  # every example once, in the order of one epoch
    )
    needs_masks = has_masks(config.features) and not is_masked
    if config.whole_words and not needs_masks:
        raise ConfigError(
            "The examples are masked already." if is_masked else f"{config.features!r} has no masks.",
            where="--whole-words",
            remedy="leave it out",
        )
    return ExportJob(config=config, stream=stream, shape=shape, masks=masks if needs_masks else None, out=out)


def _read_files(url: str) -> list[FileEntry]:
    """Return the files that an export's manifest names. Raises ShardError."""
    document = parse_document(read_manifest_bytes(url)[0], where=url, kind=LIST)
    return [
        FileEntry(name=file["name"], size_bytes=file["size_bytes"], sha256=file["sha256"])
        for file in document["files"]
    ]


def _describe(entry: ShardEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "num_records": entry.num_examples,
        "size_bytes": entry.size_bytes,
        "sha256": entry.sha256,
    }
