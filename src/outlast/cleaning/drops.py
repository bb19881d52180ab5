"""The verdict of the merge: which documents and lines of a portion are dropped, being like earlier ones.

In: what the merge decided. Out: ``cleaning/drops/<portion>-<section>.documents`` (a byte for each document
that the scan saw: 0 keep, 1 exact, 2 near duplicate) and ``.lines`` (a bit for each line that it saw), and
``cleaning/merged.json``, which is written last. Where that is, the scan is over (docs/formats/cleaning.md).
"""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from outlast.errors import CorpusError
from outlast.storage import Store
from outlast.storage.checksummed_json import Kind, encode, parse, validate

MERGED_NAME = "cleaning/merged.json"
REASONS = (None, "exact_duplicate", "near_duplicate")
"""By the byte of a document."""

_REMEDY = "delete the folder cleaning/ and done/, and prepare again"
_KIND = Kind("outlast-duplicates", (1,), "record of the duplicates", _REMEDY, CorpusError)

DocumentPlace = tuple[int, str, int]
"""Portion, section, number among the documents that the scan saw."""


@dataclass(frozen=True, kw_only=True)
class DuplicateExample:
    """A dropped document, the earlier one that it is like, and how much."""

    dropped: DocumentPlace
    like: DocumentPlace
    similarity: float


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What the merge found."""

    num_documents: int
    num_lines: int
    dropped: dict[str, int]
    dropped_lines: int
    examples: dict[str, list[DuplicateExample]]

    def quoted(self, portion: int, section: str) -> set[int]:
        """Return the documents of a section that an example names."""
        places = [
            place
            for examples in self.examples.values()
            for example in examples
            for place in (example.dropped, example.like)
        ]
        return {number for found, kind, number in places if (found, kind) == (portion, section)}


@dataclass(frozen=True, kw_only=True)
class Drops:
    """The verdict on a section: ``documents`` uint8 of shape (documents,), ``lines`` bool of shape
    (lines,)."""

    documents: NDArray[np.uint8]
    lines: NDArray[np.bool_]
    quoted: set[int]


def write_drops(
    store: Store, portion: int, section: str, documents: NDArray[np.uint8], lines: NDArray[np.bool_]
) -> None:
    """Write the verdict on a section; a section without documents has none."""
    if len(documents):
        store.replace(_name(portion, section, "documents"), [documents.tobytes()])
    if len(lines):
        store.replace(_name(portion, section, "lines"), [np.packbits(lines, bitorder="little").tobytes()])


def read_drops(store: Store, merged: Merged, portion: int, section: str) -> Drops:
    """Read the verdict on a section."""
    names = {info.name for info in store.list(_name(portion, section, ""))}

    def read(kind: str) -> NDArray[np.uint8]:
        name = _name(portion, section, kind)
        return np.frombuffer(store.read(name) if name in names else b"", np.uint8)

    lines = np.unpackbits(read("lines"), bitorder="little").astype(np.bool_)
    return Drops(documents=read("documents"), lines=lines, quoted=merged.quoted(portion, section))


def write_merged(store: Store, merged: Merged) -> None:
    """Mark the merge as done. Only after every verdict is in place."""
    store.replace(MERGED_NAME, [encode(_KIND, asdict(merged))])


def read_merged(store: Store) -> Merged:
    """Read what the merge found. Raises CorpusError where it is damaged."""
    where = f"{store.url}/{MERGED_NAME}"
    return validate(Merged, parse(store.read(MERGED_NAME), _KIND, where=where), _KIND, where=where)


def _name(portion: int, section: str, kind: str) -> str:
    return f"cleaning/drops/{portion:05d}-{section}.{kind}"
