"""Where images to be packed come from: folders of classes, lists of files, tables of image data sets.

In: a path for each split. Out: the images in a fixed order, cut into the shares of shards, and the names of
the classes. The images themselves are read when a shard is written.

    folder   every file below ``SRC/<class>/`` with the suffix of an image; classes sorted by name
    list     a .csv, .tsv or .jsonl file with the columns ``image`` (below its folder) and ``label``
    parquet  the columns ``image`` (bytes, or a struct with ``bytes``) and ``label``, as Hugging Face has them
    saved    a folder that the library ``datasets`` wrote (``save_to_disk``), with the same columns
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from outlast.corpus.files import find_files
from outlast.errors import CorpusError
from outlast.images.labels import Found, classes_of_tables, name_classes, parse_label
from outlast.images.tables import ARROW, PARQUET, TableFile, open_table, saved_tables
from outlast.images.tar_writer import record_bytes
from outlast.prng import derive_key, permutation
from outlast.storage.regular import open_regular

SUFFIXES = ("jpg", "jpeg", "png", "ppm", "pgm", "bmp", "webp", "gif", "tif", "tiff")
_LISTS = (".csv", ".tsv", ".jsonl")
_SPLITS = ("train", "validation", "test")


class ImageFile(NamedTuple):
    """An image to be packed."""

    path: str
    label: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """What becomes one shard: files, or the rows ``first_row .. stop_row`` of a table."""

    number: int
    split: str
    shard: int
    """Its number within the split."""
    first_number: int
    """Of its first image within the split."""
    files: tuple[ImageFile, ...] = ()
    table: str = ""
    first_row: int = 0
    stop_row: int = 0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be done. ``digest`` covers the names of the classes and, in order, the name, size and label
    of each image, or the name and size of each table.
    """

    shares: tuple[Share, ...]
    classes: tuple[str, ...] | None
    digest: str
    ignored_files: int


class _File(NamedTuple):
    name: str
    path: Path


def plan_shards(sources: Mapping[str, str], *, most_images: int, most_bytes: int, seed: int | None) -> Plan:
    """Find the images of each split and divide them among shards.

    Args:
        sources: a path for each split: train, validation, test.
        most_images, most_bytes: of a shard; one image may exceed the second.
        seed: of the order of files within a split; None: as they are found. Rows of tables keep their
            order.

    Raises:
        CorpusError: sources that are missing, empty or of mixed kinds, or an image without a label.
    """
    digest = hashlib.sha256()
    shares: list[Share] = []
    tables: dict[str, list[TableFile]] = {}
    found: dict[str, list[Found]] = {}
    num_ignored = 0
    for split in (split for split in _SPLITS if split in sources):
        files = _local_files(sources[split])
        saved = saved_tables(Path(sources[split]), {file.name for file in files})
        if saved is not None or all(file.path.suffix in (PARQUET, ARROW) for file in files):
            tables[split] = [open_table(path) for path in saved or [file.path for file in files]]
        elif len(files) == 1 and files[0].path.suffix in _LISTS:
            found[split] = list(_read_list(files[0].path))
        else:
            found[split] = list(_classes_of(files, sources[split]))
            num_ignored += len(files) - len(found[split])
    if tables and found:
        raise CorpusError("Some splits are tables, others are not.", where=", ".join(sources.values()))
    if tables:
        classes = classes_of_tables([file for files in tables.values() for file in files])
    else:
        classes = name_classes([image for images in found.values() for image in images])
    if classes is not None:
        digest.update(json.dumps(classes).encode())
    for split, images in found.items():
        shuffled = _labelled(images, classes, split, seed)
        for name, image in shuffled:
            digest.update(
                f"{split}\0{name}\0{image.size_bytes}\0{image.label}\n".encode("utf-8", "surrogateescape")
            )
        shares += _divide(split, [image for _, image in shuffled], len(shares), most_images, most_bytes)
    for split, files in tables.items():
        for file in files:
            digest.update(f"{split}\0{file.path.name}\0{file.size_bytes}\0{file.num_rows}\n".encode())
        shares += _divide_rows(split, files, len(shares), most_images, most_bytes)
    return Plan(shares=tuple(shares), classes=classes, digest=digest.hexdigest(), ignored_files=num_ignored)


def _local_files(source: str) -> list[_File]:
    """Return the files of a source. Raises CorpusError where they are not on this machine."""
    found = find_files(source, "**")
    for file in found:
        if file.store is not None:
            raise CorpusError(
                "Images are packed from files of this machine.",
                where=file.path,
                remedy="copy them here first; tars in a store are read by `outlast shards import`",
            )
    return [_File(file.name, Path(file.path)) for file in found]


