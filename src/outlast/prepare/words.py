"""What finds the words of a build, and the warnings where they are too short or too long.

In: the ``[shards]`` table, or a segmenter from Python. Out: the rule that the builders follow, its name for
the identity of the build, and warnings.
"""

from collections.abc import Sequence
from typing import Literal

from outlast.errors import ConfigError
from outlast.logs import log
from outlast.shards.config import ShardsConfig
from outlast.shards.manifest import Manifest
from outlast.tokenizer.mecab import mecab_segmenter
from outlast.tokenizer.words import Segmenter

MOST_WORDS_PER_PIECE = 0.9
"""Where more of the pieces begin a word, masking whole words is nearly the same as masking tokens."""
MOST_PIECES_PER_WORD = 4.0

WordRule = Literal["pieces"] | Segmenter


def name_words(config: ShardsConfig, segmenter: Segmenter | None) -> str:
    """Return the name of the rule that finds words, ``none`` where there is none.

    Raises:
        ConfigError: a segmenter that calls itself like one of the recipe's rules.
    """
    if segmenter is None:
        return config.words or "none"
    if segmenter.name in ("none", "pieces", "mecab"):
        raise ConfigError(
            f"The segmenter is called {segmenter.name!r}.",
            where="Segmenter.name",
            expected="a name of its own, for the data would tell that shards.words found the words",
        )
    return segmenter.name


def find_word_rule(config: ShardsConfig, segmenter: Segmenter | None) -> WordRule | None:
    """Return the rule of a build. Raises ConfigError where its libraries are missing."""
    if segmenter is not None or config.words == "pieces":
        return segmenter or "pieces"
    return mecab_segmenter() if config.words == "mecab" else None


def versions_of(rule: WordRule | None) -> dict[str, str]:
    """Return the versions of the libraries and dictionaries that decide where words begin."""
    return dict(rule.versions) if isinstance(rule, Segmenter) else {}


def warn_of_words(manifest: Manifest) -> None:
    """Say where masking whole words would not do what it is meant for."""
    for warning in word_warnings(manifest):
        log.warning("%s", warning)


def word_warnings(manifest: Manifest) -> Sequence[str]:
    """Return warnings where words are so short, or so long, that masking them whole makes little sense."""
    entries = [entry for entries in manifest.splits.values() for entry in entries]
    num_words = sum(entry.num_words or 0 for entry in entries)
    num_pieces = sum(entry.num_tokens - entry.num_documents for entry in entries)
    if not num_words:
        return ()
    average = num_pieces / num_words
    if num_words > MOST_WORDS_PER_PIECE * num_pieces:
        return (
            f"words have {average:.2f} pieces on average: masking whole words is nearly the same as masking "
            "tokens; a segmenter that finds longer words, or a smaller vocabulary, would change that",
        )
    if average > MOST_PIECES_PER_WORD:
        return (
            f"words have {average:.1f} pieces on average, and those longer than an example's predictions are "
            "never masked; for text without spaces set shards.words (mecab: Japanese) or pass a segmenter, "
            "else raise tokenizer.vocab_size",
        )
    return ()
