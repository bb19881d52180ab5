"""A data set of images becomes one that is read faster: the same examples in the same order, as pixels.

In: the manifest of a data set of images and how pixels are stored. Out: a data set with tars of the same
names, examples, keys and labels. An image that cannot be stored in that way stays as it is, byte for byte,
and is counted. It keeps its number, so no other image changes its place in the order. A killed run goes on
with the tars that are missing.
"""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import BinaryIO

from outlast.build.drive import Build
from outlast.build.plan import write_record
from outlast.build.processes import Count
from outlast.corpus.tar import read_members
from outlast.errors import ConfigError, ShardError
from outlast.images.import_tars import opened_tar
from outlast.images.index import INDEX_REMEDY, ImageIndex, read_index
from outlast.images.manifest import ImageShardEntry, named_files, read_image_manifest, write_image_manifest
from outlast.images.pixels import RawPixels
from outlast.images.record import COUNTED, ImageRecord, make_image_manifest
from outlast.images.records import split_name
from outlast.images.tar_writer import ImageShardWriter
from outlast.logs import format_count, log
from outlast.shards.document import MANIFEST_NAME
from outlast.storage import Store, open_store
from outlast.storage.elsewhere import open_elsewhere
from outlast.storage.spool import Spooled


@dataclass(frozen=True, kw_only=True)
class RepackPortion:
    """One tar."""

    number: int
    split: str
    source: str
    entry: ImageShardEntry


@dataclass(frozen=True, kw_only=True)
class RepackJob:
    """What all tars have in common."""

    pixels: RawPixels
    out: str

    def open(self) -> "Repacker":
        """Return what stores tars anew in a process."""
        return Repacker(self)


@dataclass(frozen=True, kw_only=True)
class RepackRecord(ImageRecord):
    """``unchanged``: images that stay as they were."""

    unchanged: int


def repack_images(
    manifest: str,
    out: str,
    pixels: RawPixels,
    *,
    num_processes: int | None = None,
    verify: bool = False,
) -> str:
    """Store a data set of images anew, or go on with what a killed run has left.

    Args:
        manifest: URL of the data set's manifest.
        out: folder or URL for tars, indexes and manifest; not that of the data set.
        pixels: how an image is stored.
        num_processes: that store tars side by side; None: one for each core. A script that calls this with
            more than one needs ``if __name__ == "__main__":``.
        verify: of a data set that is complete already, compare digests and not sizes alone.

    Returns:
        the URL of the new manifest.

    Raises:
        ConfigError: the folder of the data set itself.
        ShardError: a data set that is missing or damaged; a folder that belongs to another build.
        StorageError: the data set cannot be written.
    """
    source, source_store = read_image_manifest(manifest)
    store = open_store(out)
    if store.url == source_store.url:
        raise ConfigError(
            "The data set would be stored over itself.", where="--out", remedy="choose another folder"
        )
    identity = {"source": source.fingerprint, "store": "pixels", **asdict(pixels)}
    build = Build(store, out, MANIFEST_NAME, identity, RepackRecord)
    if build.is_complete(named_files, verify=verify):
        return build.url
    build.begin(pixels.versions())
    entries = [(split, entry) for split, entries in source.splits.items() for entry in entries]
    portions = [
        RepackPortion(number=number, split=split, source=source_store.url, entry=entry)
        for number, (split, entry) in enumerate(entries)
    ]
    log.info("%d tars, %sB", len(portions), format_count(sum(entry.size_bytes for _, entry in entries)))
    records = build.run("repack", RepackJob(pixels=pixels, out=out), portions, num_processes, counted=COUNTED)
    unchanged = _count_unchanged(records)
    if any(unchanged.values()):
        log.warning("%d images could not be stored so and stay as they were", sum(unchanged.values()))
    provenance = {
        "repack": {**identity, "unchanged": unchanged},
        "versions": build.versions,
        "source": source.provenance,
    }
    write_image_manifest(store, make_image_manifest(records, source.classes, provenance))
    return build.url


def _count_unchanged(records: Sequence[RepackRecord]) -> dict[str, int]:
    splits = dict.fromkeys(record.split for record in records)
    return {split: sum(r.unchanged for r in records if r.split == split) for split in splits}


class Repacker:
    """Stores tars anew, one after another."""

    def __init__(self, job: RepackJob) -> None:
        self.job = job
        self.store = open_store(job.out)

    def build(self, portion: RepackPortion, count: Count) -> RepackRecord:
        """Write a tar, its index and its record.

        Raises:
            ShardError: a tar or an index that is missing or not what the manifest describes.
            StorageError: what is to be written cannot be.
        """
        pixels = self.job.pixels
        entry = portion.entry
        source = open_elsewhere(open_store(portion.source), {entry.name: entry.url} if entry.url else {})
        where = source.url_of(entry.name)
        index = _read_source_index(source, entry)
        unchanged = image_bytes = 0
        with ExitStack() as stack:
            spool_folder = self.store.local_path(".")
            file = stack.enter_context(
                opened_tar(source, entry.name, entry.size_bytes, url=where, spool_folder=spool_folder)
            )
            _check_digest(file, entry, where)
            members = read_members(file, where=where, on_odd=lambda *_: None)  # none of them is in the index
            names = {member.offset: member.name for member in members}
            writer = stack.enter_context(ImageShardWriter(0, spool_folder=spool_folder))
            for offset, size_bytes, label in zip(*(column.tolist() for column in index), strict=True):
                file.seek(offset)
                content = file.read(size_bytes)
                converted = pixels.convert(content)
                unchanged += converted is None
                key, field = _key_and_field(names, offset, where)
                stored = content if converted is None else converted
                writer.add(stored, field if converted is None else pixels.field, label, key=key)
                image_bytes += len(stored)
                count(1, size_bytes, 0)
            shard = writer.write(self.store, entry.name)
        record = RepackRecord(
            number=portion.number,
            split=portion.split,
            shard=shard,
            most_label=int(index.label.max()),
            image_bytes=image_bytes,
            unchanged=unchanged,
        )
        write_record(self.store, record)
        return record


def _read_source_index(store: Store, entry: ImageShardEntry) -> ImageIndex:
    content = store.retry(store.read, entry.index.name, entry.index.size_bytes)
    where = f"{store.url}/{entry.index.name}"
    if hashlib.sha256(content).hexdigest() != entry.index.sha256:
        raise ShardError(
            "The index is not the one that the manifest describes.",
            where=where,
            expected=f"sha256 {entry.index.sha256}",
            remedy=INDEX_REMEDY,
        )
    return read_index(content, entry, where=where)


def _check_digest(file: BinaryIO, entry: ImageShardEntry, where: str) -> None:
    digest = hashlib.sha256()
    for chunk in Spooled(b"", [file]):
        digest.update(chunk)
    if digest.hexdigest() != entry.sha256:
        raise ShardError(
            "The tar is not the one that the manifest describes.",
            where=where,
            expected=f"sha256 {entry.sha256}",
            remedy="restore the file, or import the tars again",
        )


def _key_and_field(names: dict[int, str], offset: int, where: str) -> tuple[str, str]:
    found = split_name(names.get(offset, ""))
    if found is None:
        raise ShardError(
            "A row of the index is no file of the tar with a key and a field.",
            where=f"{where}, byte {offset}",
            remedy=INDEX_REMEDY,
        )
    return found
