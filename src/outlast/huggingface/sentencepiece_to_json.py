"""A sentencepiece model as the ``tokenizers`` library's JSON.

In: a parsed model. Out: the dict of a tokenizer.json that gives the same ids, except where
docs/design/tokenizers.md says otherwise. Nothing here depends on special ids; those are added by
tokenizer_files.
"""

import base64
from typing import Any

from outlast.huggingface.names_as_text import escape
from outlast.tokenizer.sentencepiece_model import Piece, PieceType, SentencePieceModel

_SPACE = "\u2581"
_SEPARATOR = "\ufdd0"
"""A code point that Unicode reserves for internal use: no text holds it."""

_FIRST_PLACEHOLDER = 0xF0000
"""The first code point of a private-use plane: one for each user-defined symbol."""


def convert_sentencepiece(model: SentencePieceModel) -> dict[str, Any]:
    """Return ``model``, ``normalizer``, ``pre_tokenizer`` and ``decoder`` of a tokenizer.json."""
    return {
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": _pre_tokenizer(model),
        "model": _unigram(model) if model.kind == "unigram" else _bpe(model),
        "decoder": _decoder(model),
    }


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    steps = _charsmap_steps(model) if model.charsmap else []
    if model.remove_extra_whitespaces:
        # sentencepiece strips trailing "▁" as well; Metaspace does not double the prefix of leading spaces.
        steps += [_replace(r"[ ▁]+\z", ""), _replace(" {2,}", " ")]
    if model.add_dummy_prefix:
        steps.append(_replace(rf"\A{_SPACE}", _SPACE * 2))
    return steps


def _charsmap_steps(model: SentencePieceModel) -> list[dict[str, Any]]:
    """Return the steps of the normalisation table.

    sentencepiece leaves user-defined symbols as they are (upper case, say), so they hide while the rest is
    mapped. One that comes back at the very beginning brings its prefix along, since Metaspace, which compares
    places in the original text, does not take it for the beginning any more.
    """
    charsmap = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()}
    composes = model.normalization_rule.removesuffix("_cf") in ("nmt_nfkc", "nfkc")
    hiding = {symbol: chr(_FIRST_PLACEHOLDER + number) for number, symbol in enumerate(_symbols(model))}
    steps = [_replace_text(symbol, placeholder) for symbol, placeholder in hiding.items()]
    steps += _by_character(charsmap) if composes else [charsmap]
    for symbol, placeholder in hiding.items():
        if model.add_dummy_prefix:
            steps.append(_replace(rf"\A *{placeholder}", f" {symbol}"))
        steps.append(_replace_text(placeholder, symbol))
    return steps


def _by_character(charsmap: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the steps that apply the table to single characters and compose the result.

    sentencepiece looks for the longest entry at each place, such as a letter with its accents.
    ``Precompiled`` looks up whole graphemes below 6 bytes and takes the shortest entry that begins them, so
    "ｄ" with an accent loses the accent and "ｶ" with its voicing mark (6 bytes) is never joined. Parted from
    their base for the time of the look-up, all characters are mapped one by one; what the longer entries
    would have joined is what NFC joins.
    """
    return [
        _replace(r"(?<=[\s\S])(?=[\p{M}\u200c\u200d\uff9e\uff9f])", _SEPARATOR),
        charsmap,
        _replace_text(_SEPARATOR, ""),
        {"type": "NFC"},
    ]


def _pre_tokenizer(model: SentencePieceModel) -> dict[str, Any]:
    words = not any(_SPACE in piece.text[1:] for piece in model.pieces if piece.type != PieceType.CONTROL)
    metaspace = {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "first" if model.add_dummy_prefix else "never",
        "split": words,
    }
    symbols = _symbols(model)
    if model.kind == "unigram" or not symbols:
        return metaspace
    # BPE: a symbol must not merge with its neighbours; alone, it is found whole (ignore_merges).
    pattern = "|".join(escape(symbol) for symbol in symbols)
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [metaspace, split]}


def _unigram(model: SentencePieceModel) -> dict[str, Any]:
    normal = [piece.score for piece in model.pieces if piece.type == PieceType.NORMAL]
    unknown = next(index for index, piece in enumerate(model.pieces) if piece.type == PieceType.UNKNOWN)
    # Below the worst way to spell "<0x41>" by its six characters: text must not match a byte's name.
    byte_score = 7 * (min(normal) - 10)

    def score(piece: Piece) -> float:
        if piece.type == PieceType.USER_DEFINED:
            return len(piece.text.encode()) * max(normal) - 0.1  # sentencepiece's own rule, unigram_model.cc
        return byte_score if piece.type == PieceType.BYTE else piece.score

    vocab = [(piece.text, score(piece)) for piece in model.pieces]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": model.byte_fallback}


def _bpe(model: SentencePieceModel) -> dict[str, Any]:
    unknown = next(piece.text for piece in model.pieces if piece.type == PieceType.UNKNOWN)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": any(piece.type == PieceType.USER_DEFINED for piece in model.pieces),
        "vocab": {piece.text: index for index, piece in enumerate(model.pieces)},
        "merges": _merges(model),
    }


def _merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    """Return the pairs that make each piece, the best piece first: the rank of a pair is the score of its
    result.
    """
    scores = {piece.text: piece.score for piece in model.pieces if piece.type == PieceType.NORMAL}
    merges: list[tuple[str, str]] = []
    for text in sorted(scores, key=lambda text: -scores[text]):
        merges += [
            (text[:cut], text[cut:])
            for cut in range(1, len(text))
            if text[:cut] in scores and text[cut:] in scores
        ]
    return merges


def _decoder(model: SentencePieceModel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}]
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _symbols(model: SentencePieceModel) -> list[str]:
    """Return the user-defined symbols, longest first, so that one that begins another does not win."""
    symbols = [piece.text for piece in model.pieces if piece.type == PieceType.USER_DEFINED]
    return sorted(symbols, key=len, reverse=True)


def _replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _replace_text(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}
