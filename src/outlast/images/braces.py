"""Brace notation: one line that names many shards, as a shell would expand it, without a shell.

In: ``train-{000000..000639}.tar``. Out: the 640 names. Ranges of integers keep the zeros in front, lists
``{a,b}`` may be nested, several braces multiply. A brace that is neither is left as it stands.
"""

import re

from outlast.errors import ConfigError

_MOST_NAMES = 10**6
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")


def expand_braces(pattern: str) -> list[str]:
    """Return the names that a pattern stands for, in order.

    ``{000..010}`` and ``{000..010..2}`` are ranges: every name has as many digits as the longer end where one
    of the ends begins with a zero, as in bash. ``{train,val}`` is a list.

    Raises:
        ConfigError: more than a million names.
    """
    return _expand(pattern, pattern)


def _expand(text: str, pattern: str) -> list[str]:
    start = 0
    while (opening := text.find("{", start)) >= 0:
        closing = _closing(text, opening)
        choices = _choices(text[opening + 1 : closing], pattern) if closing else None
        if closing and choices is not None:
            rests = _expand(text[closing + 1 :], pattern)
            if len(choices) * len(rests) > _MOST_NAMES:
                raise _too_many(pattern)
            return [text[:opening] + choice + rest for choice in choices for rest in rests]
        start = opening + 1
    return [text]


def _closing(text: str, opening: int) -> int | None:
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place
    return None


def _choices(inside: str, pattern: str) -> list[str] | None:
    """Return what stands between two braces, one by one; None where it is neither a range nor a list."""
    found = _RANGE.fullmatch(inside)
    if found:
        return _numbers(found, pattern)
    parts, depth, begin = list[str](), 0, 0
    for place, character in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append(inside[begin:place])
            begin = place + 1
    if not parts:
        return None
    return [name for part in [*parts, inside[begin:]] for name in _expand(part, pattern)]


def _numbers(found: re.Match[str], pattern: str) -> list[str]:
    first, last, stride = (text or "0" for text in found.groups())
    if max(map(len, (first, last, stride))) > 18:
        raise _too_many(pattern)
    step = abs(int(stride)) or 1
    if abs(int(last) - int(first)) // step >= _MOST_NAMES:
        raise _too_many(pattern)
    width = max(len(first), len(last)) if any(re.match(r"-?0\d", end) for end in (first, last)) else 0
    if int(first) > int(last):
        numbers = range(int(first), int(last) - 1, -step)
    else:
        numbers = range(int(first), int(last) + 1, step)
    return [f"{number:0{width}d}" for number in numbers]


def _too_many(pattern: str) -> ConfigError:
    return ConfigError(
        "The braces stand for more names than any data set has shards.",
        where=pattern[:200],
        expected=f"at most {_MOST_NAMES}",
    )
