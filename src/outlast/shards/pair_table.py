"""A pair table: the pairs of one shard for one sequence length, all passes (docs/formats/pair_table.md).

In: the pairs, some at a time. Out: a safetensors file of offsets beside the shards; and, the other way,
the columns of a file whose every row has been checked to lie within the shards that the manifest describes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ShardError
from outlast.shards.array_file import MAX_HEADER_BYTES, ArraySpan, make_head, parse_described
from outlast.shards.manifest import Manifest, PairSet, PairTableEntry
from outlast.shards.opened import OpenedFile, Rows
from outlast.shards.pairs import NUM_SPECIAL_TOKENS, Pairs
from outlast.shards.read import ArrayOf, Buffer
from outlast.storage import Store
from outlast.storage.checksummed_json import Kind
from outlast.storage.spool import Spool

PASS_OFFSETS = "pass_offsets"
_REMEDY = (
    "restore the file, or delete the folder of the tables and run `outlast shards pair` with the same "
    "values: it makes the same bytes"
)
_KIND = Kind("outlast-pair-table", ("1",), "pair table", _REMEDY, ShardError)

_BLOCK_ROWS = 2**16

# Wide numbers first, so that each array lies at a multiple of its numbers' size.
_COLUMNS = {
    "first_begin": "U32",
    "second_begin": "U32",
    "second_shard": "U32",
    "first_length": "U16",
    "second_length": "U16",
    "next_sentence_label": "U8",
}
_DTYPES = {"U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1")}


@dataclass(frozen=True, kw_only=True)
class TableIdentity:
    """Which table it is: written into the file, compared when it is opened.

    Attributes:
        data: the manifest's fingerprint.
        split, shard: whose pairs; the shard by its index in the split.
    """

    data: str
    split: str
    shard: int
    sequence_length: int
    num_passes: int
    short_probability: float
    seed: int

    def as_metadata(self) -> dict[str, str]:
        return {key: str(value) for key, value in vars(self).items()}


class PairTableWriter:
    """Collects the pairs of one shard, pass after pass.

    Args:
        identity: of the table.
        spool_folder: where the nameless temporary files lie; None for the system's folder.
    """

    def __init__(self, identity: TableIdentity, *, spool_folder: Path | None = None) -> None:
        self.identity = identity
        self.num_examples = 0
        self.num_random = 0
        self._pass_offsets = [0]
        self._spool = Spool(1 + len(_COLUMNS), spool_folder)

    def __enter__(self) -> "PairTableWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def add(self, pairs: Pairs) -> None:
        """Append pairs of the pass that is being written. Raises StorageError."""
        self.num_examples += len(pairs.first_begin)
        self.num_random += int(pairs.next_sentence_label.sum())
        columns = (getattr(pairs, name).astype(_DTYPES[kind]).data for name, kind in _COLUMNS.items())
        self._spool.write(b"", *(column.cast("B") if len(column) else b"" for column in columns))

    def end_pass(self) -> None:
        self._pass_offsets.append(self.num_examples)

    def write(self, store: Store, name: str) -> PairTableEntry:
        """Put the table in place, whole, and return its entry for the manifest.

        Raises:
            StorageError: the table cannot be written.
        """
        offsets = np.array(self._pass_offsets, "<i8")
        self._spool.write(offsets.tobytes())
        arrays = [(PASS_OFFSETS, "I64", len(offsets))]
        arrays += [(column, kind, self.num_examples) for column, kind in _COLUMNS.items()]
        header = make_head(_KIND, self.identity.as_metadata(), arrays, aligned=PASS_OFFSETS)
        size_bytes, sha256 = self._spool.put(store, name, header)
        return PairTableEntry(
            name=name,
            size_bytes=size_bytes,
            sha256=sha256,
            num_examples=self.num_examples,
            num_random=self.num_random,
        )


def identity_of(manifest: Manifest, pair_set: PairSet, split: str, shard: int) -> TableIdentity:
    """Return what the table of a shard must say of itself."""
    return TableIdentity(
        data=manifest.fingerprint,
        split=split,
        shard=shard,
        sequence_length=pair_set.sequence_length,
        num_passes=pair_set.num_passes,
        short_probability=pair_set.short_probability,
        seed=pair_set.seed,
    )


def open_pair_table(
    file: OpenedFile, entry: PairTableEntry, *, identity: TableIdentity, shard_tokens: Sequence[int]
) -> tuple[Rows, ...]:
    """Check every row of a local table and return its columns in the order of ``Pairs``.

    Args:
        entry, identity: what the manifest says of the table.
        shard_tokens: number of tokens of each shard of the split.

    Raises:
        ShardError: the file is damaged, or not the one that the manifest describes.
    """
    head = file.read(0, min(8 + MAX_HEADER_BYTES, file.size_bytes))
    where = str(file.path)
    spans = _check_table(head, file.size_bytes, file.array, entry, identity, shard_tokens, where)
    return tuple(
        file.rows(_DTYPES[_COLUMNS[name]], spans[name].shape, spans[name].begin) for name in Pairs._fields
    )


def read_pair_table(
    content: Buffer,
    entry: PairTableEntry,
    *,
    identity: TableIdentity,
    shard_tokens: Sequence[int],
    where: str,
) -> Pairs:
    """Check the bytes of a table and return its rows, which are views of them. Raises ShardError."""

    def array(dtype: np.dtype[Any], count: int, begin: int) -> NDArray[Any]:
        return np.frombuffer(content, dtype, count, begin)

    size = len(content)
    spans = _check_table(memoryview(content), size, array, entry, identity, shard_tokens, where)
    return _rows_of(array, spans, 0, entry.num_examples)


def _check_table(
    head: bytes | memoryview,
    file_size: int,
    array: ArrayOf,
    entry: PairTableEntry,
    identity: TableIdentity,
    shard_tokens: Sequence[int],
    where: str,
) -> dict[str, ArraySpan]:
    """Check a table, every row of it; return where its arrays lie. Raises ShardError."""
    arrays = {name: (code, (entry.num_examples,)) for name, code in _COLUMNS.items()}
    arrays[PASS_OFFSETS] = ("I64", (identity.num_passes + 1,))
    spans = parse_described(head, _KIND, identity.as_metadata(), arrays, file_size=file_size, where=where)
    problem = _find_problem(array, spans, identity, np.asarray(shard_tokens, np.int64))
    if problem:
        raise ShardError(f"The pair table is wrong: {problem}.", where=where, remedy=_REMEDY)
    return spans


def _rows_of(array: ArrayOf, spans: dict[str, ArraySpan], begin: int, stop: int) -> Pairs:
    return Pairs(
        **{
            name: array(dtype := _DTYPES[kind], stop - begin, spans[name].begin + begin * dtype.itemsize)
            for name, kind in _COLUMNS.items()
        }
    )


def _find_problem(
    array: ArrayOf, spans: dict[str, ArraySpan], identity: TableIdentity, shard_tokens: NDArray[np.int64]
) -> str | None:
    """Return what cannot be true of a table, None where all is well: the rows are followed unchecked."""
    (num_examples,) = spans["first_begin"].shape
    passes = array(np.dtype("<i8"), identity.num_passes + 1, spans[PASS_OFFSETS].begin)
    if passes[0] != 0 or passes[-1] != num_examples or (np.diff(passes) < 0).any():
        return f"pass_offsets do not rise from 0 to {num_examples}"
    for begin in range(0, num_examples, _BLOCK_ROWS):
        rows = _rows_of(array, spans, begin, min(begin + _BLOCK_ROWS, num_examples))
        problem = _find_problem_in_rows(rows, identity, shard_tokens)
        if problem:
            return problem
    return None


def _find_problem_in_rows(
    rows: Pairs, identity: TableIdentity, shard_tokens: NDArray[np.int64]
) -> str | None:
    if rows.second_shard.max() >= len(shard_tokens):
        return f"second_shard holds {rows.second_shard.max()}, and the split has {len(shard_tokens)} shards"
    if rows.next_sentence_label.max() > 1:
        return f"next_sentence_label holds {rows.next_sentence_label.max()}"
    if min(rows.first_length.min(), rows.second_length.min()) < 1:
        return "a segment has no tokens"
    longest = int((rows.first_length.astype(np.int32) + rows.second_length).max())
    if longest + NUM_SPECIAL_TOKENS > identity.sequence_length:
        return f"a pair has {longest} tokens, too many for a sequence of {identity.sequence_length}"
    if (rows.first_begin.astype(np.int64) + rows.first_length).max() > shard_tokens[identity.shard]:
        return "a first segment lies beyond the end of its shard"
    if (rows.second_begin.astype(np.int64) + rows.second_length > shard_tokens[rows.second_shard]).any():
        return "a second segment lies beyond the end of its shard"
    return None
