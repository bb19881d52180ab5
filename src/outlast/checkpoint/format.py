"""The checkpoint format: arrays in safetensors parts, and the commit that says what every byte must be.

In: named arrays, or slices of arrays. Out: parts ready to write, and a frozen ``Commit``. The commit's
digests cover each byte of each part exactly once (header first, then slices without a gap), and its slices
cover each array exactly once; ``parse_commit`` refuses one that does not. The layout is normative:
docs/formats/checkpoint.md.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pydantic
import pydantic.dataclasses
from numpy.typing import NDArray

from outlast.checkpoint.lineage import CommitKey, parse_commit_name, parse_data_name
from outlast.errors import CheckpointError, DamagedCheckpoint, SealError
from outlast.storage.checksummed_json import Kind, check_kind, seal, unseal, validate

VERSION = 1
_COMMIT = Kind(None, (VERSION,), "commit", None, DamagedCheckpoint)
MAX_COMMIT_BYTES = 256 * 1024 * 1024
_LONGEST_NAME = 1024
_ALIGNMENT = 8

SAFETENSORS_DTYPES = {
    "bool": ("BOOL", 1),
    "uint8": ("U8", 1),
    "int8": ("I8", 1),
    "uint16": ("U16", 2),
    "int16": ("I16", 2),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "uint32": ("U32", 4),
    "int32": ("I32", 4),
    "float32": ("F32", 4),
    "uint64": ("U64", 8),
    "int64": ("I64", 8),
    "float64": ("F64", 8),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
}
"""The name of each numpy type in safetensors, and its width in bytes."""

Natural = pydantic.NonNegativeInt
_STRICT = pydantic.ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, kw_only=True)
class ArraySlice:
    """A box of an array, in host memory: ``array`` holds the elements from ``start``, of ``global_shape`` in
    all.
    """

    name: str
    global_shape: tuple[int, ...]
    start: tuple[int, ...]
    array: NDArray[Any]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
class Part:
    """One safetensors file; ``header_bytes`` counts its length field and its JSON header."""

    name: str
    size_bytes: Natural
    header_bytes: Natural
    header_sha256: str


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
class Slice:
    """Where a box of an array lies: bytes ``begin`` to ``end`` of the file of part number ``part``."""

    name: str
    dtype: str
    global_shape: tuple[Natural, ...]
    start: tuple[Natural, ...]
    shape: tuple[Natural, ...]
    part: Natural
    begin: Natural
    end: Natural
    sha256: str

    @property
    def whole(self) -> bool:
        return self.shape == self.global_shape


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
class Parent:
    """The checkpoint that the training of this one went on from, or that was saved before it."""

    name: str
    sha256: str


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=_STRICT)
class Commit:
    """The one object that makes a checkpoint exist."""

    version: int
    step: Natural
    attempt: pydantic.PositiveInt
    parent: Parent | None
    identity: dict[str, Any]
    mesh: dict[str, Any]
    parts: tuple[Part, ...]
    slices: tuple[Slice, ...]
    sha256: str = ""

    @property
    def key(self) -> CommitKey:
        return CommitKey(self.step, self.attempt)

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def slices_of(self, name: str) -> list[Slice]:
        return [entry for entry in self.slices if entry.name == name]

    def array_names(self, prefix: str = "") -> list[str]:
        """Return the names of the arrays that start with the prefix, sorted."""
        return sorted({entry.name for entry in self.slices if entry.name.startswith(prefix)})


@dataclass(frozen=True, kw_only=True)
class BuiltPart:
    """A part in memory: its bytes in order, and what the commit says of it. No digest is taken after this."""

    part: Part
    slices: tuple[Slice, ...]
    content: tuple[bytes | memoryview, ...]


def whole_arrays(arrays: Mapping[str, NDArray[Any]]) -> list[ArraySlice]:
    """Return each array as the one slice that covers it."""
    return [
        ArraySlice(
            name=name, global_shape=np.shape(array), start=(0,) * np.ndim(array), array=np.asarray(array)
        )
        for name, array in arrays.items()
    ]


def plan_parts(slices: Sequence[ArraySlice], part_bytes: int) -> list[list[ArraySlice]]:
    """Group slices into parts of at most ``part_bytes``.

    An array above that is cut along its first axis, each run of rows a part of its own (a single row may stay
    larger). Within a part the widest elements come first, so that each array lies aligned.
    """
    parts: list[list[ArraySlice]] = []
    group: list[ArraySlice] = []
    size = 0
    for entry in sorted(slices, key=lambda entry: (entry.name, entry.start)):
        if entry.array.nbytes > part_bytes:
            parts += [[rows] for rows in _cut_rows(entry, part_bytes)]
            continue
        if group and size + entry.array.nbytes > part_bytes:
            parts.append(group)
            group, size = [], 0
        group.append(entry)
        size += entry.array.nbytes
    if group:
        parts.append(group)
    return [sorted(part, key=lambda entry: -entry.array.itemsize) for part in parts]


def build_part(slices: Sequence[ArraySlice], *, name: str, index: int) -> BuiltPart:
    """Lay slices out as one safetensors file and digest every byte of it from the host buffers.

    Raises:
        CheckpointError: an array whose type safetensors does not have, a name used twice.
    """
    views = [_bytes_of(entry) for entry in slices]
    ends = list(itertools.accumulate(len(view) for view in views))
    begins = [0, *ends[:-1]]
    header: dict[str, Any] = {}
    for entry, begin, end in zip(slices, begins, ends, strict=True):
        title = _title(entry)
        if title in header:
            raise CheckpointError("Two arrays of a checkpoint have one name.", where=title)
        header[title] = {
            "dtype": SAFETENSORS_DTYPES[entry.array.dtype.name][0],
            "shape": list(entry.array.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(8, "little") + text
    entries = tuple(
        Slice(
            name=entry.name,
            dtype=entry.array.dtype.name,
            global_shape=entry.global_shape,
            start=entry.start,
            shape=entry.array.shape,
            part=index,
            begin=len(head) + begin,
            end=len(head) + end,
            sha256=hashlib.sha256(view).hexdigest(),
        )
        for entry, view, begin, end in zip(slices, views, begins, ends, strict=True)
    )
    size = len(head) + (ends[-1] if ends else 0)
    part = Part(
        name=name, size_bytes=size, header_bytes=len(head), header_sha256=hashlib.sha256(head).hexdigest()
    )
    return BuiltPart(part=part, slices=entries, content=(head, *views))


def encode_commit(commit: Commit) -> tuple[Commit, bytes]:
    """Return the commit with its digest, and its bytes. Its identity must be plain JSON."""
    content = seal(dataclasses.asdict(commit))
    return dataclasses.replace(commit, sha256=json.loads(content)["sha256"]), content


def parse_commit(content: bytes, *, name: str) -> Commit:
    """Parse and check the bytes of the commit object of that name.

    Raises:
        DamagedCheckpoint: bytes that fail the digest, a field that is missing, unknown or out of place, a
            part or an array that is not covered exactly once.
    """
    try:
        document = unseal(content, where=name)
    except SealError as error:
        raise DamagedCheckpoint(error.message, where=name) from None
    check_kind(document, _COMMIT, where=name)
    commit = validate(Commit, content, _COMMIT, where=name)
    problem = _find_problem(commit, name)
    if problem:
        raise DamagedCheckpoint(problem, where=name)
    return commit


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy type of a name; bfloat16 and float8 need the ml_dtypes package.

    Raises CheckpointError.
    """
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes  # it comes with jax; numpy alone has no such types
    except ImportError:
        raise CheckpointError(
            f"The checkpoint holds {name} arrays, which numpy alone cannot hold.",
            remedy="pip install ml_dtypes",
        ) from None
    return np.dtype(getattr(ml_dtypes, name))


