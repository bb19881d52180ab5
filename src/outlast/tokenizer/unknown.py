"""What a vocabulary cannot spell: unknown pieces, the characters behind them, names of control pieces.

In: texts and their ids, batch by batch. Out: an ``UnknownTally``, plain values that add up over the parts of
a corpus. A character is behind an unknown piece where it is unknown by itself or within a word.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from outlast.tokenizer.encode import Tokenizer

_MOST_CHARACTERS = 100
_CODE_POINTS = 0x110000


@dataclass(frozen=True, kw_only=True)
class UnknownTally:
    """What is unknown in texts.

    Attributes:
        tokens: of the texts, separators not counted.
        unknown: of these, the unknown piece.
        characters: how often the commonest characters behind unknown pieces stand in the texts.
        control_names: how often the name of each control piece stands in the texts, as text.
    """

    tokens: int = 0
    unknown: int = 0
    characters: dict[str, int] = field(default_factory=dict[str, int])
    control_names: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def share(self) -> float:
        """Unknown pieces among all tokens, 0 to 1."""
        return self.unknown / self.tokens if self.tokens else 0.0


class UnknownCounter:
    """Counts what one tokenizer does not know."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._unknown_id = tokenizer.manifest.special_ids["unk"]
        names = sorted(name.encode() for name in tokenizer.control_names)
        # A search for what many names begin with is spared the search for each.
        self._names = [(prefix, list(group)) for prefix, group in groupby(names, lambda name: name[:2])]
        self._tokens = self._unknown = 0
        self._code_points: NDArray[np.int64] | None = None
        self._found: Counter[str] = Counter()

    def add(self, texts: Sequence[str], contents: Sequence[bytes], ids: Sequence[NDArray[np.int32]]) -> None:
        """Count texts, given with their UTF-8 and their ids."""
        with_unknown: list[str] = []
        for text, own in zip(texts, ids, strict=True):
            self._tokens += len(own)
            unknown = int(np.count_nonzero(own == self._unknown_id))
            if unknown:
                self._unknown += unknown
                with_unknown.append(text)
        if with_unknown:
            self._add_code_points("".join(with_unknown))
        for content in contents:
            for prefix, names in self._names:
                if prefix in content:
                    self._found.update({name.decode(): content.count(name) for name in names})

    def _add_code_points(self, text: str) -> None:
        counts = np.bincount(np.frombuffer(text.encode("utf-32-le"), np.uint32))
        if self._code_points is None:
            self._code_points = np.zeros(_CODE_POINTS, np.int64)
        self._code_points[: len(counts)] += counts

    def tally(self) -> UnknownTally:
        """Return what was counted so far."""
        return UnknownTally(
            tokens=self._tokens,
            unknown=self._unknown,
            characters=self._characters(),
            control_names={name: count for name, count in sorted(self._found.items()) if count},
        )

    def _characters(self) -> dict[str, int]:
        if self._code_points is None:
            return {}
        present = np.flatnonzero(self._code_points)
        order = present[np.argsort(-self._code_points[present], kind="stable")].tolist()
        characters = [chr(code) for code in order]
        encode, unknown = self._tokenizer.encode_batch, self._unknown_id
        alone, within = encode(characters), encode([f"a{character}" for character in characters])
        within_is_told = unknown not in self._tokenizer.encode("a")
        behind = [
            character
            for character, one, two in zip(characters, alone, within, strict=True)
            if unknown in one or (within_is_told and unknown in two)
        ]
        return {c: int(self._code_points[ord(c)]) for c in behind[:_MOST_CHARACTERS]}


def add_tallies(tallies: Iterable[UnknownTally]) -> UnknownTally:
    """Add up the tallies of several parts of a corpus."""
    several = list(tallies)
    characters: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for one in several:
        characters.update(one.characters)
        names.update(one.control_names)
    commonest = sorted(characters.items(), key=lambda item: (-item[1], item[0]))
    return UnknownTally(
        tokens=sum(one.tokens for one in several),
        unknown=sum(one.unknown for one in several),
        characters=dict(commonest[:_MOST_CHARACTERS]),
        control_names=dict(sorted(names.items())),
    )
