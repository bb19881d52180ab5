"""A data set becomes TFRecord files that other trainers read.

In: the manifest of a data set. Out: ``dataset-<i>-<n>.tfrecord``, n the number of records in the file, and
the manifest that counts them all, which appears last. Memory is bounded by a batch; a killed export goes on
with the files that are missing, and ends with the same bytes (docs/formats/tfrecord.md).
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.build.plan import agree_on_plan, write_record
from outlast.build.processes import Count
from outlast.config import build
from outlast.errors import ConfigError, ShardError
from outlast.interchange.feature_sets import Batch, FeatureSet, Shape, has_masks, to_messages
from outlast.interchange.pieces import make_record, run_pieces
from outlast.interchange.static_masks import StaticMasks
from outlast.interchange.tfrecord import SUFFIXES, Compression, frame, make_compressor
from outlast.logs import log
from outlast.objectives.config import MlmConfig
from outlast.shards.manifest import MANIFEST_NAME, Manifest, ShardEntry, read_manifest
from outlast.shards.record import PieceRecord
from outlast.storage import open_store
from outlast.storage.spool import Spool
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.version import __version__

FORMAT = "outlast-tfrecord"
VERSION = 1
_DEFAULT_LENGTH = 128
_BATCH_TOKENS = 2**17


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What the records depend on.

    Attributes:
        features: bert, bigbird, tokens or classifier.
        split: of the data set.
        sequence_length: tokens of a record (L); None: that of static examples, else 128.
        special_tokens: whether examples are framed as [CLS] tokens [SEP].
        mask_probability: share of a record's tokens that are predicted.
        max_predictions: most predictions of a record (P); None: mask_probability * L, rounded up, or what
            static examples have.
        whole_words: whether all tokens of a word are predicted or none.
        random_special_ids: whether a random replacement may be a special id, as in BERT's own code.
        seed: of masks and order.
        shuffle: records in the order in which training with this seed sees the first epoch; else as in the
            manifest.
        compression: none, gzip or zlib.
        records_per_shard: of every file but the last.
    """

    features: FeatureSet
    split: str = "train"
    sequence_length: int | None = None
    special_tokens: bool = True
    mask_probability: float = 0.15
    max_predictions: int | None = None
    whole_words: bool = False
    random_special_ids: bool = False
    seed: int = 0
    shuffle: bool = True
    compression: Compression = "none"
    records_per_shard: int = 10_000


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
class ExportPiece:
    """One file: its number, and which records it holds."""

    piece: int
    first: int
    stop: int


