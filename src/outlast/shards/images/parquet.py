"""Images in Parquet files, as Hugging Face keeps image data sets. Needs pyarrow (extra ``parquet``).

In: a file with the columns ``image`` and ``label``. Out: what it holds, from its footer; and bytes and label
of its rows. Nothing that a row names is ever opened: an image without bytes is an error.
"""

import importlib
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.errors import CorpusError

_BATCH_ROWS = 64
_MAGICS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"P6", "ppm"),
    (b"P5", "pgm"),
)


@dataclass(frozen=True, kw_only=True)
class ParquetFile:
    """A file as its footer describes it. ``image_bytes`` is that of the column before compression."""

    path: Path
    size_bytes: int
    num_rows: int
    image_bytes: int
    classes: tuple[str, ...] | None


def open_parquet(path: Path) -> ParquetFile:
    """Read the footer of a file. Raises CorpusError: no Parquet, or without the columns."""
    with _opened(path) as file:
        names = file.schema_arrow.names
        if not {"image", "label"} <= set(names):
            raise CorpusError(
                "The file has no columns `image` and `label`.",
                where=str(path),
                expected=f"both among {', '.join(names)[:200]}",
                remedy="rename the columns, or make a list: a .csv file with the columns image,label",
            )
        metadata = file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        return ParquetFile(
            path=path,
            size_bytes=path.stat().st_size,
            num_rows=metadata.num_rows,
            image_bytes=sum(
                column.total_uncompressed_size
                for column in columns
                if column.path_in_schema.partition(".")[0] == "image"
            ),
            classes=_class_names(file.schema_arrow.metadata or {}),
        )


def read_rows(path: Path, first: int, stop: int) -> Iterator[tuple[bytes, str, int, str]]:
    """Yield bytes, type, label and place of some rows.

    An image without bytes comes with none, a label that is none as -1, an image of no known type with "".

    Raises:
        CorpusError: the file cannot be read.
    """
    with _opened(path) as file:
        row = 0
        for group in range(file.metadata.num_row_groups):
            length = file.metadata.row_group(group).num_rows
            if row + length <= first or row >= stop:
                row += length
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=["image", "label"]):
                images, labels = batch.column("image"), batch.column("label")
                for image, label in zip(images, labels, strict=True):
                    if first <= row < stop:
                        content, number = _image_bytes(image.as_py()), label.as_py()
                        label = number if type(number) is int else -1
                        yield content, image_type(content), label, f"{path}, row {row}"
                    row += 1


def image_type(content: bytes) -> str:
    """Return the ending that a file of this content has; "" where it is of no known type."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((suffix for magic, suffix in _MAGICS if content.startswith(magic)), "")


def _image_bytes(value: Any) -> bytes:
    content = value.get("bytes") if isinstance(value, dict) else value
    return content if isinstance(content, bytes) else b""


def _class_names(metadata: dict[bytes, bytes]) -> tuple[str, ...] | None:
    """Return the names of the labels that Hugging Face's own metadata gives, if it does."""
    try:
        names = json.loads(metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    is_right = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    return tuple(names) if is_right else None


@contextmanager
def _opened(path: Path) -> Generator[Any]:
    try:
        arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise CorpusError(
            "Reading Parquet files needs the library pyarrow, which is not installed.",
            where=str(path),
            remedy="pip install 'outlast[parquet]'",
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, arrow.ArrowException) as error:
        raise CorpusError(f"The Parquet file cannot be read: {error}", where=str(path)) from error
