"""Images in tables, as Hugging Face keeps image data sets: Parquet files, and the Arrow files of
``save_to_disk``. Needs pyarrow (extra ``parquet``).

In: a file with the columns ``image`` and ``label``. Out: what it holds, without its images; and bytes and
label of its rows. Nothing that a row names is ever opened: an image without bytes is an error.
"""

import importlib
import json
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast.errors import CorpusError
from outlast.storage.regular import read_whole

PARQUET, ARROW = ".parquet", ".arrow"
"""How the names of tables end."""

_BATCH_ROWS = 64
_STATE_NAME, _SPLITS_NAME = "state.json", "dataset_dict.json"
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_MAGICS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"P6", "ppm"),
    (b"P3", "ppm"),
    (b"P5", "pgm"),
    (b"P2", "pgm"),
)


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A file as it describes itself. ``image_bytes`` is that of the column before compression."""

    path: Path
    size_bytes: int
    num_rows: int
    image_bytes: int
    classes: tuple[str, ...] | None


def saved_tables(folder: Path, names: Collection[str]) -> list[Path] | None:
    """Return the files of a data set that the library ``datasets`` saved (``save_to_disk``), in order.

    Args:
        names: of the files in the folder.

    Returns:
        None where the folder is no such data set.

    Raises:
        CorpusError: several splits in one folder, or a list of files that cannot be read.
    """
    if _SPLITS_NAME in names:
        raise CorpusError(
            "The folder holds a data set of several splits.",
            where=str(folder / _SPLITS_NAME),
            remedy=f"name each: {folder}/train --validation {folder}/validation",
        )
    if _STATE_NAME not in names:
        return None
    path = folder / _STATE_NAME
    try:
        found = [str(entry["filename"]) for entry in json.loads(read_whole(path))["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorpusError(
            f"The list of the data set's files cannot be read: {error!r}", where=str(path)
        ) from None
    for name in found:
        if name not in names or not name.endswith(ARROW):
            raise CorpusError(f"It names {name!r}, which is no {ARROW} file beside it.", where=str(path))
    return [folder / name for name in found]


def open_table(path: Path) -> TableFile:
    """Read what a file says of itself. Raises CorpusError: no such table, or without the right columns."""
    with _opened(path) as table:
        names = table.schema.names
        if not {"image", "label"} <= set(names):
            raise CorpusError(
                "The file has no columns `image` and `label`.",
                where=str(path),
                expected=f"both among {', '.join(names)[:200]}",
                remedy="rename the columns, or make a list: a .csv file with the columns image,label",
            )
        kind = str(table.schema.field("label").type)
        if kind not in _INTEGERS:
            raise CorpusError(
                f"The column `label` holds {kind:.100}.",
                where=str(path),
                expected="whole numbers: " + ", ".join(_INTEGERS),
                remedy="number the classes (class_encode_column of the library datasets), or make a list: "
                "a .csv file with the columns image,label",
            )
        return TableFile(
            path=path,
            size_bytes=path.stat().st_size,
            num_rows=table.num_rows,
            image_bytes=table.image_bytes(),
            classes=_class_names(table.schema.metadata or {}),
        )


def read_rows(path: Path, first: int, stop: int) -> Iterator[tuple[bytes, str, int | None, str]]:
    """Yield bytes, type, label and place of some rows.

    An image without bytes comes with none, a missing label as None, an image of no known type with "".

    Raises:
        CorpusError: the file cannot be read.
    """
    with _opened(path) as table:
        for row, batch in table.batches(first, stop):
            for number in range(max(first - row, 0), min(stop - row, batch.num_rows)):
                content = _image_bytes(batch.column("image")[number].as_py())
                label = batch.column("label")[number].as_py()
                yield content, image_type(content), label, f"{path}, row {row + number}"


class _Parquet:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.schema: Any = file.schema_arrow
        self.num_rows: int = file.metadata.num_rows

    def image_bytes(self) -> int:
        metadata = self._file.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        return sum(
            column.total_uncompressed_size
            for column in columns
            if column.path_in_schema.partition(".")[0] == "image"
        )

    def batches(self, first: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield batches that hold the rows, with the number of their first row."""
        row = 0
        for group in range(self._file.metadata.num_row_groups):
            length = self._file.metadata.row_group(group).num_rows
            if row + length <= first or row >= stop:
                row += length
                continue
            for batch in self._file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=["image", "label"]):
                yield row, batch
                row += batch.num_rows


class _Arrow:
    """A stream of record batches, mapped into memory: what is not asked for is not read."""

    def __init__(self, reader: Any) -> None:
        self._batches: list[Any] = list(reader)
        self.schema: Any = reader.schema
        self.num_rows: int = sum(batch.num_rows for batch in self._batches)

    def image_bytes(self) -> int:
        return sum(batch.column("image").nbytes for batch in self._batches)

    def batches(self, first: int, stop: int) -> Iterator[tuple[int, Any]]:
        """Yield batches that hold the rows, with the number of their first row."""
        row = 0
        for batch in self._batches:
            if row < stop and row + batch.num_rows > first:
                batch.validate(full=True)  # a damaged file has offsets that lead out of it
                yield row, batch
            row += batch.num_rows


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
def _opened(path: Path) -> Generator[_Parquet | _Arrow]:
    try:
        arrow = importlib.import_module("pyarrow")
        parquet, streams = importlib.import_module("pyarrow.parquet"), importlib.import_module("pyarrow.ipc")
    except ImportError:
        raise CorpusError(
            "Reading tables needs the library pyarrow, which is not installed.",
            where=str(path),
            remedy="pip install 'outlast[parquet]'",
        ) from None
    kind = "Arrow" if path.suffix == ARROW else "Parquet"
    try:
        if path.suffix == ARROW:
            with arrow.memory_map(str(path)) as content, streams.open_stream(content) as reader:
                yield _Arrow(reader)
        else:
            with parquet.ParquetFile(path) as file:
                yield _Parquet(file)
    except (OSError, arrow.ArrowException) as error:
        raise CorpusError(f"The {kind} file cannot be read: {error}", where=str(path)) from error
