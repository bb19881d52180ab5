"""What became of a portion of a build of images, and how the portions become a manifest.

In: the record of each finished portion. Out: the manifest, a function of the sources and the configuration
alone (docs/design/building_shards.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.build.plan import withdraw_record
from outlast.errors import ShardError
from outlast.images.manifest import (
    LABEL_BOUND,
    ImageManifest,
    ImageShardEntry,
    explain_stray_label,
)
from outlast.shards.manifest import FileEntry
from outlast.storage import Store

COUNTED = ("images", "B", "")
"""What builds of images count, for the line of progress."""


@dataclass(frozen=True, kw_only=True)
class ImageRecord:
    """What became of a portion.

    Attributes:
        number: of the portion.
        split: that it belongs to.
        shard: its tar; None where nothing of it became an example.
        most_label: the largest label, -1 without examples.
        most_label_place: file and place where it stands, without the folder, so that a record says the same
            wherever the sources lie; "" where labels have been checked before.
        image_bytes: of all images.
        ignored_files, bad_examples, skipped_members: what became no example.
        skipped_names: of the first of those members, for a person.
    """

    number: int
    split: str
    shard: ImageShardEntry | None
    most_label: int
    image_bytes: int
    ignored_files: int = 0
    bad_examples: int = 0
    skipped_members: int = 0
    skipped_names: tuple[str, ...] = ()
    most_label_place: str = ""

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The files that the portion consists of."""
        return () if self.shard is None else (self.shard, self.shard.index)


def refuse_stray_labels(
    store: Store, records: Sequence[ImageRecord], classes: tuple[str, ...] | None
) -> None:
    """Check the labels of all portions before they become a manifest.

    A portion with a label that can only be a mistake counts as not built any more: when its source has been
    repaired, the same line builds it again and goes on.

    Raises:
        ShardError: such a label, with its place.
    """
    if classes is not None:
        return
    num_examples = sum(record.shard.num_examples for record in records if record.shard is not None)
    found = [(record, explain_stray_label(record.most_label, num_examples)) for record in records]
    stray = [(record, problem) for record, problem in found if problem]
    for record, _ in stray:
        withdraw_record(store, record.number)
    if stray:
        record, problem = stray[0]
        raise ShardError(
            problem,
            where=f"{record.most_label_place}, of the split {record.split}",
            expected=LABEL_BOUND,
            remedy="correct the label and give the same line again",
        )


def make_image_manifest(
    records: Sequence[ImageRecord], classes: tuple[str, ...] | None, provenance: Mapping[str, Any]
) -> ImageManifest:
    """Put the records of all portions together, in the order of the portions.

    Raises:
        ShardError: no example at all; a label without a name where the classes have names.
    """
    splits: dict[str, tuple[ImageShardEntry, ...]] = {}
    counts: dict[str, dict[str, int]] = {}
    for split in dict.fromkeys(record.split for record in records):
        of_split = [record for record in records if record.split == split]
        entries = tuple(record.shard for record in of_split if record.shard is not None)
        if entries:
            splits[split] = entries
        counts[split] = {
            "images": sum(entry.num_examples for entry in entries),
            "image_bytes": sum(record.image_bytes for record in of_split),
            "ignored_files": sum(record.ignored_files for record in of_split),
            "bad_examples": sum(record.bad_examples for record in of_split),
        }
        if skipped := sum(record.skipped_members for record in of_split):
            counts[split]["skipped_members"] = skipped
    if not splits:
        raise ShardError(
            "The sources hold no example.",
            expected="images with a label each",
            remedy="docs/formats/image_shard.md says what makes an example",
        )
    num_classes = 1 + max(record.most_label for record in records)
    if classes is not None and num_classes > len(classes):
        raise ShardError(f"The label {num_classes - 1} has no name; there are {len(classes)} classes.")
    return ImageManifest(
        num_classes=num_classes if classes is None else len(classes),
        classes=classes,
        splits=splits,
        provenance={**provenance, "counts": counts},
    )
