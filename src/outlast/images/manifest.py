"""The manifest of a data set of images: its tars and their indexes (docs/formats/image_shard.md).

In: ``manifest.json`` beside the tars, its ``kind`` being ``images``. Out: a frozen ``ImageManifest``. It is
written last, as that of token shards is, and shares its outer keys.
"""

import itertools
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic

from outlast.corpus.tar import BLOCK
from outlast.errors import ShardError
from outlast.images.records import MOST_LABEL
from outlast.shards.document import (
    Splits,
    build_manifest,
    check_manifest,
    digest,
    parse_document,
    read_manifest_bytes,
    to_plain,
    write_document,
)
from outlast.shards.manifest import FileEntry
from outlast.storage import Store
from outlast.storage.elsewhere import is_url, open_elsewhere

KIND = "images"
INDEX_ROW_BYTES = 16
_PLAUSIBLE_CLASSES = 2**16
"""So many classes a set may have though it has fewer images: a sample of a set keeps the set's labels, which
have gaps then. It is three times the 21,841 of the whole ImageNet; a ResNet-50's classifier of as many takes
0.5 GB.
"""
LABEL_BOUND = f"a label below {_PLAUSIBLE_CLASSES}, or below the number of images of all splits"


@dataclass(frozen=True, kw_only=True)
class ImageShardEntry(FileEntry):
    """A tar and its index. ``url``: of the tar where it does not lie beside the manifest."""

    num_examples: Annotated[int, pydantic.Field(ge=1)]
    index: FileEntry
    url: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImageManifest(Splits[ImageShardEntry]):
    """``num_classes`` is the largest label of all splits and one; ``classes`` names them where names are
    known.
    """

    kind: Literal["images"] = KIND
    num_classes: Annotated[int, pydantic.Field(ge=1, le=MOST_LABEL + 1)]
    classes: tuple[str, ...] | None = None
    splits: dict[str, tuple[ImageShardEntry, ...]]
    provenance: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """The identity of the data: sha256 over everything but the provenance and where the tars lie."""
        plain = {key: value for key, value in to_plain(self).items() if key != "provenance"}
        for entry in itertools.chain.from_iterable(plain["splits"].values()):
            entry.pop("url", None)
        return digest(plain)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The tars and their indexes."""
        return tuple(file for entry in self.entries for file in (entry, entry.index))


def explain_stray_label(most_label: int, num_examples: int) -> str | None:
    """Return why the largest label of a set whose classes have no names can only be a mistake; None where it
    need not be one.
    """
    if most_label < max(_PLAUSIBLE_CLASSES, num_examples):
        return None
    return f"The label {most_label} would make {most_label + 1} classes of {num_examples} images."


def check_num_classes(manifest: ImageManifest, *, where: str) -> None:
    """Check that the number of classes can be meant. Raises ShardError.

    An import refuses such labels, but a manifest may come from elsewhere; and arrays for 10^9 classes are
    allocated until somebody kills the process.
    """
    num_examples = sum(entry.num_examples for entry in manifest.entries)
    problem = explain_stray_label(manifest.num_classes - 1, num_examples)
    if problem and manifest.classes is None:
        raise ShardError(
            problem, where=where, expected=LABEL_BOUND, remedy="correct the labels and import the data again"
        )


def is_image_set(url: str) -> bool:
    """Whether a manifest is that of a data set of images. Raises ShardError where there is none."""
    return parse_document(read_manifest_bytes(url)[0], where=url).get("kind") == KIND


def write_image_manifest(store: Store, manifest: ImageManifest) -> None:
    """Write the manifest as ``manifest.json``. Only after every file it names is there."""
    write_document(store, manifest.fingerprint, to_plain(manifest))


def read_image_manifest(url: str) -> tuple[ImageManifest, Store]:
    """Read a manifest by the URL of its file; return it with the store that holds the tars.

    Raises:
        ShardError: no such manifest, one of text, or one whose fingerprint does not match its content.
        ConfigError: its tars lie on a host of a private address that nobody has consented to.
    """
    text, store = read_manifest_bytes(url)
    manifest = parse_image_manifest(text, where=url)
    return manifest, open_elsewhere(store, {entry.name: entry.url for entry in manifest.entries if entry.url})


def named_files(url: str) -> tuple[FileEntry, ...]:
    """Return the tars and indexes that a manifest names. Raises ShardError."""
    return read_image_manifest(url)[0].files


def parse_image_manifest(text: bytes, *, where: str) -> ImageManifest:
    """Parse and check a manifest's bytes. Raises ShardError."""
    document = parse_document(text, where=where)
    if document.get("kind") != KIND:
        raise ShardError(
            "The data set holds no images.",
            where=where,
            remedy="name the manifest of a data set that `outlast shards import` or `images` made",
        )
    expected = document.pop("fingerprint", None)
    manifest, fingerprint = build_manifest(ImageManifest, document, where=where)
    _refuse_tiles(manifest, where=where)
    problem = _find_problem(manifest)
    check_manifest(problem, fingerprint == expected, where=where)
    return manifest


def _refuse_tiles(manifest: ImageManifest, *, where: str) -> None:
    repack: Any = manifest.provenance.get("repack")
    if isinstance(repack, dict) and repack.get("store") == "restart":
        raise ShardError(
            "The data set holds JPEGs in tiles, which this version reads no more.",
            where=where,
            remedy="build it again: `outlast shards repack` makes pixels of the set that it was made from, "
            "and `outlast shards import TAR... --out DIR` a set of the same pictures of its tars",
        )


def _find_problem(manifest: ImageManifest) -> str | None:
    """Return what cannot be true of a data set, None where all is well: what follows counts on it."""
    if manifest.classes is not None and len(manifest.classes) < manifest.num_classes:
        return f"it names {len(manifest.classes)} of {manifest.num_classes} classes"
    names: set[str] = set()
    for entry in manifest.entries:
        # An example is a header and an image of at least one block.
        if entry.num_examples * 2 * BLOCK > entry.size_bytes:
            return f"{entry.name} cannot hold {entry.num_examples} images in {entry.size_bytes} bytes"
        if entry.num_examples * INDEX_ROW_BYTES > entry.index.size_bytes:
            return f"{entry.index.name} cannot hold {entry.num_examples} rows"
        if {entry.name, entry.index.name} & names or entry.name == entry.index.name:
            return f"it names {entry.name} or its index twice"
        if entry.url is not None and not (is_url(entry.url) and entry.url.endswith(f"/{entry.name}")):
            return f"{entry.name} is said to lie at {entry.url!r:.200}, which is no such place in a store"
        names |= {entry.name, entry.index.name}
    return None