def _classes_of(files: Sequence[_File], source: str) -> Iterator[Found]:
    num_images = 0
    for file in files:
        if file.path.suffix.lower().removeprefix(".") not in SUFFIXES:
            continue
        name, slash, _ = file.name.partition("/")
        if not slash:
            raise CorpusError(
                "The image lies in no folder of a class.",
                where=str(file.path),
                expected=f"{source}/<class>/{file.name}",
                remedy="make a folder for each class, or name a .csv file with the columns image,label",
            )
        num_images += 1
        yield Found(file.name, file.path, name)
    if not num_images:
        raise CorpusError(
            "The folder holds no image.", where=source, expected=f"files in {', '.join(SUFFIXES)}"
        )


def _read_list(path: Path) -> Iterator[Found]:
    """Yield the images of a list. A name that leads out of the list's folder is refused."""
    root = path.parent.resolve()
    num_rows = 0
    for line, row in _rows(path):
        name, place = row.get("image"), f"{path}, line {line}"
        label = parse_label(row.get("label"), place=place)
        if not isinstance(name, str) or not name or label is None:
            raise CorpusError(
                f"The line has no image or no label: {json.dumps(row, default=str)[:200]}.",
                where=place,
                expected="the columns image and label",
            )
        image = path.parent / name
        try:
            real = image.resolve()
            is_there = real.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # too long a name, a NUL, links in a circle
            raise CorpusError(f"No file can have the name {name!r:.200}: {error}", where=place) from None
        if root not in real.parents:
            raise CorpusError(f"{name!r} lies outside the folder of the list.", where=place)
        if not is_there:
            raise CorpusError(f"There is no file {name!r}.", where=place, remedy=f"paths count from {root}")
        num_rows += 1
        yield Found(name, image, label, path, line)
    if not num_rows:
        raise CorpusError("The list is empty.", where=str(path))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    line = 1
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            if path.suffix == ".jsonl":
                for line, text in enumerate(file, 1):
                    if text.strip():
                        row = json.loads(text)
                        yield line, row if isinstance(row, dict) else {"image": None}
                return
            reader = csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            for row in reader:
                line = reader.line_num
                yield line, dict(row)
    except (OSError, ValueError, csv.Error, RecursionError) as error:
        raise CorpusError(f"The list cannot be read: {error}", where=f"{path}, line {line}") from error


def _labelled(
    images: Sequence[Found], classes: tuple[str, ...] | None, split: str, seed: int | None
) -> list[tuple[str, ImageFile]]:
    numbers = {name: number for number, name in enumerate(classes or ())}
    labelled: list[tuple[str, ImageFile]] = []
    for image in images:
        label = numbers[str(image.label)] if classes else int(image.label)
        try:
            size_bytes = image.path.stat().st_size
        except OSError as error:
            raise CorpusError(f"The image cannot be read: {error.strerror}.", where=str(image.path)) from None
        labelled.append((image.name, ImageFile(str(image.path), label, size_bytes)))
    if seed is None:
        return labelled
    order = permutation(len(labelled), derive_key(seed, "images", split))
    return [labelled[number] for number in order.tolist()]


def _divide(
    split: str, images: Iterable[ImageFile], first_portion: int, most_images: int, most_bytes: int
) -> Iterator[Share]:
    share: list[ImageFile] = []
    size_bytes = num_before = shard = 0

    def make() -> Share:
        return Share(
            number=first_portion + shard,
            split=split,
            shard=shard,
            first_number=num_before,
            files=tuple(share),
        )

    for image in images:
        more = record_bytes(image.size_bytes)
        if share and (len(share) == most_images or size_bytes + more > most_bytes):
            yield make()
            num_before += len(share)
            shard += 1
            share, size_bytes = [], 0
        share.append(image)
        size_bytes += more
    if share:
        yield make()


def _divide_rows(
    split: str, files: Sequence[TableFile], first_portion: int, most_images: int, most_bytes: int
) -> Iterator[Share]:
    """Yield runs of rows, none over two files. How long an image is shows only when it is read, so the bytes
    of a shard are reckoned by the mean of its file.
    """
    num_before = shard = 0
    for file in files:
        mean = record_bytes(-(-file.image_bytes // max(file.num_rows, 1)))
        length = max(1, min(most_images, most_bytes // mean))
        for first in range(0, file.num_rows, length):
            stop = min(first + length, file.num_rows)
            yield Share(
                number=first_portion + shard,
                split=split,
                shard=shard,
                first_number=num_before,
                table=str(file.path),
                first_row=first,
                stop_row=stop,
            )
            num_before += stop - first
            shard += 1
