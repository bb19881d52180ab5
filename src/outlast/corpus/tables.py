"""Documents from tables: Parquet files by row groups, Hugging Face data sets by rows.

In: an ``Extent`` of row groups or rows. Out: the documents in it, each with its place. pyarrow and datasets
are loaded only here, and only when they are asked for.
"""

import hashlib
import importlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Decoder, Tally
from outlast.corpus.extent import CorpusFile, Extent
from outlast.corpus.recognize import nearest_field
from outlast.corpus.source import is_remote, open_file
from outlast.errors import CorpusError, printable_text

_BATCH_ROWS = 256
_PROBES = 16


def row_group_bytes(path: str, field: str) -> tuple[int, ...]:
    """Return the size of each row group of a Parquet file, at least 1. Raises CorpusError."""
    with _parquet_errors(path), _open_parquet(path) as file:
        schema = file.schema_arrow
        if field not in schema.names:
            raise CorpusError(
                f"The file has no column {field!r}.",
                where=path,
                expected=f"one of {', '.join(schema.names)}",
                remedy=nearest_field(
                    field, [name for name in schema.names if _is_text(schema.field(name).type)]
                ),
            )
        kind = schema.field(field).type
        if not _is_text(kind):
            raise CorpusError(
                f"The column {field!r} is {kind}, not text.", where=path, remedy="set corpus.text_field"
            )
        return tuple(
            max(int(file.metadata.row_group(index).total_byte_size), 1)
            for index in range(file.num_row_groups)
        )


def _is_text(kind: Any) -> bool:
    types = _load("pyarrow", "parquet").types
    return types.is_string(kind) or types.is_large_string(kind)


def read_parquet(config: CorpusConfig, extent: Extent, tally: Tally) -> Iterator[tuple[str, str]]:
    """Yield (document, place) of some row groups of a Parquet file. A null is an empty document. Raises
    CorpusError.
    """
    pyarrow = _load("pyarrow", "parquet")
    path = extent.file.path
    decoder = Decoder(extent.file.name, "utf-8", config.undecodable, tally)
    with _parquet_errors(path), _open_parquet(path) as file:
        for group in range(extent.start, extent.end):
            row = 0
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=[config.text_field]):
                # As bytes: a Parquet file may claim to hold UTF-8 and not do so.
                for content in batch.column(0).cast(pyarrow.large_binary()):
                    value: bytes = content.as_py() or b""
                    yield decoder.decode(value, 0), f"{extent.file.name}, row group {group}, row {row}"
                    row += 1


def list_dataset(config: CorpusConfig, path: str) -> CorpusFile:
    """Return a Hugging Face data set as one file whose units are rows. Raises CorpusError."""
    dataset = _open_dataset(config, path)
    num_rows = len(dataset)
    digest = hashlib.blake2b(str(num_rows).encode(), digest_size=16)
    for probe in sorted(
        {(num_rows - 1) * number // (_PROBES - 1) for number in range(_PROBES)} if num_rows else ()
    ):
        digest.update(str(dataset[probe][config.text_field]).encode("utf-8", "surrogatepass"))
    return CorpusFile(
        name=Path(path).name,
        path=path,
        size_bytes=int(dataset.data.nbytes),
        digest=digest.hexdigest(),
        encoding="",
        format="huggingface",
        num_units=num_rows,
    )


def read_dataset(config: CorpusConfig, extent: Extent) -> Iterator[tuple[str, str]]:
    """Yield (document, place) of some rows of a Hugging Face data set. None is an empty document. Raises
    CorpusError.
    """
    dataset = _open_dataset(config, extent.file.path)
    for begin in range(extent.start, extent.end, _BATCH_ROWS):
        values: Sequence[Any] = dataset[begin : min(begin + _BATCH_ROWS, extent.end)][config.text_field]
        for row, value in enumerate(values, begin):
            place = f"{extent.file.name}, row {row}"
            if value is not None and not isinstance(value, str):
                raise CorpusError(
                    f"The field {config.text_field!r} is {type(value).__name__}, not text.",
                    where=place,
                    remedy="set corpus.text_field",
                )
            yield value or "", place


def _open_dataset(config: CorpusConfig, path: str) -> Any:
    datasets = _load("datasets", "hub")
    try:
        if Path(path).is_dir():
            dataset = datasets.load_from_disk(path)
            dataset = dataset[config.dataset_split] if isinstance(dataset, dict) else dataset
        else:
            dataset = datasets.load_dataset(path, config.dataset_config, split=config.dataset_split)
    except Exception as error:  # the library raises whatever it met: network, cache, format
        raise CorpusError(
            f"The data set cannot be opened: {error}",
            where=path,
            remedy="check corpus.path, corpus.dataset_config and corpus.dataset_split",
        ) from error
    if config.text_field not in dataset.column_names:
        raise CorpusError(
            f"The data set has no field {config.text_field!r}.",
            where=path,
            expected=f"one of {', '.join(dataset.column_names)}",
            remedy=nearest_field(config.text_field, dataset.column_names),
        )
    return dataset.select_columns([config.text_field])


@contextmanager
def _open_parquet(path: str) -> Generator[Any]:
    parquet = _load("pyarrow.parquet", "parquet")
    if not is_remote(path) and printable_text(path) == path:
        with parquet.ParquetFile(path) as file:
            yield file
        return
    with open_file(path) as source, parquet.ParquetFile(source) as file:
        yield file


@contextmanager
def _parquet_errors(path: str) -> Generator[None]:
    """Turn what pyarrow raises for a damaged file into a CorpusError."""
    try:
        yield
    except (OSError, _load("pyarrow", "parquet").ArrowException) as error:
        raise CorpusError(f"The Parquet file cannot be read: {error}", where=path) from error


def _load(module: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise CorpusError(
            f"Reading this format needs the library {module.partition('.')[0]}, which is not installed.",
            remedy=f"pip install 'outlast[{extra}]'",
        ) from None
