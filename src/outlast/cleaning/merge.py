"""The merge: of all documents that are alike the first one of the corpus stays, and the others are dropped.

In: the scans of all portions. Out: the verdict on every portion (``drops.py``). A function of the scans
alone, with bounded memory: records are brought together on disk by their key, and of a document only two bits
stay in memory, of a line one (docs/design/cleaning.md).

The documents are numbered in the order in which they count: first the held-out ones that lie apart, then the
others, each by portion. A document is dropped if an earlier one has the same text. As a near duplicate it is
dropped if an earlier one shares a band with it and their signatures are similar enough, even if that one was
dropped itself. So of two documents that were found to be alike never both stay, not even in different splits.
"""

import itertools
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.drops import (
    REASONS,
    DocumentPlace,
    DuplicateExample,
    Merged,
    write_drops,
    write_merged,
)
from outlast.cleaning.grouping import BitSet, Grouper, Records, open_spool
from outlast.cleaning.matching import candidates, columns, different, repeats
from outlast.cleaning.scan import (
    FOLDER,
    SECTIONS,
    Part,
    PortionScan,
    read_parts,
    read_scan,
    row_dtype,
)
from outlast.cleaning.signatures import NUM_PERMUTATIONS, estimate_similarity
from outlast.cleaning.tally import NUM_EXAMPLES
from outlast.prng import mix64
from outlast.storage import Store
from outlast.storage.spool import spool_failed

_PAIRS = 2**14


@dataclass(frozen=True, kw_only=True)
class _Section:
    """A section of a portion, and the numbers of its first document and its first line."""

    scan: PortionScan
    name: str
    first_document: int
    first_line: int
    num_documents: int
    num_lines: int


def find_duplicates(store: Store, config: CleaningConfig, num_portions: int) -> Merged:
    """Decide which documents and lines are dropped; write the verdicts and then the record that they are
    there.

    Raises:
        CorpusError: a scan that is damaged.
        StorageError: the temporary files or the verdicts cannot be written.
    """
    merge = _Merge(store, config, num_portions)
    if config.duplicates != "keep":
        merge.find_exact()
    if config.duplicates == "near" and merge.num_documents:
        merge.find_near()
    if config.duplicate_lines == "drop":
        merge.find_lines()
    files: dict[str, str] = {}
    for section in merge.sections:
        files |= write_drops(store, section.scan.number, section.name, *merge.verdict(section))
    merged = merge.result(files)
    write_merged(store, merged)
    return merged


def delete_scans(store: Store) -> None:
    """Delete what the scan has written. Only after the merge is done: nothing else reads it."""
    for info in store.list(FOLDER):
        store.delete(info.name)


