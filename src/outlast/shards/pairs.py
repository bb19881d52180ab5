"""Pairs packing: two segments of text and whether the second follows the first, as arithmetic on offsets.

In: where the documents and the sentences of every shard of a split begin; no token is read. Out: the pairs of
one shard and pass, as offsets. Every random number is a function of (seed, sequence length, pass, split,
shard, number of the document or sentence), so the pairs of a shard do not depend on who makes them, when, or
how many at a time.

Source: google-research/bert, ``create_pretraining_data.py`` (the function that makes instances of a
document), its rules as docs/design/pairs.md tells them. Differences: the random document is drawn from the
whole split, exactly uniformly and never the own one; a document is no list that is shuffled; masks are made
later, on the device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.prng import bits_at, derive_key, mix64, scale_bits

PAIRS_VERSION = 1
"""Of the rules below: other rules make other pairs, so the number changes with them."""
NUM_SPECIAL_TOKENS = 3
"""[CLS], and [SEP] after each segment."""

_BLOCK_SENTENCES = 2**17
_MOST_CHUNKS = 2**18
_MOST_WORDS = 2**20
_COIN_BITS = 64


class Offsets(NamedTuple):
    """Where the text of a shard begins and ends, as docs/formats/token_shard.md defines it.

    Attributes:
        documents: int64 of shape (num_documents + 1,).
        sentences: uint32 of shape (num_sentences + 1,); holds every document's offset.
    """

    documents: NDArray[np.int64]
    sentences: NDArray[np.uint32]


class Pairs(NamedTuple):
    """Pairs of segments, arrays of shape (num_examples,); offsets count tokens from the start of a shard.

    Attributes:
        first_begin: uint32, where segment A begins in the table's own shard.
        first_length: uint16, its tokens.
        second_shard: uint32, index of the shard in which segment B lies.
        second_begin: uint32, where it begins there.
        second_length: uint16, its tokens.
        next_sentence_label: uint8, 0 where B follows A in the document, 1 where it is of another document.
    """

    first_begin: NDArray[Any]
    first_length: NDArray[Any]
    second_shard: NDArray[Any]
    second_begin: NDArray[Any]
    second_length: NDArray[Any]
    next_sentence_label: NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class PairRules:
    """What the pairs of a split depend on, beside its offsets.

    Attributes:
        sequence_length: tokens of an example, the three special ones included.
        num_passes: how often the corpus is cut, each time at other places.
        short_probability: share of the documents, in each pass, that are cut shorter.
        seed: of all random numbers.
    """

    sequence_length: int
    num_passes: int
    short_probability: float
    seed: int

    @property
    def text_length(self) -> int:
        """The most tokens of text in an example."""
        return self.sequence_length - NUM_SPECIAL_TOKENS


@dataclass(frozen=True, kw_only=True)
class PairCorpus:
    """The offsets of a whole split, opened shard by shard as they are needed.

    Attributes:
        split: its name.
        shard_documents: number of documents of each shard, in manifest order; at least 2 in all.
        offsets_of: the offsets of a shard by its index.
    """

    split: str
    shard_documents: tuple[int, ...]
    offsets_of: Callable[[int], Offsets]


class _Chunks(NamedTuple):
    """Runs of sentences, int64 arrays: [begin, middle) makes A, [middle, end) may make B.

    ``target`` is the number of tokens aimed at; ``is_random``, bool, says that B is of another document.
    """

    begin: NDArray[Any]
    middle: NDArray[Any]
    end: NDArray[Any]
    document: NDArray[Any]
    target: NDArray[Any]
    is_random: NDArray[Any]


def make_pairs(corpus: PairCorpus, rules: PairRules, *, shard: int, pass_index: int) -> Iterator[Pairs]:
    """Yield the pairs of one shard and pass in the order of the text, a quarter million at a time."""
    maker = _Maker(corpus, rules, shard, pass_index)
    held: list[_Chunks] = []
    for chunks in maker.cut():
        held.append(chunks)
        if sum(len(part.begin) for part in held) >= _MOST_CHUNKS:
            yield maker.pair(_join(held))
            held = []
    if held:
        yield maker.pair(_join(held))


def _join(parts: list[_Chunks]) -> _Chunks:
    return _Chunks(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class _Maker:
    """The pairs of one shard and pass in the making."""

    def __init__(self, corpus: PairCorpus, rules: PairRules, shard: int, pass_index: int) -> None:
        self.corpus = corpus
        self.rules = rules
        self.shard = shard
        self.pass_index = pass_index
        self.documents, self.sentences = corpus.offsets_of(shard)
        self.first_sentences = np.searchsorted(self.sentences, self.documents.astype(np.uint32))
        """Number of each document's first sentence; last, of all sentences."""

    def cut(self) -> Iterator[_Chunks]:
        """Yield the chunks of the shard, block of sentences by block.

        Where a chunk ends, how it is divided and where the next one begins are computed for every sentence as
        if a chunk began there; then only those are kept which the walk from the first sentence reaches.
        """
        at = 0
        num_sentences = len(self.sentences) - 1
        for first in range(0, num_sentences, _BLOCK_SENTENCES):
            stop = min(first + _BLOCK_SENTENCES, num_sentences)
            chunks = self._chunks_from_every_sentence(first, stop)
            following = np.where(chunks.is_random, chunks.middle, chunks.end).tolist()
            reached: list[int] = []
            while at < stop:
                reached.append(at - first)
                at = following[at - first]
            yield _Chunks(*(column[reached] for column in chunks))

    def _chunks_from_every_sentence(self, first: int, stop: int) -> _Chunks:
        begin = np.arange(first, stop)
        low = int(np.searchsorted(self.first_sentences, first, side="right")) - 1
        high = int(np.searchsorted(self.first_sentences, stop, side="left"))
        counts = np.diff(self.first_sentences[low : high + 1].clip(first, stop))
        document = np.repeat(np.arange(low, high), counts)
        target = np.repeat(self._targets(np.arange(low, high)), counts)
        document_end = np.repeat(self.first_sentences[low + 1 : high + 1], counts)
        # A sentence has a token at least, so no chunk reaches further.
        offsets = self.sentences[first : stop + self.rules.text_length + 1].astype(np.int64)
        end = first + np.searchsorted(offsets, offsets[: len(begin)] + target)
        end = np.minimum(end, document_end)
        bits = bits_at(begin, self._key("chunk"))
        count = end - begin
        coin = (bits & np.uint64(1)).astype(np.bool_)
        middle = begin + 1 + scale_bits(bits, np.maximum(count - 1, 1))
        return _Chunks(begin, np.minimum(middle, end), end, document, target, coin | (count == 1))

    def _targets(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens the chunks of each document aim at."""
        longest = self.rules.text_length
        drawn = bits_at(documents, self._key("short")) >> np.uint64(11)
        is_short = drawn < np.uint64(int(self.rules.short_probability * 2**53))
        lengths = scale_bits(
            bits_at(documents, self._key("target")), np.full(len(documents), longest - 1, np.int64)
        )
        return np.where(is_short, 2 + lengths, longest)

    def pair(self, chunks: _Chunks) -> Pairs:
        """Return the pairs of chunks: the second segments are found, and both are cut to fit."""
        document_end = self.first_sentences[chunks.document + 1]
        first_begin = self.sentences[chunks.begin].astype(np.int64)
        first_end = _end_of(self.sentences, chunks.middle, document_end)
        second_shard = np.full(len(first_begin), self.shard, np.int64)
        second_begin = self.sentences[chunks.middle].astype(np.int64)
        second_end = _end_of(self.sentences, chunks.end, document_end)
        drawn = np.flatnonzero(chunks.is_random)
        wanted = np.maximum(chunks.target - (first_end - first_begin), 1)[drawn]
        found = self._random_segments(chunks.begin[drawn], chunks.document[drawn], wanted)
        for column, values in zip((second_shard, second_begin, second_end), found, strict=True):
            column[drawn] = values

        first_length, second_length = truncate_lengths(
            first_end - first_begin, second_end - second_begin, self.rules.text_length
        )
        return Pairs(
            self._cut_front(first_begin, first_end, first_length, chunks.begin, "first").astype(np.uint32),
            first_length.astype(np.uint16),
            second_shard.astype(np.uint32),
            self._cut_front(second_begin, second_end, second_length, chunks.begin, "second").astype(
                np.uint32
            ),
            second_length.astype(np.uint16),
            chunks.is_random.astype(np.uint8),
        )

    def _random_segments(
        self, counters: NDArray[np.int64], own: NDArray[np.int64], wanted: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return shard, begin and end of a random run of sentences of another document of the corpus.

        Args:
            counters, own: the first sentence of each chunk, and the document it lies in.
            wanted: the run ends with the sentence that reaches so many tokens, or with its document.
        """
        ends = np.cumsum(self.corpus.shard_documents)
        begins = ends - self.corpus.shard_documents
        others = np.full(len(own), ends[-1] - 1, np.int64)
        chosen = scale_bits(bits_at(counters, self._key("document")), others)
        chosen += chosen >= own + begins[self.shard]
        shards = np.searchsorted(ends, chosen, side="right")
        place = bits_at(counters, self._key("sentence"))
        token_begin, token_end = np.empty_like(chosen), np.empty_like(chosen)
        by_shard = np.argsort(shards, kind="stable")
        borders = np.searchsorted(shards[by_shard], np.arange(len(ends) + 1))
        for shard in np.unique(shards).tolist():
            rows = by_shard[borders[shard] : borders[shard + 1]]
            offsets = self.corpus.offsets_of(shard)
            documents = chosen[rows] - begins[shard]
            low = np.searchsorted(offsets.sentences, offsets.documents[documents].astype(np.uint32))
            high = np.searchsorted(offsets.sentences, offsets.documents[documents + 1].astype(np.uint32))
            start = low + scale_bits(place[rows], high - low)
            token_begin[rows] = offsets.sentences[start]
            reaching = np.minimum(token_begin[rows] + wanted[rows], np.iinfo(np.uint32).max)
            stop = np.minimum(np.searchsorted(offsets.sentences, reaching.astype(np.uint32)), high)
            token_end[rows] = _end_of(offsets.sentences, stop, high)
        return shards, token_begin, token_end

    def _cut_front(
        self,
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        length: NDArray[np.int64],
        counters: NDArray[np.int64],
        purpose: str,
    ) -> NDArray[np.int64]:
        """Return where segments begin once they are cut to a length, a coin for each token: front or back."""
        surplus = end - begin - length
        cut = np.flatnonzero(surplus)
        moved = begin.copy()
        moved[cut] += count_heads(surplus[cut], bits_at(counters[cut], self._key(purpose)))
        return moved

    def _key(self, purpose: str) -> int:
        rules = self.rules
        names = (rules.sequence_length, self.pass_index, self.corpus.split, self.shard, purpose)
        return derive_key(rules.seed, "pairs", *names)


def _end_of(
    sentences: NDArray[np.uint32], stop: NDArray[np.int64], document_end: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where the text before sentence ``stop`` ends: the separator behind a document is not part."""
    return sentences[stop].astype(np.int64) - (stop == document_end)


def truncate_lengths(
    first: NDArray[np.int64], second: NDArray[np.int64], limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the lengths of both segments after the longer one has lost a token as often as needed for both
    to have ``limit`` together. Of two equally long ones the second loses.
    """
    kept = np.minimum(second, np.maximum(limit // 2, limit - first))
    return np.minimum(first, limit - kept), kept


def count_heads(num_coins: NDArray[np.int64], states: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Toss fair coins: return, for each of some numbers of coins (1 or more), how many fall heads, int64.

    Coin c of a row is bit ``63 - c % 64`` of ``mix64(state + c // 64)``; a 1 is a head.
    """
    num_words = -(-num_coins // _COIN_BITS)
    ends = np.cumsum(num_words)
    heads = np.empty(len(num_coins), np.int64)
    first = 0
    while first < len(num_coins):
        # Some at a time: a row of ten thousand coins may stand beside a million others.
        limit = ends[first] - num_words[first] + _MOST_WORDS
        stop = max(first + 1, int(np.searchsorted(ends, limit, side="right")))
        heads[first:stop] = _count_some(num_coins[first:stop], num_words[first:stop], states[first:stop])
        first = stop
    return heads


def _count_some(
    num_coins: NDArray[np.int64], num_words: NDArray[np.int64], states: NDArray[np.uint64]
) -> NDArray[np.int64]:
    begins = np.cumsum(num_words) - num_words
    word = np.arange(int(num_words.sum())) - np.repeat(begins, num_words)
    bits = mix64(np.repeat(states, num_words) + word.astype(np.uint64))
    unused = np.maximum(_COIN_BITS * (word + 1) - np.repeat(num_coins, num_words), 0)
    counted = np.bitwise_count(bits >> unused.astype(np.uint64)).astype(np.int64)
    return np.add.reduceat(counted, begins)
