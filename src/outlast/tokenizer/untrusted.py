"""Tokenizer files from outside, checked before a library that may check nothing loads them.

In: a ``tokenizer.json``, or the normalisation table of a sentencepiece model. Out: the loaded tokenizer, or a
TokenizerError. A table is walked as the libraries walk it, so none of its links leads out of it. Replacements
that may let a text grow without bound, and patterns that may go over a text again and again, are tried in a
process of their own, with limits of time and memory, for what they do cannot be told from the file.
"""

import base64
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

import numpy as np
import tokenizers

from outlast.errors import TokenizerError

_MOST_GROWTH = 64.0
"""How many times longer a text may become; the longest Unicode knows is 18 characters for one (U+FDFA)."""
_TRIAL_SECONDS, _TRIAL_CPU_SECONDS, _TRIAL_BYTES = 60, 10, 4 * 2**30
_LONGEST_KEY = 1000
"""Bytes of an entry of a normalisation table; those of Unicode have some twenty."""
_PROBES = "a Aé漢0.'_-\t\n\r\u3000\u0301😀"
"""A character of each class that patterns name."""
_GREW = 3
"""The exit code of a trial in which a text has grown beyond bounds."""
_ANCHORED = re.compile(r"\\A[^|]*|[^|]*\\z|\^[^|]*|[^|]*\$")
"""A pattern that is found once in a text."""
_REPEATS = re.compile(r"[*+]|\{\d*,")
"""In a pattern: what may be repeated. Two of them may share out a stretch of text among them in many ways."""
_PROBE_CHARACTERS = 300
"""Of a run of like characters, as lines drawn and tables have them."""


def load_json(content: bytes) -> tokenizers.Tokenizer:
    """Load a ``tokenizer.json``.

    Raises:
        TokenizerError: no such file, a damaged normalisation table, or texts would grow or take too much.
    """
    try:
        data: dict[str, Any] = json.loads(content)
        steps = [*_steps(data.get("normalizer")), *_steps(data.get("pre_tokenizer"))]
        for step in steps:
            if step.get("type") == "Precompiled":
                check_charsmap(base64.b64decode(step["precompiled_charsmap"] or ""))
        patterns = [str(_pattern(step).get("Regex", "")) for step in steps]
        if _growth(steps) > _MOST_GROWTH or any(len(_REPEATS.findall(one)) > 1 for one in patterns):
            _try_apart(content)
        return tokenizers.Tokenizer.from_str(content.decode())
    except TokenizerError:
        raise
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises plain Exception, and a panic is not even that
        raise TokenizerError(f"tokenizers cannot read the file: {error}") from None


def check_charsmap(content: bytes) -> None:
    """Check a compiled normalisation table: a double-array trie and the texts that its leaves name.

    Source: builder.cc and normalizer.cc of google/sentencepiece; darts.h of s-yata/darts-clone. The libraries
    follow its links unchecked.

    Raises:
        TokenizerError: a link or a text outside it.
    """
    if not content:
        return
    size = int.from_bytes(content[:4], "little")
    texts = content[4 + size :]
    if len(content) < 8 or size % 4 or not 4 <= size <= len(content) - 4 or texts[-1:] != b"\0":
        raise _damaged(f"it has {len(content)} bytes and says its first part has {size}")
    units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    labels = units & 0xFF
    parents = np.arange(len(units)) ^ labels
    is_node = (units >> 31 == 0) & (labels > 0) & (parents < len(units))
    parents[~is_node] = 0
    is_start = np.zeros(len(units), np.bool_)
    places = np.zeros(1, np.int64)
    for _ in range(_LONGEST_KEY):
        starts = places ^ offsets[places]
        if (starts | 255).max(initial=0) >= len(units):
            raise _damaged("a link leads out of it")
        leaves = starts[(units[places] >> 8 & 1).astype(np.bool_)]
        if (units[leaves] & 0x7FFFFFFF).max(initial=0) >= len(texts):
            raise _damaged("a leaf names a text outside it")
        is_start[starts] = True
        places = np.flatnonzero(is_node & is_start[parents])
        is_node[places] = False
        if not len(places):
            return
    raise _damaged(f"an entry has more than {_LONGEST_KEY} bytes")


