"""A corpus as plain text: one sentence a line, one blank line between documents.

In: a ``CorpusConfig``. Out: files ``<split>.<5 digits>``, each holding whole documents in the order of the
corpus. ``corpus.format = "text"`` with ``corpus.sentences = "lines"`` reads the same documents back, and they
give the same files again.
"""

import tempfile
from collections.abc import Iterator, Sequence
from typing import Literal

from outlast.corpus.config import CorpusConfig
from outlast.corpus.encoding import Tally
from outlast.corpus.plan import list_corpus, plan_portions
from outlast.corpus.read import read_splits
from outlast.corpus.sentences import sentence_splitter, split_lines
from outlast.errors import CorpusError
from outlast.logs import format_count, log
from outlast.storage import Store, open_store
from outlast.storage.spool import Spooled, spool_failed

MAX_FILES = 100_000

Measure = Literal["documents", "bytes"]


def write_corpus(config: CorpusConfig, out: str, *, num_files: int = 1, by: Measure = "documents") -> None:
    """Write the documents of a corpus, each split into ``num_files`` files of about equal size.

    The corpus is read twice: to measure, then to write. Each file appears whole; the same command again
    writes the same bytes.

    Args:
        out: folder or URL.
        num_files: 1 to 100,000. A file may be empty.
        by: what is shared out. By documents the counts of a split's files differ by at most 1; by bytes a
            document belongs to the file in whose share of the text its first byte lies.

    Raises:
        CorpusError: the corpus cannot be read, or the folder holds files of another division.
        StorageError: the files cannot be written.
    """
    if not 1 <= num_files <= MAX_FILES:
        raise CorpusError(f"{num_files} files cannot be written.", expected=f"1 to {MAX_FILES}")
    store = open_store(out)
    source = _Source(config)
    totals: dict[str, int] = {}
    for split, document in source.documents():
        totals[split] = totals.get(split, 0) + _weight(document, by)
    _refuse_others(store, {_name(split, part) for split in totals for part in range(num_files)})
    writers = {split: _SplitWriter(store, split, num_files, total) for split, total in totals.items()}
    split_document = sentence_splitter(config.sentences) or split_lines
    try:
        for split, document in source.documents():
            lines = [sentence.strip() for sentence in split_document(document)]
            writers[split].add([line for line in lines if line], _weight(document, by))
        for split, writer in writers.items():
            writer.finish()
            log.info("%s: %s", split, writer.summary)
    finally:
        for writer in writers.values():
            writer.close()


class _Source:
    """The documents of a corpus with their splits, as often as they are wanted."""

    def __init__(self, config: CorpusConfig) -> None:
        has_held_out = config.validation_path is not None
        self._config = config
        self._extents = plan_portions(list_corpus(config), 1)[0]
        self._held_out = plan_portions(list_corpus(config, held_out=True), 1)[0] if has_held_out else ()

    def documents(self) -> Iterator[tuple[str, str]]:
        return read_splits(self._config, self._extents, self._held_out, Tally())


class _SplitWriter:
    """The files of a split, one after another: a document goes to the file that its position falls into."""

    def __init__(self, store: Store, split: str, num_files: int, total: int) -> None:
        self._store = store
        self._split = split
        self._num_files = num_files
        self._total = total
        self._position = 0
        self._part = 0
        self._num_documents = 0
        self._num_lines = 0
        folder = store.local_path(".")
        try:
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        except OSError as error:
            raise spool_failed(error) from error

    @property
    def summary(self) -> str:
        documents, lines = format_count(self._num_documents), format_count(self._num_lines)
        return f"{documents} documents, {lines} lines in {self._num_files} files"

    def add(self, lines: Sequence[str], weight: int) -> None:
        self._go_to(self._position * self._num_files // self._total)
        self._position += weight
        self._num_documents += 1
        self._num_lines += len(lines)
        separator = "\n" if self._file.tell() else ""
        try:
            self._file.write((separator + "\n".join(lines) + "\n").encode())
        except OSError as error:
            raise spool_failed(error) from error

    def finish(self) -> None:
        self._go_to(self._num_files)

    def close(self) -> None:
        self._file.close()

    def _go_to(self, part: int) -> None:
        """Put the files before ``part`` in place."""
        while self._part < part:
            self._store.replace(_name(self._split, self._part), Spooled(b"", [self._file]))
            self._file.seek(0)
            self._file.truncate()
            self._part += 1


def _name(split: str, part: int) -> str:
    return f"{split}.{part:05d}"


def _weight(document: str, by: Measure) -> int:
    return 1 if by == "documents" else len(document.encode())


def _refuse_others(store: Store, names: set[str]) -> None:
    """Check that no file of another division lies there: who reads the folder would read it too."""
    found = [info.name for split in ("train", "validation") for info in store.list(f"{split}.")]
    others = [name for name in found if name not in names]
    if others:
        raise CorpusError(
            f"The folder holds files of another division: {', '.join(others[:5])}.",
            where=store.url,
            remedy="choose another --out, or delete them",
        )
