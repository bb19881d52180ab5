"""Example shards: rows of fixed shape, as they came from elsewhere, masks included.

In: batches of rows, or an example shard. Out: the other of the two. A shard is a safetensors file with one
array for each name, first axis the rows, so that a row is read by its number from a mapped file
(docs/formats/example_shard.md). Used where examples cannot be cut out of tokens: their masks are fixed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError
from outlast.shards.array_file import MAX_HEADER_BYTES, ArraySpan, make_head, parse_described
from outlast.shards.manifest import ArrayName, ShardEntry, StaticExamples, TokenizerEntry
from outlast.shards.opened import OpenedFile, Rows
from outlast.shards.read import Buffer
from outlast.shards.token_format import SHARD_REMEDY, token_dtype
from outlast.storage import Store
from outlast.storage.checksummed_json import Kind
from outlast.storage.spool import Spool

_KIND = Kind("outlast-example-shard", ("1",), "example shard", SHARD_REMEDY, ShardError)
Arrays = dict[str, NDArray[Any]]


class ArrayKind(NamedTuple):
    """How an array is stored, and what it is in a batch."""

    size: Literal["L", "P", "1"]
    stored: str
    """Name of the dtype; "token" is that of the vocabulary."""
    batch: str
    least: float
    most: float


ARRAYS: dict[ArrayName, ArrayKind] = {
    "input_ids": ArrayKind("L", "token", "int32", 0, np.inf),
    "attention_mask": ArrayKind("L", "uint8", "int8", 0, 1),
    "token_type_ids": ArrayKind("L", "uint8", "int8", 0, 127),
    "masked_positions": ArrayKind("P", "uint32", "int32", 0, np.inf),
    "masked_ids": ArrayKind("P", "token", "int32", 0, np.inf),
    "masked_weights": ArrayKind("P", "float32", "float32", 0, 3e38),
    "next_sentence_label": ArrayKind("1", "uint8", "int32", 0, 1),
    "labels": ArrayKind("1", "int32", "int32", -(2**31), 2**31 - 1),
    "example_weights": ArrayKind("1", "float32", "float32", 0, 3e38),
}
"""Every array that a row may have."""

_CODES = {"uint8": "U8", "uint16": "U16", "uint32": "U32", "int32": "I32", "float32": "F32"}


def array_shape(name: ArrayName, examples: StaticExamples) -> tuple[int, ...]:
    """Return the shape of one row of an array; () for a single value."""
    size = ARRAYS[name].size
    return () if size == "1" else (examples.sequence_length if size == "L" else examples.num_predictions,)


def stored_dtype(name: ArrayName, vocab_size: int) -> np.dtype[Any]:
    """Return the little-endian dtype of an array on disk."""
    stored = ARRAYS[name].stored
    return token_dtype(vocab_size) if stored == "token" else np.dtype(stored).newbyteorder("<")


class ExampleShardWriter:
    """Collects the rows of one shard in nameless files, one for each array.

    Args:
        examples: the arrays and their shapes.
        vocab_size: ids lie below it.
        tokenizer_fingerprint: of the tokenizer that made the ids.
        spool_folder: where the temporary files lie; None for the system's folder.
    """

    def __init__(
        self,
        examples: StaticExamples,
        *,
        vocab_size: int,
        tokenizer_fingerprint: str,
        spool_folder: Path | None = None,
    ) -> None:
        self.examples = examples
        self.vocab_size = vocab_size
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.num_examples = 0
        self.num_tokens = 0
        self.num_token_types: int | None = None
        # The widest numbers first: then every array begins at a multiple of its own width.
        self._names = sorted(examples.arrays, key=lambda name: -stored_dtype(name, self.vocab_size).itemsize)
        self._spool = Spool(len(self._names), spool_folder)

    def __enter__(self) -> "ExampleShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def add(self, batch: Mapping[str, NDArray[Any]]) -> None:
        """Append rows that ``check_rows`` has passed.

        Args:
            batch: arrays by name; integers and floats of any width.

        Raises:
            StorageError: the temporary files cannot be written.
        """
        self._spool.write(
            *(batch[name].astype(stored_dtype(name, self.vocab_size)).tobytes() for name in self._names)
        )
        self.num_examples += len(batch["input_ids"])
        self.num_tokens += int(batch["attention_mask"].sum())
        if "token_type_ids" in self.examples.arrays:
            self.num_token_types = max(self.num_token_types or 1, count_token_types(batch))

    def write(self, store: Store, name: str) -> ShardEntry:
        """Put the shard in place, whole, and return its entry for the manifest.

        Raises:
            ShardError: no row was added.
            StorageError: the shard cannot be written.
        """
        if not self.num_examples:
            raise ShardError("A shard without examples cannot be written.", where=name)
        metadata = {
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "vocab_size": str(self.vocab_size),
        }
        arrays = [
            (
                array,
                _CODES[stored_dtype(array, self.vocab_size).name],
                (self.num_examples, *array_shape(array, self.examples)),
            )
            for array in self._names
        ]
        header = make_head(_KIND, metadata, arrays, aligned=self._names[0])
        size_bytes, sha256 = self._spool.put(store, name, header)
        return ShardEntry(
            name=name,
            size_bytes=size_bytes,
            sha256=sha256,
            num_tokens=self.num_tokens,
            num_documents=0,
            num_examples=self.num_examples,
            num_token_types=self.num_token_types,
        )


def count_token_types(batch: Mapping[str, NDArray[Any]]) -> int:
    """Return one more than the highest token type of some rows; 1 where they have none."""
    return 1 + int(batch["token_type_ids"].max(initial=0)) if "token_type_ids" in batch else 1


def check_rows(
    batch: Mapping[str, NDArray[Any]],
    examples: StaticExamples,
    *,
    vocab_size: int,
    place: Callable[[int], str],
) -> None:
    """Check every value of some rows.

    Args:
        batch: arrays by name, integers and floats of any width.
        vocab_size: ids lie below it.
        place: where the row of an index comes from, for messages.

    Raises:
        ShardError: a value that cannot be: an id outside the vocabulary, a mask other than 0 and 1, a
            position outside the row.
    """
    for name in examples.arrays:
        kind, values = ARRAYS[name], batch[name]
        most = kind.most
        if kind.stored == "token":
            most = vocab_size - 1
        elif name == "masked_positions":
            most = examples.sequence_length - 1
        # Written so that a NaN is wrong, too.
        right = (values >= kind.least) & (values <= most)
        if not right.all():
            index = np.unravel_index(int(np.argmin(right)), values.shape)
            raise ShardError(
                f"{name} holds {values[index]}.",
                where=place(int(index[0])),
                expected=f"{kind.least:.10g} to {most:.10g}",
                remedy="name the tokenizer that the records were made with"
                if kind.stored == "token"
                else "restore the file, or write it again",
            )


def open_examples(
    file: OpenedFile, entry: ShardEntry, examples: StaticExamples, tokenizer: TokenizerEntry
) -> dict[str, Rows]:
    """Return the arrays of a local example shard by name, the rows along the first axis. Raises ShardError
    where the file is damaged, or not the one that the manifest describes.
    """
    head = file.read(0, min(8 + MAX_HEADER_BYTES, file.size_bytes))
    spans = _find_arrays(head, file.size_bytes, entry, examples, tokenizer, where=str(file.path))
    return {
        name: file.rows(stored_dtype(name, tokenizer.vocab_size), span.shape, span.begin)
        for name, span in spans.items()
    }


def read_examples(
    content: Buffer,
    entry: ShardEntry,
    examples: StaticExamples,
    tokenizer: TokenizerEntry,
    *,
    where: str,
) -> Arrays:
    """Read an example shard from its bytes, without copying them. Raises ShardError."""
    spans = _find_arrays(memoryview(content), len(content), entry, examples, tokenizer, where=where)
    arrays: Arrays = {}
    for name, span in spans.items():
        dtype = stored_dtype(name, tokenizer.vocab_size)
        count = span.size_bytes // dtype.itemsize
        arrays[name] = np.frombuffer(content, dtype, count, span.begin).reshape(span.shape)
    return arrays


def _find_arrays(
    head: bytes | memoryview,
    file_size: int,
    entry: ShardEntry,
    examples: StaticExamples,
    tokenizer: TokenizerEntry,
    *,
    where: str,
) -> dict[ArrayName, ArraySpan]:
    """Return where the arrays lie that the manifest describes. Raises ShardError."""
    arrays: dict[ArrayName, tuple[str, tuple[int, ...]]] = {
        name: (
            _CODES[stored_dtype(name, tokenizer.vocab_size).name],
            (entry.num_examples or 0, *array_shape(name, examples)),
        )
        for name in examples.arrays
    }
    metadata = {"tokenizer_fingerprint": tokenizer.fingerprint}
    return parse_described(head, _KIND, metadata, arrays, file_size=file_size, where=where)
