"""What the labels of a source mean: numbers as they are, or names that are numbered in sorted order.

In: labels as lists, folders and tables have them. Out: the names of the classes, None where labels are
numbers without names; or an error that names the odd label. All labels are numbers or all are names, and all
tables name the same classes: nothing is numbered anew without a word.
"""

import itertools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outlast.errors import CorpusError
from outlast.images.manifest import LABEL_BOUND, explain_stray_label
from outlast.images.records import MOST_LABEL
from outlast.images.tables import TableFile
from outlast.logs import log

_NUMBER = re.compile(r"-?\d{1,100}")


class Found(NamedTuple):
    """An image with its label. ``line`` is its line in a list; None for an image from a folder."""

    name: str
    path: Path
    label: str | int
    list_path: Path | None = None
    line: int = 0

    @property
    def place(self) -> str:
        """Where its label stands, for messages."""
        return f"{self.list_path}, line {self.line}" if self.list_path else str(self.path)


def parse_label(value: Any, *, place: str) -> str | int | None:
    """Return the label of a line: a number or a name; None where it is neither.

    Raises:
        CorpusError: a number that no label may be.
    """
    if isinstance(value, str):
        value = value.strip()
        value = int(value) if _NUMBER.fullmatch(value) else value
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        return None
    if isinstance(value, int) and not 0 <= value <= MOST_LABEL:
        raise CorpusError(
            f"The label is {value}.",
            where=place,
            expected=f"a number from 0 to {MOST_LABEL}, or a name",
            remedy="correct the label, or leave the line out",
        )
    return value


def name_classes(images: Collection[Found]) -> tuple[str, ...] | None:
    """Return the names of the classes of all splits, sorted; None where labels are numbers.

    Raises:
        CorpusError: some labels are numbers, others are names (the first of the rarer kind is named); or a
            number that can only be a mistake.
    """
    kinds = Counter(type(image.label) for image in images)
    if len(kinds) > 1:
        odd = min(kinds, key=lambda kind: kinds[kind])
        first = next(image for image in images if type(image.label) is odd)
        words = ("number", "names") if odd is int else ("name", "numbers")
        raise CorpusError(
            f"The label {first.label!r:.200} is a {words[0]}, "
            f"but {kinds.total() - kinds[odd]} labels are {words[1]}.",
            where=first.place,
            expected="numbers alone or names alone, the same in all splits",
            remedy="correct the label",
        )
    if str in kinds:
        return tuple(sorted({str(image.label) for image in images}))
    largest = max(images, key=lambda image: int(image.label))
    if problem := explain_stray_label(int(largest.label), len(images)):
        raise CorpusError(problem, where=largest.place, expected=LABEL_BOUND, remedy="correct the label")
    return None


def classes_of_tables(files: Sequence[TableFile]) -> tuple[str, ...] | None:
    """Return the names of the classes that the tables of all splits have; None where none has any.

    The labels of a table without names are taken to be numbers of the others' names, and a warning says so.

    Raises:
        CorpusError: two tables have other names, or have them in another order.
    """
    named = [file for file in files if file.classes is not None]
    for file in named[1:]:
        pairs = itertools.zip_longest(file.classes or (), named[0].classes or ())
        for number, (here, there) in enumerate(pairs):
            if here != there:
                raise CorpusError(
                    f"The class {number} is {here!r:.200} here and {there!r:.200} in {named[0].path}.",
                    where=str(file.path),
                    expected="the same names in the same order in all tables and splits",
                    remedy="give all one ClassLabel: align_labels_with_mapping of the library datasets",
                )
    if named and len(named) < len(files):
        nameless = next(file for file in files if file.classes is None)
        log.warning(
            "%d of %d tables do not name their classes, first %s: their labels are taken as those of %s",
            len(files) - len(named),
            len(files),
            nameless.path,
            named[0].path,
        )
    return named[0].classes if named else None
