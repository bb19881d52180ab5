"""The verdict of the merge: the documents and lines of a portion that are dropped as duplicates.

In: what the merge decided. Out: ``cleaning/drops/<portion>-<section>.documents`` (a byte for each document
that the scan saw: 0 keep, 1 exact, 2 near duplicate) and ``.lines`` (a bit for each line that it saw), and
``cleaning/merged.json``, which is written last, with the digests of the others and its own. Where that is,
the scan is over (docs/formats/cleaning.md).
"""

import hashlib
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from outlast.errors import CorpusError
from outlast.logs import log
from outlast.storage import Store
from outlast.storage.checksummed_json import DIGEST_KEY, Kind, encode, parse, read_file, validate

MERGED_NAME = "cleaning/merged.json"
REASONS = (None, "exact_duplicate", "near_duplicate")
"""By the byte of a document."""

_REMEDY = "delete the folder cleaning/ and done/, and prepare again"
_KIND = Kind("outlast-duplicates", (1, 2), "record of the duplicates", _REMEDY, CorpusError)

DocumentPlace = tuple[int, str, int]
"""Portion, section, number among the documents that the scan saw."""


@dataclass(frozen=True, kw_only=True)
class DuplicateExample:
    """A dropped document, the earlier one that it is like, and their similarity."""

    dropped: DocumentPlace
    like: DocumentPlace
    similarity: float


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What the merge found. ``files`` is the sha256 of each verdict by its name, None where version 1 has
    none.
    """

    num_documents: int
    num_lines: int
    dropped: dict[str, int]
    dropped_lines: int
    examples: dict[str, list[DuplicateExample]]
    files: dict[str, str] | None = None

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
) -> dict[str, str]:
    """Write the verdict on a section and return its digests; a section without documents has none."""
    files: dict[str, str] = {}
    for kind, verdict in (("documents", documents), ("lines", np.packbits(lines, bitorder="little"))):
        if len(verdict):
            name, content = _name(portion, section, kind), verdict.tobytes()
            store.replace(name, [content])
            files[name] = hashlib.sha256(content).hexdigest()
    return files


def read_drops(store: Store, merged: Merged, portion: int, section: str) -> Drops:
    """Read the verdict on a section. Raises CorpusError where it is damaged."""

    def read(kind: str) -> NDArray[np.uint8]:
        name = _name(portion, section, kind)
        if merged.files is None:
            content = store.read(name) if store.exists(name) else b""
        else:
            content = read_file(store, name, merged.files, _KIND) if name in merged.files else b""
        return np.frombuffer(content, np.uint8)

    lines = np.unpackbits(read("lines"), bitorder="little").astype(np.bool_)
    return Drops(documents=read("documents"), lines=lines, quoted=merged.quoted(portion, section))


def write_merged(store: Store, merged: Merged) -> None:
    """Mark the merge as done. Only after every verdict is in place."""
    store.replace(MERGED_NAME, [encode(_KIND, asdict(merged))])


def read_merged(store: Store) -> Merged:
    """Read what the merge found. Raises CorpusError where it is damaged."""
    where = f"{store.url}/{MERGED_NAME}"
    fields = parse(store.read(MERGED_NAME), _KIND, where=where)
    if fields.pop(DIGEST_KEY, None) is None:
        log.info("%s is of version 1, which carries no digest: its verdicts are not checked", where)
    return validate(Merged, fields, _KIND, where=where)


def _name(portion: int, section: str, kind: str) -> str:
    return f"cleaning/drops/{portion:05d}-{section}.{kind}"
