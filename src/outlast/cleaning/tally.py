"""What cleaning did to the documents of a portion: counts, and a few examples of what was dropped.

In: each document's fate, as it is decided. Out: a plain ``CleaningTally`` that goes into the portion's
record. Every document that was read is either kept or counted under exactly one reason. Which examples are
kept depends on their text alone, so tallies add up to the same whatever the portions are.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

NUM_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 200

Example = tuple[str, str]
"""The digest that chooses it, and the beginning of the text."""


@dataclass(kw_only=True)
class Dropped:
    """The documents that one rule dropped; their size is that of the text as it was read."""

    documents: int = 0
    text_bytes: int = 0
    examples: list[Example] = field(default_factory=list[Example])


@dataclass(kw_only=True)
class CleaningTally:
    """What became of some documents.

    Attributes:
        documents_in: read, and text_bytes_in their UTF-8 bytes.
        documents_out: kept, and text_bytes_out their bytes after cleaning.
        text_bytes_within: how much larger the kept documents were before cleaning; NFKC can make it negative.
        dropped: by reason.
        changed: kept documents that a step changed, by step.
        removed_lines: lines of kept documents that were removed as duplicates, with examples.
        quotes: the beginnings of documents that the merge names as examples, by their place.
    """

    documents_in: int = 0
    text_bytes_in: int = 0
    documents_out: int = 0
    text_bytes_out: int = 0
    text_bytes_within: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict[str, Dropped])
    changed: dict[str, int] = field(default_factory=dict[str, int])
    removed_lines: int = 0
    line_examples: list[Example] = field(default_factory=list[Example])
    quotes: dict[str, str] = field(default_factory=dict[str, str])

    def read(self, text_bytes: int) -> None:
        """Count a document that was read."""
        self.documents_in += 1
        self.text_bytes_in += text_bytes

    def keep(self, text_bytes_before: int, text_bytes: int, changed: Iterable[str]) -> None:
        """Count a document that stays, and the steps that changed it."""
        self.documents_out += 1
        self.text_bytes_out += text_bytes
        self.text_bytes_within += text_bytes_before - text_bytes
        for step in changed:
            self.changed[step] = self.changed.get(step, 0) + 1

    def drop(self, reason: str, text: str, text_bytes_before: int) -> None:
        """Count a document that is dropped; keep its beginning if its digest is among the lowest."""
        entry = self.dropped.setdefault(reason, Dropped())
        entry.documents += 1
        entry.text_bytes += text_bytes_before
        entry.examples = _lowest([*entry.examples, _example(text)])

    def remove_lines(self, lines: Iterable[str]) -> None:
        """Count lines that are removed from a document that stays."""
        for line in lines:
            self.removed_lines += 1
            self.line_examples = _lowest([*self.line_examples, _example(line)])


def add_tallies(tallies: Iterable[CleaningTally]) -> CleaningTally:
    """Return the tally of all documents together."""
    total = CleaningTally()
    for tally in tallies:
        total.documents_in += tally.documents_in
        total.text_bytes_in += tally.text_bytes_in
        total.documents_out += tally.documents_out
        total.text_bytes_out += tally.text_bytes_out
        total.text_bytes_within += tally.text_bytes_within
        total.removed_lines += tally.removed_lines
        total.line_examples = _lowest([*total.line_examples, *tally.line_examples])
        total.quotes |= tally.quotes
        for step, count in tally.changed.items():
            total.changed[step] = total.changed.get(step, 0) + count
        for reason, dropped in tally.dropped.items():
            entry = total.dropped.setdefault(reason, Dropped())
            entry.documents += dropped.documents
            entry.text_bytes += dropped.text_bytes
            entry.examples = _lowest([*entry.examples, *dropped.examples])
    return total


def beginning(text: str) -> str:
    """Return the first characters of a text, as an example shows it."""
    return text if len(text) <= _EXAMPLE_CHARACTERS else text[:_EXAMPLE_CHARACTERS] + "…"


def _example(text: str) -> Example:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest(), beginning(text)


def _lowest(examples: Iterable[Example]) -> list[Example]:
    return sorted(set(examples))[:NUM_EXAMPLES]