def export_tfrecord(
    manifest: str, out: str, config: ExportConfig, *, num_processes: int | None = None
) -> str:
    """Write a split of a data set as TFRecord files, or go on with what a killed export has left.

    Args:
        manifest: URL of the data set's ``manifest.json``.
        out: folder or URL for the files.
        num_processes: that write files side by side; None: one for each core. A script that calls this with
            more than one needs ``if __name__ == "__main__":``.

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
    identity = {
        "data": stream.manifest.fingerprint,
        "shape": job.shape._asdict(),
        "masks": None if job.masks is None else asdict(job.masks),
        "export": asdict(config),
    }
    versions = agree_on_plan(store, identity, {"outlast": __version__})
    url = f"{out.rstrip('/')}/{MANIFEST_NAME}"
    if store.exists(MANIFEST_NAME):
        log.info("complete already: %s", url)
        return url
    total, step = stream.num_examples, config.records_per_shard
    pieces = [
        ExportPiece(piece=number, first=first, stop=min(first + step, total))
        for number, first in enumerate(range(0, total, step))
    ]
    log.info("%d records of %d tokens into %d files", total, job.shape.sequence_length, len(pieces))
    records = run_pieces("export", job, pieces, store, num_processes)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "features": config.features,
        "sequence_length": job.shape.sequence_length,
        "num_predictions": job.shape.num_predictions,
        "compression": config.compression,
        "num_records": total,
        "files": [_describe(record.shards[config.split]) for record in records],
        "provenance": {"versions": versions, **identity},
    }
    store.replace(MANIFEST_NAME, [(json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()])
    return url


class ShardExporter:
    """Writes files, one after another, from one stream."""

    def __init__(self, job: ExportJob) -> None:
        self.job = job
        self.store = open_store(job.out)
        words = job.masks is not None and job.masks.whole_words
        self.stream = TokenStream(job.stream, seed=job.config.seed, split=job.config.split, word_starts=words)
        sizes = np.asarray(self.stream.order.shard_examples, np.int64)
        self._begins = np.cumsum(sizes) - sizes

    def build(self, piece: ExportPiece, count: Count) -> PieceRecord:
        """Write a file and its record. Raises ShardError, StorageError."""
        compression = self.job.config.compression
        name = f"dataset-{piece.piece:05d}-{piece.stop - piece.first}.tfrecord{SUFFIXES[compression]}"
        compressor = make_compressor(compression)
        num_tokens = 0
        spool = Spool(1, self.store.local_path("."))
        try:
            for batch in self._batches(piece):
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
            num_examples=piece.stop - piece.first,
        )
        fingerprint = self.stream.manifest.tokenizer.fingerprint
        record = make_record(piece.piece, fingerprint, {self.job.config.split: entry})
        write_record(self.store, record)
        return record

    def _batches(self, piece: ExportPiece) -> Iterator[Batch]:
        for indices in self._indices(piece):
            batch = self.stream.examples(indices)
            yield batch if self.job.masks is None else self.job.masks.apply(batch, indices)

    def _indices(self, piece: ExportPiece) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the examples of a file, a batch at a time."""
        size = self.job.stream.global_batch_size
        position = piece.first
        while position < piece.stop:
            step, row = divmod(position, size)
            stop = min(piece.stop, (step + 1) * size)
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
    length = _sequence_length(manifest, config)
    shape = Shape(config.features, length, _num_predictions(manifest, config, length))
    _check_padding(manifest, config)
    static = manifest.examples
    is_masked = static is not None and static.num_predictions > 0
    if is_masked and not has_masks(config.features):
        raise ConfigError(
            f"The examples are masked already, and {config.features!r} has no place for what was hidden.",
            where="--features",
            remedy="export bert or bigbird, or import the records with --as tokens and export those",
        )
    tokenizer, masking = manifest.tokenizer, _masking(config)
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


def _sequence_length(manifest: Manifest, config: ExportConfig) -> int:
    if manifest.examples is None:
        return config.sequence_length or _DEFAULT_LENGTH
    found = manifest.examples.sequence_length
    if config.sequence_length not in (None, found):
        raise ConfigError(
            f"The examples are {found} tokens long and cannot be cut anew.",
            where=f"--sequence-length {config.sequence_length}",
            remedy=f"leave it out, or set --sequence-length {found}",
        )
    return found


def _num_predictions(manifest: Manifest, config: ExportConfig, length: int) -> int:
    if not has_masks(config.features):
        return 0
    found = manifest.examples.num_predictions if manifest.examples else 0
    if found and config.max_predictions not in (None, found):
        raise ConfigError(
            f"The examples have {found} predictions each and are masked already.",
            where=f"--max-predictions {config.max_predictions}",
            remedy=f"leave it out, or set --max-predictions {found}",
        )
    return found or _masking(config).num_predictions(length)


def _masking(config: ExportConfig) -> MlmConfig:
    """Return the rules that masks made in training follow, too. Raises ConfigError."""
    values = {"mask_probability": config.mask_probability, "max_predictions": config.max_predictions}
    return build(MlmConfig, values, where="--mask-probability, --max-predictions")


def _check_padding(manifest: Manifest, config: ExportConfig) -> None:
    pad = manifest.tokenizer.special_ids["pad"]
    if config.features == "bigbird" and pad != 0:
        raise ShardError(
            f"The tokenizer pads with {pad}, and BigBird's reader takes every id but 0 as a real token.",
            expected="a tokenizer whose padding is 0",
            remedy="export --features bert, which says what is padding, or prepare with such a tokenizer",
        )


def _describe(entry: ShardEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "num_records": entry.num_examples,
        "size_bytes": entry.size_bytes,
        "sha256": entry.sha256,
    }
