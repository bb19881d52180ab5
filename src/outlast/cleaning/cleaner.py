"""The steps that look at one document alone: what is changed in it, and whether it stays.

In: the text of a document. Out: the cleaned text and the reason why it is dropped, if it is. A pure function
of the text and the configuration: the scan for duplicates and the building of shards see the same documents.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.language import find_language
from outlast.cleaning.measures import (
    letter_share,
    remove_control_characters,
    repeated_line_share,
    repeated_text_share,
)
from outlast.cleaning.normal_form import normalize

Step = tuple[str, Callable[[str], str]]
Rule = tuple[str, Callable[[str], bool]]
"""A name, and whether a document is dropped."""


class Cleaned(NamedTuple):
    """A document after cleaning; ``reason`` is the name of the rule that drops it, None where it stays."""

    text: str
    reason: str | None
    changed: tuple[str, ...]


class Cleaner:
    """Cleans documents one by one: first every step that changes text, then the rules, the cheap ones
    first."""

    def __init__(self, config: CleaningConfig) -> None:
        self.steps = _steps(config)
        self.rules = _rules(config)

    def clean(self, document: str) -> Cleaned:
        """Return what becomes of a document."""
        text = document
        changed: list[str] = []
        for name, step in self.steps:
            before, text = text, step(text)
            if text != before:
                changed.append(name)
        reason = next((name for name, drops in self.rules if drops(text)), None)
        return Cleaned(text, reason, tuple(changed))


def _steps(config: CleaningConfig) -> list[Step]:
    steps: list[Step] = []
    form = config.unicode_form
    if form != "none":
        steps.append(("unicode_form", functools.partial(normalize, form)))
    if config.remove_control_characters:
        steps.append(("control_characters", remove_control_characters))
    return steps


def _rules(config: CleaningConfig) -> list[Rule]:
    rules: list[Rule] = [("empty", lambda text: not text.strip())]
    if config.min_characters:
        rules.append(("too_short", lambda text: len(text) < config.min_characters))
    longest = config.max_characters
    if longest is not None:
        rules.append(("too_long", lambda text: len(text) > longest))
    if config.min_letter_share > 0:
        rules.append(("few_letters", lambda text: letter_share(text) < config.min_letter_share))
    if config.max_repeated_line_share < 1:
        limit = config.max_repeated_line_share
        rules.append(("repeated_lines", lambda text: repeated_line_share(text) > limit))
    if config.max_repeated_text_share < 1:
        rules.append(
            ("repeated_text", lambda text: repeated_text_share(text) > config.max_repeated_text_share)
        )
    if config.languages:
        rules.append(("other_language", lambda text: find_language(text) not in config.languages))
    return rules
