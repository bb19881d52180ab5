"""Which tokens begin a word, so that whole words can be masked.

In: a tokenizer and texts. Out: their ids with a bool for each. The vocabulary says it where its pieces carry
a mark ("##", "▁", "Ġ"); for languages written without spaces a segmenter says where words begin in the text,
and each boundary is carried over to the pieces. The ids are those of plain encoding, and the first token of a
text begins a word.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import TokenizerError
from outlast.tokenizer.encode import MecabTokenizer, SentencePieceTokenizer, Tokenizer
from outlast.tokenizer.mecab_words import CONTINUATION
from outlast.tokenizer.sentencepiece_model import PieceType, parse_model

_SPACE_MARK = "▁"
_WHITE_SPACE = re.compile(r"\s+")
# The letters that byte-level BPE writes for tab, line feed, vertical tab, form feed, carriage return, space.
_BYTE_LEVEL_SPACES = tuple(chr(256 + byte) for byte in b"\t\n\v\f\r ")


class MarkedTexts(NamedTuple):
    """Texts end to end: ``ids`` int32 and ``word_starts`` bool of shape (num_tokens,); ``lengths`` int64 of
    shape (num_texts,), the tokens of each.
    """

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]
    word_starts: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Segmenter:
    """Finds words in text.

    Attributes:
        name: for people and for the identity of a build.
        word_starts: returns where words begin, as rising positions in characters from 0 to below the text's
            length. Builds run in several processes, so it is a function of a module; it always gives the
            same answer to the same text.
        versions: of what its answers depend on: an unfinished build is not gone on with by others.
    """

    name: str
    word_starts: Callable[[str], Sequence[int] | NDArray[np.integer[Any]]]
    versions: Mapping[str, str] = field(default_factory=dict[str, str])


class WordMarker(ABC):
    """Encodes texts and says which tokens begin a word."""

    @abstractmethod
    def mark(self, texts: Sequence[str]) -> MarkedTexts:
        """Encode texts, each by itself. Raises TokenizerError as encoding does."""


def make_word_marker(tokenizer: Tokenizer, rule: Literal["pieces"] | Segmenter) -> WordMarker:
    """Return what marks words: by the marks of the pieces, or by a segmenter.

    Raises:
        TokenizerError: the vocabulary marks no words.
    """
    return PieceMarker(tokenizer) if rule == "pieces" else SegmentMarker(tokenizer, rule)


class PieceMarker(WordMarker):
    """Words as the pieces mark them.

    WordPiece: "##" continues a word. sentencepiece and Metaspace: "▁" begins one. Byte-level BPE: a piece
    that begins with white space begins one. So punctuation without a space before it belongs to the word in
    front, but in WordPiece, which cuts at punctuation. A user-defined symbol is a word by itself.

    Source: ``create_masked_lm_predictions`` in google-research/bert ("##"); the pre-training input of
        google-research/bigbird ("▁"); ``MaskTokensDataset`` in facebookresearch/fairseq (the space). There, a
        user-defined symbol is a piece like others.

    Raises:
        TokenizerError: the vocabulary has no such mark.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._begins, self._alone = _marks(tokenizer)

    def mark(self, texts: Sequence[str]) -> MarkedTexts:
        ids, lengths = self._tokenizer.encode_joined(texts)
        starts = self._begins[ids]
        alone = self._alone[ids]
        starts |= alone
        starts[1:] |= alone[:-1]
        starts[_first_tokens(lengths)] = True
        return MarkedTexts(ids, lengths, starts)


