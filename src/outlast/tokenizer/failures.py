"""What a tokenizer's library raises at use, as an error for a person: the one place that decides it.

In: calls of libraries written in Rust, the tokenizer's name, and the texts they are given. Out: their
results, or a TokenizerError with the tokenizer, the beginning of the text and the remedy. A panic of Rust is
no ``Exception`` and cannot be sent from process to process; what comes out here is and can.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from outlast.errors import TokenizerError

_SHOWN_CHARACTERS = 60


def is_of_library(error: BaseException) -> bool:
    """Whether an error is a panic of Rust, or the plain Exception by which such libraries fail."""
    return type(error) is Exception or type(error).__module__ == "pyo3_runtime"


@contextmanager
def library_failures(
    tokenizer: str, texts: Sequence[str] = (), alone: Callable[[str], object] | None = None
) -> Generator[None]:
    """Raise TokenizerError where a library fails. Also a decorator.

    Args:
        tokenizer: what a person knows it by.
        texts: what the library is given.
        alone: gives it one of them, to find out which one it fails at.
    """
    try:
        yield
    except BaseException as error:
        if not is_of_library(error):
            raise
        text = _failing(texts, alone)
        where = None if text is None else f"the text that begins {text[:_SHOWN_CHARACTERS]!r}"
        raise TokenizerError(
            f"The library of the tokenizer {tokenizer} fails: {error}",
            where=where,
            expected="a tokenizer that any text can be given to: one whose patterns do not go over a text "
            "again and again",
            remedy="use another tokenizer, or leave such texts out: often long runs of like characters",
        ) from None


def _failing(texts: Sequence[str], alone: Callable[[str], object] | None) -> str | None:
    """Return the first text that fails by itself; where none does, the first of all."""
    if alone is not None and len(texts) > 1:
        for text in texts:
            try:
                alone(text)
            except BaseException as error:
                if not is_of_library(error):
                    raise
                return text
    return texts[0] if texts else None