class _Merge:
    def __init__(self, store: Store, config: CleaningConfig, num_portions: int) -> None:
        self.store = store
        self.dtype = row_dtype(config)
        self.limit = config.near_duplicate_similarity
        self.spool_folder: Path | None = store.local_path("cleaning")
        self.sections = _sections([read_scan(store, portion) for portion in range(num_portions)])
        self.num_documents = sum(section.num_documents for section in self.sections)
        self.num_lines = sum(section.num_lines for section in self.sections)
        self.exact = BitSet(self.num_documents)
        self.near = BitSet(self.num_documents)
        self.lines = BitSet(self.num_lines)
        self.examples: dict[str, list[tuple[int, int, float]]] = {}

    def find_exact(self) -> None:
        """Drop every document whose text has been there before."""
        with Grouper(3, num_records=self.num_documents, spool_folder=self.spool_folder) as grouper:
            for first, _, part in self._parts():
                grouper.add(columns(part.documents["text"], _numbers(first, len(part.documents))))
            for later, earlier in itertools.chain.from_iterable(map(repeats, grouper.buckets())):
                self.exact.add(later)
                self._take_examples("exact_duplicate", later, earlier, np.ones(len(later)))

    def find_near(self) -> None:
        """Drop every document that resembles an earlier one, among those whose text is the first of its
        kind."""
        bands = self.dtype["bands"].shape[0]
        shift = np.uint64(64 - max(self.num_documents.bit_length(), 1))
        folder, num_records = self.spool_folder, self.num_documents * bands
        with (
            Grouper(2, num_records=num_records, spool_folder=folder) as grouper,
            Grouper(2, num_records=num_records, spool_folder=folder) as pairs,
            open_spool(folder) as file,
        ):
            for first, _, part in self._parts():
                _write(file, np.ascontiguousarray(part.documents["signature"]).data)
                fresh = ~self.exact.range(first, first + len(part.documents))
                numbers = _numbers(first, len(part.documents))[fresh]
                hashes = part.documents["bands"][fresh].reshape(-1, 1)
                grouper.add(columns(hashes, np.repeat(numbers, bands)))
            for found in itertools.chain.from_iterable(map(candidates, grouper.buckets())):
                pairs.add(columns(found[:, :1] << shift, found[:, 1]))
            signatures = _SignatureFile(file, self.num_documents)
            for chunk in itertools.chain.from_iterable(pairs.buckets()):
                found = different(chunk)
                self._compare(signatures, found[:, 0] >> shift, found[:, 1])

    def find_lines(self) -> None:
        """Remove every line that has been there before, in a document that stays."""
        with Grouper(3, num_records=self.num_lines, spool_folder=self.spool_folder) as grouper:
            for first, first_line, part in self._parts():
                dropped = self._dropped(first, first + len(part.documents))
                kept = np.repeat(~dropped, part.documents["num_lines"])
                grouper.add(columns(part.lines[kept], _numbers(first_line, len(part.lines))[kept]))
            for later, _ in itertools.chain.from_iterable(map(repeats, grouper.buckets())):
                self.lines.add(later)

    def verdict(self, section: _Section) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Return the byte of each document and the bit of each line of a section."""
        begin, end = section.first_document, section.first_document + section.num_documents
        documents = self.exact.range(begin, end).astype(np.uint8)
        documents[self.near.range(begin, end)] = REASONS.index("near_duplicate")
        return documents, self.lines.range(section.first_line, section.first_line + section.num_lines)

    def result(self, files: dict[str, str]) -> Merged:
        counts = {"exact_duplicate": len(self.exact), "near_duplicate": len(self.near)}
        return Merged(
            num_documents=self.num_documents,
            num_lines=self.num_lines,
            dropped={reason: count for reason, count in counts.items() if count},
            dropped_lines=len(self.lines),
            examples={
                reason: [
                    DuplicateExample(
                        dropped=self._place(later), like=self._place(earlier), similarity=round(similarity, 3)
                    )
                    for later, earlier, similarity in sorted(examples)
                ]
                for reason, examples in sorted(self.examples.items())
            },
            files=files,
        )

    def _parts(self) -> Iterator[tuple[int, int, Part]]:
        """Yield every part in order, with the numbers of its first document and its first line."""
        for section in self.sections:
            document, line = section.first_document, section.first_line
            for part in read_parts(self.store, section.scan, section.name, self.dtype):
                yield document, line, part
                document += len(part.documents)
                line += len(part.lines)

    def _compare(self, signatures: "_SignatureFile", later: Records, earlier: Records) -> None:
        for begin in range(0, len(later), _PAIRS):
            some, others = later[begin : begin + _PAIRS], earlier[begin : begin + _PAIRS]
            similarity = estimate_similarity(signatures.read(some), signatures.read(others))
            alike = similarity >= self.limit
            self.near.add(some[alike])
            self._take_examples("near_duplicate", some[alike], others[alike], similarity[alike])

    def _dropped(self, begin: int, end: int) -> NDArray[np.bool_]:
        return self.exact.range(begin, end) | self.near.range(begin, end)

    def _take_examples(
        self, reason: str, later: Records, earlier: Records, similarity: NDArray[np.float64]
    ) -> None:
        """Keep the few pairs whose later document has the lowest mixed number: spread over the corpus, and
        always the same."""
        best = np.argsort(mix64(later), kind="stable")[:NUM_EXAMPLES]
        found = {(int(later[i]), int(earlier[i]), float(similarity[i])) for i in best}
        known = {pair[0]: pair for pair in sorted({*self.examples.get(reason, ()), *found}, reverse=True)}
        order = sorted(known, key=lambda number: int(mix64(np.array([number], np.uint64))[0]))
        if order:
            self.examples[reason] = [known[number] for number in order[:NUM_EXAMPLES]]

    def _place(self, number: int) -> DocumentPlace:
        section = next(
            section
            for section in reversed(self.sections)
            if section.first_document <= number and section.num_documents
        )
        return section.scan.number, section.name, number - section.first_document


class _SignatureFile:
    """The signatures of all documents on disk; what was read leaves the memory again."""

    def __init__(self, file: IO[bytes], num_documents: int) -> None:
        file.flush()
        self._map = mmap.mmap(file.fileno(), num_documents * NUM_PERMUTATIONS, access=mmap.ACCESS_READ)
        self._rows = np.frombuffer(self._map, np.uint8).reshape(-1, NUM_PERMUTATIONS)

    def read(self, numbers: Records) -> NDArray[np.uint8]:
        rows = self._rows[numbers.astype(np.intp)]
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        return rows


def _sections(scans: list[PortionScan]) -> list[_Section]:
    sections: list[_Section] = []
    document = line = 0
    for name in SECTIONS:
        for scan in scans:
            num_documents, num_lines = (sum(part[kind] for part in scan.parts[name]) for kind in (0, 1))
            sections.append(
                _Section(
                    scan=scan,
                    name=name,
                    first_document=document,
                    first_line=line,
                    num_documents=num_documents,
                    num_lines=num_lines,
                )
            )
            document += num_documents
            line += num_lines
    return sections


def _numbers(first: int, count: int) -> Records:
    return np.arange(first, first + count, dtype=np.uint64)


def _write(file: IO[bytes], content: memoryview) -> None:
    try:
        file.write(content)
    except OSError as error:
        raise spool_failed(error) from error
