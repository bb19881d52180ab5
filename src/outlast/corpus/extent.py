"""Files of the corpus, stretches of them, and the stretches that make a portion.

In and out: plain values, sent to the processes that read them.
"""

from dataclasses import dataclass
from typing import Literal

from outlast.corpus.recognize import Format


@dataclass(frozen=True)
class TarMembers:
    """Which members of a tar belong to the corpus: those whose names match its patterns.

    Attributes:
        folder: what stands before their names when patterns are held against them: "" where the tar itself
            was named, else its place in the folder that was.
        taken_whole: its own name matches ``corpus.include``, so what is in it does.
    """

    folder: str = ""
    taken_whole: bool = False


@dataclass(frozen=True, kw_only=True)
class CorpusFile:
    """A file of the corpus.

    Attributes:
        name: relative to what the recipe names; with size and digest the file's identity.
        path: where it lies now.
        size_bytes: on disk.
        digest: of the size and of 16 blocks of 4 KiB spread over the file (all of a file up to 64 KiB).
        encoding: of text and jsonl; empty for tables, "auto" for a tar whose members are told one by one.
        format: of what it holds, in a tar of each member.
        documents: for text, what a document is.
        tar: it is a tar, and these are the members that count.
        unit_bytes: the file is a sequence of units that are read whole: (size_bytes,) for a file that is
            read only from its start, the sizes of the row groups of a Parquet file, one byte each where
            empty; runs of members of a tar, headers included.
        num_units: how many.
    """

    name: str
    path: str
    size_bytes: int
    digest: str
    encoding: str
    num_units: int
    format: Format = "text"
    documents: Literal["blank_line", "file"] = "blank_line"
    tar: TarMembers | None = None
    unit_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Extent:
    """A stretch of a file: units ``start`` to ``end`` (bytes, row groups or rows; 0 to 1 for a whole
    file).
    """

    file: CorpusFile
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, for rows an estimate."""
        if self.file.unit_bytes:
            return sum(self.file.unit_bytes[self.start : self.end])
        return self.file.size_bytes * (self.end - self.start) // max(self.file.num_units, 1)


Extents = tuple[Extent, ...]


@dataclass(frozen=True, kw_only=True)
class TextPortion:
    """One portion: its extents of the corpus, and of the held-out corpus where that lies apart."""

    number: int
    extents: Extents
    held_out: Extents

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return sum(extent.size_bytes for extent in (*self.extents, *self.held_out))
