"""Which language a document is in, by a library that brings its model along.

In: text. Out: a code such as "ja". Nothing is downloaded.
"""

import functools
from typing import Any

from outlast.errors import ConfigError

_EXCERPT_CHARACTERS = 300
_EXCERPT_BYTES = 600


def find_language(text: str) -> str:
    """Return the most likely language (ISO 639-1 where there is one).

    Looked at are 300 characters (at most 600 bytes) from the middle, or all of a shorter text: titles and
    addresses at the beginning say little. Raises ConfigError where the library is missing.
    """
    begin = max((len(text) - _EXCERPT_CHARACTERS) // 2, 0)
    excerpt = text[begin : begin + _EXCERPT_CHARACTERS].encode()[:_EXCERPT_BYTES]
    return str(identifier().classify(excerpt)[0])


def known_languages() -> tuple[str, ...]:
    """Return the codes that can be found. Raises ConfigError where the library is missing."""
    return tuple(sorted(set(identifier().labels)))


@functools.cache
def identifier() -> Any:
    """Return the library's identifier with its model, loaded once in a process. Raises ConfigError."""
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise ConfigError(
            "Languages cannot be told apart: py3langid is not installed.",
            where="cleaning.languages",
            remedy='pip install "outlast[language]"',
        ) from None
    return LanguageIdentifier.from_model_file(MODEL_FILE)
