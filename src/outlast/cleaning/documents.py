"""The documents that stay: each is cleaned, judged by the rules, then by what the merge found about
duplicates.

In: the documents of a section of a portion as they were read. Out: those that stay, cleaned, in the same
order; a tally of all. Where nothing is to be cleaned the documents pass untouched.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from outlast.cleaning.cleaner import Cleaner
from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.drops import REASONS, Drops, Merged, read_drops, read_merged
from outlast.cleaning.signatures import line_hashes
from outlast.cleaning.tally import CleaningTally, beginning
from outlast.errors import CorpusError
from outlast.storage import Store


class _Verdict(NamedTuple):
    text: str
    reason: str | None
    removed_lines: list[str]


class DocumentCleaning:
    """Cleans the documents of portions.

    Args:
        store: where the scan and the merge have left their verdicts, if the configuration needs them.
    """

    def __init__(self, config: CleaningConfig, store: Store) -> None:
        self.config = config
        self.store = store
        self.cleaner = Cleaner(config)
        self.merged: Merged | None = read_merged(store) if config.needs_scan else None

    def clean(
        self, documents: Iterable[str], portion: int, section: str, tally: CleaningTally
    ) -> Iterator[str]:
        """Yield the documents that stay; count all of them in the tally.

        Raises:
            CorpusError: the documents are not those that the scan saw.
        """
        if not self.config.is_on:
            yield from documents
            return
        drops = read_drops(self.store, self.merged, portion, section) if self.merged else None
        verdicts = _Verdicts(self.config, drops, f"{portion}/{section}", tally)
        for document in documents:
            text_bytes = len(document.encode())
            tally.read(text_bytes)
            cleaned = self.cleaner.clean(document)
            verdict = _Verdict(cleaned.text, cleaned.reason, [])
            if cleaned.reason is None and drops is not None:
                verdict = verdicts.next(cleaned.text)
            if verdict.reason is not None:
                tally.drop(verdict.reason, verdict.text, text_bytes)
                continue
            tally.remove_lines(verdict.removed_lines)
            changed = (*cleaned.changed, "duplicate_lines") if verdict.removed_lines else cleaned.changed
            tally.keep(text_bytes, len(verdict.text.encode()), changed)
            yield verdict.text
        verdicts.finish()


class _Verdicts:
    """What the merge found about the documents of a section, one after another."""

    def __init__(
        self, config: CleaningConfig, drops: Drops | None, section: str, tally: CleaningTally
    ) -> None:
        self.config = config
        self.drops = drops
        self.section = section
        self.tally = tally
        self.document = self.line = 0

    def next(self, text: str) -> _Verdict:
        """Return the verdict on the next document that the rules keep."""
        drops = self.drops
        assert drops is not None
        if self.document >= len(drops.documents):
            raise _changed(self.section)
        reason = REASONS[drops.documents[self.document]]
        if self.document in drops.quoted:
            self.tally.quotes[f"{self.section}/{self.document}"] = beginning(text)
        self.document += 1
        removed: list[str] = []
        if self.config.duplicate_lines == "drop":
            chosen, _ = line_hashes(text, self.config.min_duplicate_line_characters)
            repeated = drops.lines[self.line : self.line + len(chosen)]
            if len(repeated) < len(chosen):
                raise _changed(self.section)
            self.line += len(chosen)
            if reason is None and repeated.any():
                lines = text.split("\n")
                gone = set(chosen[np.flatnonzero(repeated)].tolist())
                removed = [lines[number] for number in sorted(gone)]
                kept = "\n".join(line for number, line in enumerate(lines) if number not in gone)
                if not kept.strip():
                    return _Verdict(text, "duplicate_lines", [])
                text = kept
        return _Verdict(text, reason, removed)

    def finish(self) -> None:
        """Check that the scan saw no more documents than there were."""
        if self.drops is not None and self.document != len(self.drops.documents):
            raise _changed(self.section)


def _changed(section: str) -> CorpusError:
    return CorpusError(
        "The documents are not those that were scanned for duplicates.",
        where=f"portion {section}",
        remedy="the corpus or a library has changed since: prepare into another folder",
    )
