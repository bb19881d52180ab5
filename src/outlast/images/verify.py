"""Checking and describing a data set of images.

In: the URL of its manifest. Out: every problem as a line that names its file, or a plain dict for a person.
Nothing is changed.
"""

import io
from typing import Any

import numpy as np

from outlast.corpus.tar import read_members
from outlast.errors import ShardError
from outlast.images.index import ImageIndex, read_index
from outlast.images.manifest import ImageShardEntry, read_image_manifest
from outlast.logs import format_count
from outlast.shards.read import Buffer
from outlast.shards.verify import verify_file
from outlast.storage import Store, split_url


def verify_images(url: str) -> list[str]:
    """Check every byte of every tar and index that a manifest names; return the problems, one line each.

    Checked are size and sha256, that every header of a tar is sound, that the rows of an index are files of
    its tar and that its labels are among the classes. Images are not decoded.

    Raises:
        ShardError: the manifest itself is missing or damaged.
        StorageError: the store does not answer.
    """
    manifest, store = read_image_manifest(url)
    return [
        problem
        for entries in manifest.splits.values()
        for entry in entries
        for problem in _verify_shard(store, entry, manifest.num_classes)
    ]


def _verify_shard(store: Store, entry: ImageShardEntry, num_classes: int) -> list[str]:
    indexes: list[ImageIndex] = []

    def check_index(content: Buffer) -> None:
        index = read_index(content, entry, where=entry.index.name)
        if index.label.max() >= num_classes:
            raise ShardError(f"holds the label {index.label.max()}, and there are {num_classes} classes")
        indexes.append(index)

    def check_tar(content: Buffer) -> None:
        # What an import was told to skip is no damage: the index says which members are examples.
        members = list(read_members(io.BytesIO(content), where=entry.name, on_odd=lambda *_: None))
        if not indexes:
            return
        files = {member.offset: member.size_bytes for member in members}
        sizes = [files.get(offset, -1) for offset in indexes[0].offset.tolist()]
        wrong = np.flatnonzero(np.array(sizes, np.int64) != indexes[0].size_bytes)
        if len(wrong):
            raise ShardError(f"row {wrong[0]} of its index is no file of it")

    problems = [f"{entry.index.name}: {problem}" for problem in verify_file(store, entry.index, check_index)]
    return problems + [f"{entry.name}: {problem}" for problem in verify_file(store, entry, check_tar)]


def describe_images(url: str) -> dict[str, Any]:
    """Return what a data set of images holds. Raises ShardError."""
    manifest, _ = read_image_manifest(url)
    return {
        "fingerprint": manifest.fingerprint,
        "kind": manifest.kind,
        "num_classes": manifest.num_classes,
        "classes": manifest.classes,
        "splits": {
            name: {
                "shards": len(entries),
                "images": sum(entry.num_examples for entry in entries),
                "size_bytes": sum(entry.size_bytes for entry in entries),
                "elsewhere": sorted({split_url(entry.url)[0] for entry in entries if entry.url}),
            }
            for name, entries in manifest.splits.items()
        },
        "provenance": manifest.provenance,
    }


def summarize_images(description: dict[str, Any]) -> dict[str, str]:
    """Return what ``shards show`` says of a data set of images to a person, a line each."""
    lines = {
        name: f"{format_count(split['images'])} images in {split['shards']} shards of "
        f"{format_count(split['size_bytes'])}B"
        for name, split in description["splits"].items()
    }
    places = {place for split in description["splits"].values() for place in split["elsewhere"]}
    lines["tars at"] = ", ".join(sorted(places))
    classes = description["classes"]
    shown = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "") if classes else ""
    lines["classes"] = f"{description['num_classes']}" + (f": {shown}" if shown else "")
    lines["fingerprint"] = description["fingerprint"]
    counts = description["provenance"].get("counts", {})
    lines["left out"] = ", ".join(
        f"{count} {name.replace('_', ' ')} of {split}"
        for split, found in counts.items()
        for name, count in found.items()
        if name in ("ignored_files", "bad_examples", "skipped_members") and count
    )
    if repack := description["provenance"].get("repack"):
        unchanged = sum(repack["unchanged"].values())
        lines["stored as"] = repack["store"] + (f", {unchanged} images as they were" if unchanged else "")
    versions = description["provenance"].get("versions", {})
    lines["made by"] = ", ".join(f"{name} {number}" for name, number in versions.items())
    return {name: line for name, line in lines.items() if line}