def _damaged(what: str) -> TokenizerError:
    return TokenizerError(
        f"The normalisation table is damaged: {what}.", remedy="fetch the file again from where it came from"
    )


def _steps(value: Any) -> Iterator[dict[str, Any]]:
    """Yield a step of normalisation or division, and those in it."""
    if isinstance(value, dict):
        step = cast(dict[str, Any], value)
        yield step
        for inner in step.values():
            yield from _steps(inner)
    elif isinstance(value, list):
        for item in cast(list[Any], value):
            yield from _steps(item)


def _pattern(step: dict[str, Any]) -> dict[str, Any]:
    found = step.get("pattern")
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _growth(steps: list[dict[str, Any]]) -> float:
    """Return how many times longer the replacements can make a text, at most."""
    growth = 1.0
    for step in steps:
        if step.get("type") == "Replace":
            pattern, content = step["pattern"], len(step["content"])
            shortest = len(pattern.get("String", ""))
            if not _ANCHORED.fullmatch(pattern.get("Regex", "|")):
                growth = min(growth * max(content / shortest if shortest else content + 1, 1), 1e9)
    return growth


@lru_cache(8)  # a process may load a file several times; what is refused is tried again
def _try_apart(content: bytes) -> None:
    """Normalise and divide texts in a process with limits. Raises TokenizerError where it ends in no good
    way.
    """
    command = [sys.executable, "-P", "-m", "outlast.tokenizer.untrusted"]
    try:
        ended = subprocess.run(
            command, input=content, capture_output=True, check=False, timeout=_TRIAL_SECONDS
        ).returncode
    except subprocess.TimeoutExpired:
        ended = -1
    if ended:
        slow = "normaliser or one of its patterns takes too long, or too much memory"
        how = "normaliser makes a text grow without bound" if ended == _GREW else slow
        raise TokenizerError(
            f"The tokenizer's {how}.",
            expected=f"texts that become at most {_MOST_GROWTH:.0f} times longer; runs of "
            f"{_PROBE_CHARACTERS} characters that are done within {_TRIAL_CPU_SECONDS} seconds",
            remedy="use a tokenizer from a source that you trust",
        )


def _trial(content: bytes) -> int:
    data: dict[str, Any] = json.loads(content)
    replacing = list(_steps(data.get("normalizer")))
    dividing = list(_steps(data.get("pre_tokenizer")))
    steps = [step for step in replacing if step.get("type") == "Replace"]
    known = "".join(step["pattern"].get("String", "") + step["content"] for step in steps)
    text = "".join(list(dict.fromkeys(known))[:1000]) + known[:1000] + "".join(map(chr, range(32, 127)))
    loaded = tokenizers.Tokenizer.from_str(content.decode())
    normalizer, divide = cast(Any, loaded).normalizer, cast(Any, loaded).pre_tokenizer
    probes = [text, *(10 * character for character in dict.fromkeys(text))]
    if normalizer is not None:
        for probe in probes:
            if len(cast(str, normalizer.normalize_str(probe))) > _MOST_GROWTH * len(probe):
                return _GREW
    patterns = "\n".join(str(_pattern(step).get("Regex", "")) for step in (*replacing, *dividing))
    ending = "\0" + "".join(dict.fromkeys(patterns))  # a search ends at once where what it needs is nowhere
    for run in dict.fromkeys((*_PROBES, *patterns, *re.findall(r"\w+", patterns))):
        probe = (run * _PROBE_CHARACTERS)[:_PROBE_CHARACTERS] + ending
        if normalizer is not None:
            normalizer.normalize_str(probe)
        if divide is not None:
            divide.pre_tokenize_str(probe)
    return 0


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (_TRIAL_CPU_SECONDS, _TRIAL_CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_TRIAL_BYTES, _TRIAL_BYTES))
    sys.exit(_trial(sys.stdin.buffer.read()))