class SegmentMarker(WordMarker):
    """Words as a segmenter finds them in the text.

    A token begins a word where it begins at a word's first character, or holds it: a piece that spans the end
    of one word and the beginning of the next begins a word and belongs to the next. Where several pieces lie
    in one character (bytes, or what normalisation made of it), the first of them begins the word. White space
    belongs to the word behind it.
    """

    def __init__(self, tokenizer: Tokenizer, segmenter: Segmenter) -> None:
        self._tokenizer = tokenizer
        self._segmenter = segmenter

    def mark(self, texts: Sequence[str]) -> MarkedTexts:
        encoded = self._tokenizer.encode_spans(texts)
        lengths = np.fromiter((len(ids) for ids, _ in encoded), np.int64, len(encoded))
        num_tokens = int(lengths.sum())
        ids = np.fromiter(chain.from_iterable(ids for ids, _ in encoded), np.int32, num_tokens)
        starts = [
            starts_of_spans(spans, self._boundaries(text), text)
            for text, (_, spans) in zip(texts, encoded, strict=True)
        ]
        return MarkedTexts(ids, lengths, np.concatenate(starts) if starts else np.zeros(0, np.bool_))

    def _boundaries(self, text: str) -> NDArray[np.int64]:
        found = np.asarray(self._segmenter.word_starts(text), np.int64)
        if found.ndim != 1 or (
            len(found) and (found[0] < 0 or found[-1] >= len(text) or (np.diff(found) < 1).any())
        ):
            raise TokenizerError(
                f"The segmenter {self._segmenter.name!r} gives word starts that do not fit the text.",
                where=f"text {text[:40]!r}, word starts {found[:10].tolist()}",
                expected=f"rising positions from 0 to {len(text) - 1}",
            )
        return found


def starts_of_spans(spans: NDArray[np.int64], boundaries: NDArray[np.int64], text: str) -> NDArray[np.bool_]:
    """Return which tokens of a text begin a word, bool of shape (num_tokens,).

    Args:
        spans: int64 of shape (num_tokens, 2), the characters of each token, begin and end.
        boundaries: rising int64, where words begin in the text.
        text: what was encoded.
    """
    if not len(spans):
        return np.zeros(0, np.bool_)
    num_before = np.zeros(len(text) + 1, np.int64)  # boundaries before each character
    num_before[_before_white_space(boundaries, text) + 1] = 1
    np.cumsum(num_before, out=num_before)
    # What is nothing in the text ("▁" at its beginning) counts as the character behind it.
    ends = np.minimum(np.maximum(spans[:, 1], spans[:, 0] + 1), len(text))
    reached = np.maximum.accumulate(num_before[ends])
    starts = np.ones(len(spans), np.bool_)
    np.greater(reached[1:], reached[:-1], out=starts[1:])
    return starts


def _before_white_space(boundaries: NDArray[np.int64], text: str) -> NDArray[np.int64]:
    """Move boundaries to the beginning of the white space before them, and put one before white space at the
    end.
    """
    runs = np.array([match.span() for match in _WHITE_SPACE.finditer(text)], np.int64).reshape(-1, 2)
    if not len(runs):
        return boundaries
    if runs[-1, 1] == len(text):
        boundaries = np.append(boundaries, runs[-1, 0])
    run = runs[np.minimum(np.searchsorted(runs[:, 1], boundaries), len(runs) - 1)]
    is_within = (run[:, 0] < boundaries) & (boundaries <= run[:, 1])
    return np.where(is_within, run[:, 0], boundaries)


def _first_tokens(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each text that has any tokens begins."""
    return (np.cumsum(lengths) - lengths)[lengths > 0]


def _marks(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return, by id, which pieces begin a word and which are words by themselves. Raises TokenizerError."""
    pieces = tokenizer.pieces
    prefix: str | None = None
    if isinstance(tokenizer, SentencePieceTokenizer):
        kinds = [piece.type for piece in parse_model(tokenizer.model).pieces]
        alone = [kind == PieceType.USER_DEFINED for kind in kinds]
    elif isinstance(tokenizer, MecabTokenizer):
        prefix = CONTINUATION if tokenizer.manifest.kind == "wordpiece" else None
        alone = [False] * len(pieces)
    else:
        data: dict[str, Any] = json.loads(tokenizer.model)
        if data["model"].get("type") == "WordPiece":
            prefix = data["model"].get("continuing_subword_prefix") or "##"
        added = {token["content"] for token in data["added_tokens"] if not token["special"]}
        alone = [piece in added for piece in pieces]
    if prefix is not None:
        begins = [not piece.startswith(prefix) for piece in pieces]
    else:
        begins = [piece.startswith(_SPACE_MARK) for piece in pieces]
        if not any(begins):
            begins = [piece.startswith(_BYTE_LEVEL_SPACES) for piece in pieces]
    if not any(begins):
        raise TokenizerError(
            "The vocabulary does not tell where words begin.",
            expected='pieces that begin with "▁" or "Ġ", or continue with "##"',
            remedy='set shards.words = "mecab" for Japanese, or pass a segmenter in Python',
        )
    return np.array(begins), np.array(alone)
