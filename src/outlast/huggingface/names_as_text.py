"""A tokenizer.json in which the name of a special token is text where special tokens are not looked for.

With ``split_special_tokens=True`` transformers leaves special tokens in text alone, as ``prepare`` does. The
models of ``tokenizers`` know no control pieces, though: a Unigram vocabulary matches the text "[CLS]" as any
piece, and so does BPE with ``ignore_merges`` where it is a whole word. In: the parts of a tokenizer.json and
the names. Out: the parts, changed so that no text encodes to such a name, and all other ids stay as they
were.
"""

from collections.abc import Iterable, Sequence
from typing import Any

_UNKNOWN = "\ufdd1"
"""A code point that Unicode reserves for internal use, so that no vocabulary has it."""


def names_as_text(parts: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the parts changed so that no text encodes to a name unless special tokens are searched for."""
    kind = parts["model"].get("type")
    if kind == "Unigram":
        return _in_unigram(parts, list(names))
    if kind in ("BPE", None) and parts["model"].get("ignore_merges"):
        return _parted(parts, [name for name in names if name in parts["model"]["vocab"]], ())
    return parts


def _in_unigram(parts: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """A name whose characters are pieces gets a score below theirs, which never wins. Of any other name one
    unknown character is exchanged for another one; where those become bytes, the name is parted instead.
    """
    model = parts["model"]
    scores = {piece: score for piece, score in model["vocab"] if piece not in names}
    within = [name for name in names if any(name == piece for piece, _ in model["vocab"])]
    lowest = {name: sum(scores[c] for c in name) - 1 for name in within if scores.keys() >= set(name)}
    others = [name for name in within if name not in lowest]
    vocab = [[piece, lowest.get(piece, score)] for piece, score in model["vocab"]]
    parts = {**parts, "model": {**model, "vocab": vocab}}
    if model.get("byte_fallback"):
        return _parted(parts, others, scores)
    steps: list[dict[str, Any]] = []
    for name in others:
        place = max(index for index, character in enumerate(name) if character not in scores)
        pattern = f"(?<={escape(name[:place])}){escape(name[place])}(?={escape(name[place + 1 :])})"
        steps.append({"type": "Replace", "pattern": {"Regex": pattern}, "content": _UNKNOWN})
    return {**parts, "normalizer": _sequence(parts["normalizer"], "Sequence", "normalizers", steps)}


def _parted(parts: dict[str, Any], names: list[str], pieces: Iterable[str]) -> dict[str, Any]:
    """Part each name between two characters that stand side by side in no piece, which changes no ids."""
    vocabulary = [piece for piece in (pieces or parts["model"]["vocab"]) if piece not in names]
    patterns: list[str] = []
    for name in names:
        cuts = [i for i in range(1, len(name)) if not any(name[i - 1 : i + 1] in p for p in vocabulary)]
        patterns += [f"(?<={escape(name[:cut])})(?={escape(name[cut:])})" for cut in cuts[:1]]
    pattern = {"Regex": "|".join(patterns)}
    steps = [{"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}]
    found = _sequence(parts["pre_tokenizer"], "Sequence", "pretokenizers", steps if patterns else [])
    return {**parts, "pre_tokenizer": found}


def _sequence(first: Any, kind: str, key: str, steps: Sequence[dict[str, Any]]) -> Any:
    if not steps:
        return first
    return {"type": kind, key: [*([first] if first else []), *steps]}


def escape(text: str) -> str:
    """Return a pattern of the library's regular expressions (Oniguruma) that matches the text alone."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)
