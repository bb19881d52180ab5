"""The scan: each portion writes hashes and signatures of its documents, for the merge to compare.

In: the extents of a portion. Out: ``cleaning/scan/<portion>-<section>-<part>``, rows of fixed width for the
documents that the rules keep, then ``cleaning/scan/<portion>.json``, which marks the portion as scanned and
carries the digests of the parts and its own. All are functions of the corpus and the configuration alone.
Memory is bounded by the size of a part (docs/formats/cleaning.md).
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.build.processes import Count
from outlast.cleaning.cleaner import Cleaner
from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.signatures import NUM_PERMUTATIONS, Signatures, line_hashes, num_bands, text_hash
from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.extent import TextPortion
from outlast.corpus.read import read_documents
from outlast.errors import CorpusError
from outlast.storage import Store, open_store
from outlast.storage.checksummed_json import DIGEST_KEY, Kind, encode, parse, read_file, validate

FOLDER = "cleaning/scan/"
SECTIONS = ("held_out", "corpus")
"""The two kinds of documents of a portion, in the order in which they count as earlier or later."""

_REMEDY = f"delete the folder {FOLDER} and prepare again"
_KIND = Kind("outlast-scan", (2,), "record of the scan", _REMEDY, CorpusError)
_PART_BYTES = 16 * 2**20
_BATCH_CHARACTERS = 2**17
_BATCH_DOCUMENTS = 256
_LINE = np.dtype("<u8")


@dataclass(frozen=True, kw_only=True)
class PortionScan:
    """What a scanned portion has written: for each part of each section its documents and its lines; the
    sha256 of each part by its name.
    """

    number: int
    parts: dict[str, list[tuple[int, int]]]
    files: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part: a row for each document, in order, and 16 bytes for each of their compared lines."""

    documents: NDArray[Any]
    lines: NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class ScanJob:
    """What all portions of a scan have in common."""

    corpus: CorpusConfig
    cleaning: CleaningConfig
    out: str

    def open(self) -> "PortionScanner":
        """Return what scans portions."""
        return PortionScanner(self)


