"""Images become shards: tars written from files, lists or tables, nothing encoded anew.

In: a path for each split. Out: tars, indexes and a manifest. The bytes are a function of the images, their
names and the configuration; a killed build goes on with the shards that are missing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from outlast.build.drive import Build
from outlast.build.plan import write_record
from outlast.build.processes import Count
from outlast.errors import CorpusError
from outlast.images.manifest import named_files, write_image_manifest
from outlast.images.record import COUNTED, ImageRecord, make_image_manifest, refuse_stray_labels
from outlast.images.records import MOST_IMAGE_BYTES, MOST_LABEL, OnBad
from outlast.images.sources import Share, plan_shards
from outlast.images.tables import image_type, read_rows
from outlast.images.tar_writer import ImageShardWriter
from outlast.logs import format_count, log
from outlast.shards.document import MANIFEST_NAME
from outlast.storage import open_store
from outlast.storage.regular import read_whole


@dataclass(frozen=True, kw_only=True)
class PackConfig:
    """What the shards depend on, beside the images.

    Attributes:
        most_images, most_bytes: of a shard.
        seed: of the order of files; None: as they are found.
        on_bad: what becomes of an empty file or a row without image or label: an error, or left out and
            counted.
    """

    most_images: int = 10_000
    most_bytes: int = 2**28
    seed: int | None = 0
    on_bad: OnBad = "stop"


@dataclass(frozen=True, kw_only=True)
class PackJob:
    """What all shards have in common."""

    on_bad: OnBad
    out: str

    def open(self) -> "ImagePacker":
        """Return what writes shards in a process."""
        return ImagePacker(self)


def pack_images(
    sources: Mapping[str, str],
    out: str,
    config: PackConfig,
    *,
    num_processes: int | None = None,
    verify: bool = False,
) -> str:
    """Make a data set of images, or go on with what a killed build has left.

    Args:
        sources: a path for each split (train, validation, test): see ``shards.images.sources``.
        out: folder or URL for tars, indexes and manifest.
        num_processes: that write shards side by side; None: one for each core. A script that calls this with
            more than one needs ``if __name__ == "__main__":``.
        verify: of a data set that is complete already, compare digests and not sizes alone.

    Returns:
        the URL of the manifest.

    Raises:
        CorpusError: sources that cannot be read.
        ShardError: a folder that belongs to another build.
        StorageError: the data set cannot be written.
    """
    plan = plan_shards(
        sources, most_images=config.most_images, most_bytes=config.most_bytes, seed=config.seed
    )
    store = open_store(out)
    identity = {"pack": asdict(config), "images": plan.digest, "num_shards": len(plan.shares)}
    build = Build(store, out, MANIFEST_NAME, identity, ImageRecord)
    if build.is_complete(named_files, verify=verify):
        return build.url
    build.begin()
    if plan.ignored_files:
        log.warning(
            "%s files are no images by their names and are left out", format_count(plan.ignored_files)
        )
    log.info("%d shards", len(plan.shares))
    records = build.run(
        "images", PackJob(on_bad=config.on_bad, out=out), plan.shares, num_processes, counted=COUNTED
    )
    refuse_stray_labels(store, records, plan.classes)
    if count := sum(record.bad_examples for record in records):
        log.warning("%d images were left out: empty, of no known type or without a label", count)
    provenance = {"images": identity, "ignored_files": plan.ignored_files, "versions": build.versions}
    write_image_manifest(store, make_image_manifest(records, plan.classes, provenance))
    return build.url


class ImagePacker:
    """Writes shards, one after another."""

    def __init__(self, job: PackJob) -> None:
        self.job = job
        self.store = open_store(job.out)

    def build(self, portion: Share, count: Count) -> ImageRecord:
        """Write a shard, its index and its record. Raises CorpusError, StorageError."""
        num_bad, most_label, most_label_place = 0, -1, ""
        with ImageShardWriter(portion.first_number, spool_folder=self.store.local_path(".")) as writer:
            for image, suffix, label, place in _images(portion):
                problem = _find_problem(image, suffix, label)
                if problem and self.job.on_bad == "stop":
                    raise CorpusError(
                        f"The image {problem}.",
                        where=place,
                        remedy="repair it, or leave such images out with --on-bad skip",
                    )
                if problem:
                    num_bad += 1
                    continue
                assert label is not None
                if label > most_label:
                    most_label, most_label_place = label, Path(place).name
                writer.add(image, suffix, label)
                count(1, len(image), 0)
            examples = writer.examples
            name = f"{portion.split}-{portion.shard:06d}.tar"
            shard = writer.write(self.store, name) if examples else None
        record = ImageRecord(
            number=portion.number,
            split=portion.split,
            shard=shard,
            most_label=most_label,
            most_label_place=most_label_place,
            image_bytes=sum(example.size_bytes for example in examples),
            bad_examples=num_bad,
        )
        write_record(self.store, record)
        return record


def _images(share: Share) -> Iterator[tuple[bytes, str, int | None, str]]:
    """Yield bytes, type, label and place of each image. Raises CorpusError."""
    if share.table:
        yield from read_rows(Path(share.table), share.first_row, share.stop_row)
        return
    for image in share.files:
        path = Path(image.path)
        try:
            content = read_whole(path)
        except OSError as error:
            raise CorpusError(f"The image cannot be read: {error.strerror}.", where=image.path) from error
        if len(content) != image.size_bytes:
            raise CorpusError(
                f"The image has {len(content)} bytes now.",
                where=image.path,
                expected=f"{image.size_bytes}, as when the build began",
                remedy="build when nobody writes to the images",
            )
        suffix = path.suffix.lower().removeprefix(".") or image_type(content)
        yield content, suffix, image.label, image.path


def _find_problem(image: bytes, suffix: str, label: int | None) -> str | None:
    if not 0 < len(image) <= MOST_IMAGE_BYTES:
        return f"has {len(image)} bytes"
    if not (suffix and image_type(image)):  # a name alone makes no image
        return f"is of no known type: it begins with {image[:8]!r}"
    if label is None:
        return "has no label"
    if not 0 <= label <= MOST_LABEL:
        return f"has the label {label}"
    return None