def _cut_rows(entry: ArraySlice, part_bytes: int) -> list[ArraySlice]:
    if entry.array.ndim == 0 or entry.array.shape[0] == 1:
        return [entry]
    row_bytes = entry.array.nbytes // entry.array.shape[0]
    rows = max(1, part_bytes // row_bytes)
    return [
        dataclasses.replace(
            entry, start=(entry.start[0] + first, *entry.start[1:]), array=entry.array[first : first + rows]
        )
        for first in range(0, entry.array.shape[0], rows)
    ]


def _bytes_of(entry: ArraySlice) -> memoryview:
    """Return an array's elements in C order, little-endian, copied only where they do not lie so."""
    array = entry.array
    if array.dtype.name not in SAFETENSORS_DTYPES:
        raise CheckpointError(
            f"An array of type {array.dtype.name} cannot be saved.",
            where=entry.name,
            expected="one of " + ", ".join(SAFETENSORS_DTYPES),
        )
    if (
        not entry.name
        or len(entry.name) > _LONGEST_NAME
        or entry.name == "__metadata__"
        or not entry.name.isprintable()
    ):
        raise CheckpointError(
            "An array's name cannot be saved.", where=repr(entry.name[:80]), expected="printable text"
        )
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _title(entry: ArraySlice) -> str:
    """Return the name inside the safetensors file: the array's own where it is whole, so that any reader
    finds it.
    """
    if entry.array.shape == entry.global_shape:
        return entry.name
    box = ",".join(
        f"{first}:{first + count}" for first, count in zip(entry.start, entry.array.shape, strict=True)
    )
    return f"{entry.name}[{box}]"


def _find_problem(commit: Commit, name: str) -> str | None:
    """Return the first thing about a commit that cannot be true of one this package wrote, None where all is
    well.
    """
    if parse_commit_name(name) != commit.key:
        return f"The commit is of step {commit.step}, attempt {commit.attempt}; its name says otherwise."
    for part in commit.parts:
        if (
            parse_data_name(part.name) != commit.key
            or ".." in part.name
            or part.header_bytes > part.size_bytes
        ):
            return f"The part {part.name!r} cannot be of this commit."
    if len({part.name for part in commit.parts}) != len(commit.parts):
        return "A part is listed twice."
    return _find_gap_in_parts(commit) or _find_gap_in_arrays(commit)


def _find_gap_in_parts(commit: Commit) -> str | None:
    ends = [part.header_bytes for part in commit.parts]
    for entry in sorted(commit.slices, key=lambda entry: (entry.part, entry.begin, entry.end)):
        if entry.part >= len(ends) or entry.begin != ends[entry.part] or entry.end < entry.begin:
            return f"The slices of part {entry.part} leave a gap or overlap at byte {entry.begin}."
        ends[entry.part] = entry.end
    for part, end in zip(commit.parts, ends, strict=True):
        if end != part.size_bytes:
            return f"The slices end at byte {end} of {part.size_bytes} of {part.name}."
    return None


def _find_gap_in_arrays(commit: Commit) -> str | None:
    by_name: defaultdict[str, list[Slice]] = defaultdict(list)
    for entry in commit.slices:
        by_name[entry.name].append(entry)
    for name, entries in by_name.items():
        first = entries[0]
        if first.dtype not in SAFETENSORS_DTYPES:
            return f"The array {name} has the unknown type {first.dtype!r}."
        width = SAFETENSORS_DTYPES[first.dtype][1]
        for entry in entries:
            if (entry.dtype, entry.global_shape) != (first.dtype, first.global_shape):
                return f"The slices of {name} disagree about its type or shape."
            if not len(entry.start) == len(entry.shape) == len(entry.global_shape):
                return f"A slice of {name} has another number of axes."
            if any(
                a + n > whole
                for a, n, whole in zip(entry.start, entry.shape, entry.global_shape, strict=True)
            ):
                return f"A slice of {name} leaves the array."
            if math.prod(entry.shape) * width != entry.end - entry.begin:
                return f"A slice of {name} has another size than its bytes."
        if sum(math.prod(entry.shape) for entry in entries) != math.prod(first.global_shape) or _overlap(
            entries
        ):
            return f"The slices of {name} do not cover it exactly once."
    return None


def _overlap(entries: Sequence[Slice]) -> bool:
    """Whether two boxes share an element; a box without elements shares none."""
    boxes = [entry for entry in entries if math.prod(entry.shape)]
    if len(boxes) < 2 or not boxes[0].shape:
        return len(boxes) > 1
    starts = np.array([entry.start for entry in boxes])
    ends = starts + np.array([entry.shape for entry in boxes])
    for index in range(len(boxes) - 1):
        later = slice(index + 1, None)
        if np.any(np.all((starts[later] < ends[index]) & (starts[index] < ends[later]), axis=1)):
            return True
    return False