class PortionScanner:
    """Scans portions, one after another. Raises ConfigError where a library is missing."""

    def __init__(self, job: ScanJob) -> None:
        self.job = job
        self.store = open_store(job.out)
        self.cleaner = Cleaner(job.cleaning)
        self.signatures = Signatures(job.cleaning) if job.cleaning.duplicates == "near" else None

    def build(self, portion: TextPortion, count: Count) -> None:
        """Write the parts and the record of a portion.

        Raises:
            CorpusError: text that cannot be read.
            StorageError: a part that cannot be written.
        """
        parts: dict[str, list[tuple[int, int]]] = {}
        files: dict[str, str] = {}
        for section, extents in zip(SECTIONS, (portion.held_out, portion.extents), strict=True):
            writer = _PartWriter(self.store, portion.number, section)
            documents = read_documents(self.job.corpus, extents, Tally())
            for batch in _batches(self._clean(documents, count)):
                writer.add(*self._describe(batch))
            writer.flush()
            parts[section] = writer.parts
            files |= writer.files
        record = PortionScan(number=portion.number, parts=parts, files=files)
        self.store.replace(_record_name(portion.number), [encode(_KIND, asdict(record))])

    def _clean(self, documents: Iterable[str], count: Count) -> Iterator[str]:
        for document in documents:
            count(1, len(document.encode()), 0)
            cleaned = self.cleaner.clean(document)
            if cleaned.reason is None:
                yield cleaned.text

    def _describe(self, batch: list[str]) -> tuple[NDArray[Any], list[bytes]]:
        config = self.job.cleaning
        rows = np.zeros(len(batch), row_dtype(config))
        lines: list[bytes] = []
        if config.duplicates != "keep":
            hashes = b"".join(map(text_hash, batch))
            rows["text"] = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        if self.signatures:
            rows["bands"], rows["signature"] = self.signatures.sign(batch)
        if config.duplicate_lines == "drop":
            lines = [line_hashes(text, config.min_duplicate_line_characters)[1] for text in batch]
            rows["num_lines"] = [len(several) // 16 for several in lines]
        return rows, lines


class _PartWriter:
    """Writes the rows of a section, a part as soon as it is large enough."""

    def __init__(self, store: Store, portion: int, section: str) -> None:
        self.store = store
        self.number = portion
        self.section = section
        self.parts: list[tuple[int, int]] = []
        self.files: dict[str, str] = {}
        self._rows: list[NDArray[Any]] = []
        self._lines: list[bytes] = []
        self._size_bytes = 0

    def add(self, rows: NDArray[Any], lines: list[bytes]) -> None:
        self._rows.append(rows)
        self._lines += lines
        self._size_bytes += rows.nbytes + sum(map(len, lines))
        if self._size_bytes >= _PART_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        rows, lines = np.concatenate(self._rows), b"".join(self._lines)
        name, content = _part_name(self.number, self.section, len(self.parts)), rows.tobytes() + lines
        self.store.replace(name, [content])
        self.files[name] = hashlib.sha256(content).hexdigest()
        self.parts.append((len(rows), len(lines) // 16))
        self._rows, self._lines, self._size_bytes = [], [], 0


def row_dtype(config: CleaningConfig) -> np.dtype[Any]:
    """Return the layout of a document's row, little-endian and without gaps."""
    fields: list[tuple[Any, ...]] = []
    if config.duplicates != "keep":
        fields.append(("text", "<u8", (2,)))
    if config.duplicates == "near":
        bands = num_bands(config.near_duplicate_similarity)[0]
        fields += [("bands", "<u8", (bands,)), ("signature", "u1", (NUM_PERMUTATIONS,))]
    if config.duplicate_lines == "drop":
        fields.append(("num_lines", "<u4"))
    return np.dtype(fields)


def scanned_portions(store: Store) -> set[int]:
    """Return the numbers of the portions that are marked as scanned."""
    names = [info.name.removeprefix(FOLDER) for info in store.list(FOLDER)]
    return {int(name.removesuffix(".json")) for name in names if name.endswith(".json")}


def read_scan(store: Store, portion: int) -> PortionScan:
    """Read the record of a scanned portion. Raises CorpusError where it is damaged or another's."""
    name = _record_name(portion)
    where = f"{store.url}/{name}"
    fields = parse(store.read(name), _KIND, where=where)
    fields.pop(DIGEST_KEY)
    scan = validate(PortionScan, fields, _KIND, where=where)
    if scan.number != portion:
        raise CorpusError(f"The record is that of portion {scan.number}.", where=where, remedy=_REMEDY)
    return scan


def read_parts(store: Store, scan: PortionScan, section: str, dtype: np.dtype[Any]) -> Iterator[Part]:
    """Yield the parts of a section. Raises CorpusError where one is not what its record says."""
    for number, (num_documents, num_lines) in enumerate(scan.parts[section]):
        name = _part_name(scan.number, section, number)
        content = read_file(store, name, scan.files, _KIND)
        split = num_documents * dtype.itemsize
        if len(content) != split + 16 * num_lines:
            message = f"The part has {len(content)} bytes, not {split + 16 * num_lines}."
            raise CorpusError(message, where=f"{store.url}/{name}", remedy=_REMEDY)
        lines = np.frombuffer(content, _LINE, offset=split).reshape(-1, 2)
        yield Part(documents=np.frombuffer(content, dtype, num_documents), lines=lines)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_characters = 0
    for document in documents:
        batch.append(document)
        num_characters += len(document)
        if num_characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, num_characters = [], 0
    if batch:
        yield batch


def _record_name(portion: int) -> str:
    return f"{FOLDER}{portion:05d}.json"


def _part_name(portion: int, section: str, part: int) -> str:
    return f"{FOLDER}{portion:05d}-{section}-{part:05d}"
