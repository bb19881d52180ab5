"""Pairs by arithmetic are the pairs of the plain algorithm, with the shares and borders that it promises."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outlast.prng import derive_key, mix64
from outlast.shards import pairs as pairs_module
from outlast.shards.pairs import (
    Offsets,
    PairCorpus,
    PairRules,
    Pairs,
    count_heads,
    make_pairs,
    truncate_lengths,
)
from support.datasets import draw_documents

RULES = PairRules(sequence_length=32, num_passes=3, short_probability=0.1, seed=7)
Document = list[int]
"""The number of tokens of each sentence."""
Segment = tuple[int, int, int]
"""Shard, begin, length."""


def offsets_of(documents: Sequence[Document]) -> Offsets:
    """Lay documents end to end, a separator behind each."""
    sentences, borders, at = [0], [0], 0
    for document in documents:
        for length in document[:-1]:
            at += length
            sentences.append(at)
        at += document[-1] + 1
        sentences.append(at)
        borders.append(at)
    return Offsets(np.array(borders, np.int64), np.array(sentences, np.uint32))


def corpus_of(shards: Sequence[Sequence[Document]]) -> PairCorpus:
    offsets = [offsets_of(documents) for documents in shards]
    return PairCorpus(
        split="train",
        shard_documents=tuple(len(documents) for documents in shards),
        offsets_of=offsets.__getitem__,
    )


def made(corpus: PairCorpus, rules: PairRules, shard: int, pass_index: int) -> Pairs:
    parts = list(make_pairs(corpus, rules, shard=shard, pass_index=pass_index))
    return Pairs(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def as_rows(pairs: Pairs) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in zip(*pairs, strict=True)]


class Plain:
    """The algorithm as a person would write it: one token, one sentence, one chunk at a time.

    It shares with the package only where its random bits come from.
    """

    def __init__(self, shards: Sequence[Sequence[Document]], rules: PairRules) -> None:
        self.shards = shards
        self.rules = rules
        self.corpus = [
            (shard, index) for shard, documents in enumerate(shards) for index in range(len(documents))
        ]

    def bits(self, shard: int, pass_index: int, purpose: str, counter: int) -> int:
        rules = self.rules
        key = derive_key(rules.seed, "pairs", rules.sequence_length, pass_index, "train", shard, purpose)
        return mixed(key + counter)

    def pairs(self, shard: int, pass_index: int) -> Iterator[tuple[int, ...]]:
        first_sentence = begin = 0
        for index, document in enumerate(self.shards[shard]):
            yield from self.of_document(shard, pass_index, index, begin, first_sentence)
            first_sentence += len(document)
            begin += sum(document) + 1

    def of_document(
        self, shard: int, pass_index: int, index: int, begin: int, first_sentence: int
    ) -> Iterator[tuple[int, ...]]:
        document, limit = self.shards[shard][index], self.rules.sequence_length - 3
        starts = [begin + sum(document[:number]) for number in range(len(document) + 1)]
        target = limit
        if self.bits(shard, pass_index, "short", index) / 2**64 < self.rules.short_probability:
            target = 2 + self.bits(shard, pass_index, "target", index) * (limit - 1) // 2**64
        at = 0
        while at < len(document):
            end = at + 1
            while end < len(document) and starts[end] - starts[at] < target:
                end += 1
            bits = self.bits(shard, pass_index, "chunk", first_sentence + at)
            middle = at + 1 + bits * max(end - at - 1, 1) // 2**64 if end - at > 1 else end
            is_random = end - at == 1 or bits % 2 == 1
            first = (shard, starts[at], starts[middle] - starts[at])
            second = (shard, starts[middle], starts[end] - starts[middle])
            if is_random:
                second = self.random_segment(shard, pass_index, index, first_sentence + at, target - first[2])
            kept = self.truncated(shard, pass_index, first_sentence + at, first, second)
            yield (*kept[0][1:], *kept[1], int(is_random))
            at = middle if is_random else end

    def random_segment(self, shard: int, pass_index: int, index: int, counter: int, wanted: int) -> Segment:
        others = [place for place in self.corpus if place != (shard, index)]
        other, number = others[self.bits(shard, pass_index, "document", counter) * len(others) // 2**64]
        documents = self.shards[other]
        document = documents[number]
        start = self.bits(shard, pass_index, "sentence", counter) * len(document) // 2**64
        length = document[start]
        end = start + 1
        while length < wanted and end < len(document):
            length += document[end]
            end += 1
        begin = sum(sum(before) + 1 for before in documents[:number]) + sum(document[:start])
        return other, begin, length

    def truncated(self, shard: int, pass_index: int, counter: int, *segments: Segment) -> list[Segment]:
        coins = [self.coins(shard, pass_index, purpose, counter) for purpose in ("first", "second")]
        result = [list(segment) for segment in segments]
        while result[0][2] + result[1][2] > self.rules.sequence_length - 3:
            longer = 0 if result[0][2] > result[1][2] else 1
            result[longer][1] += next(coins[longer])
            result[longer][2] -= 1
        return [(other, begin, length) for other, begin, length in result]

    def coins(self, shard: int, pass_index: int, purpose: str, counter: int) -> Iterator[int]:
        state = self.bits(shard, pass_index, purpose, counter)
        word = 0
        while True:
            bits = mixed(state + word)
            yield from (bits >> place & 1 for place in range(63, -1, -1))
            word += 1


def mixed(x: int) -> int:
    return int(mix64(np.array([x % 2**64], np.uint64))[0])


@pytest.mark.parametrize("length", [5, 6, 17, 32, 200])
@pytest.mark.parametrize("short", [0.0, 0.3, 1.0])
def test_the_arithmetic_is_the_plain_algorithm(length: int, short: float) -> None:
    rules = PairRules(sequence_length=length, num_passes=2, short_probability=short, seed=length)
    shards = [draw_documents(1, 9), draw_documents(2, 1), draw_documents(3, 14, most_sentences=40)]
    corpus, plain = corpus_of(shards), Plain(shards, rules)
    for shard in range(len(shards)):
        for pass_index in range(2):
            expected = list(plain.pairs(shard, pass_index))
            assert as_rows(made(corpus, rules, shard, pass_index)) == expected


@given(
    st.lists(
        st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=8), min_size=1, max_size=4),
        min_size=2,
        max_size=3,
    ),
    st.integers(5, 80),
    st.integers(0, 99),
)
def test_any_corpus_gives_the_pairs_of_the_plain_algorithm(
    shards: list[list[Document]], length: int, seed: int
) -> None:
    rules = PairRules(sequence_length=length, num_passes=1, short_probability=0.2, seed=seed)
    corpus, plain = corpus_of(shards), Plain(shards, rules)
    for shard in range(len(shards)):
        assert as_rows(made(corpus, rules, shard, 0)) == list(plain.pairs(shard, 0))


def test_portions_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of([draw_documents(1, 50), draw_documents(2, 50)])
    whole = as_rows(made(corpus, RULES, 0, 0))
    for name, small in (("_BLOCK_SENTENCES", 7), ("_MOST_CHUNKS", 5), ("_MOST_WORDS", 2)):
        monkeypatch.setattr(pairs_module, name, small)
        assert as_rows(made(corpus, RULES, 0, 0)) == whole, name


def test_golden() -> None:
    """The pairs are part of what a run is: they may never change."""
    corpus = corpus_of([draw_golden(3), draw_golden(4)])
    rows = as_rows(made(corpus, RULES, 1, 2))
    assert rows[:4] == [
        (0, 13, 1, 1980, 13, 1),
        (13, 10, 1, 23, 16, 0),
        (40, 12, 1, 365, 17, 1),
        (52, 8, 1, 60, 17, 0),
    ]
    digest = hashlib.sha256(repr(rows).encode()).hexdigest()
    assert (len(rows), digest) == (126, "d6398ae078551980528b1a740504402f561b5c1fb4f7f57c8c8e0502a757e7c3")


def draw_golden(key: int) -> list[Document]:
    """Return documents drawn without a library's random stream."""
    lengths = (mix64(np.arange(300, dtype=np.uint64) + np.uint64(1000 * key)) % np.uint64(13) + 1).tolist()
    return [lengths[first : first + 6] for first in range(0, 300, 6)]


@pytest.fixture(scope="module")
def large() -> tuple[list[list[Document]], list[Pairs]]:
    """20,000 sentences in 4 shards, and the pairs of their first pass."""
    shards = [draw_documents(seed, 400, most_sentences=25) for seed in range(4)]
    corpus = corpus_of(shards)
    return shards, [made(corpus, RULES, shard, 0) for shard in range(4)]


def document_of(offsets: Offsets, places: NDArray[Any]) -> NDArray[np.int64]:
    return np.searchsorted(offsets.documents, places, side="right") - 1


def test_segments_stay_in_their_documents(large: tuple[list[list[Document]], list[Pairs]]) -> None:
    shards, tables = large
    offsets = [offsets_of(documents) for documents in shards]
    for shard, pairs in enumerate(tables):
        own = document_of(offsets[shard], pairs.first_begin)
        last = document_of(offsets[shard], pairs.first_begin + pairs.first_length)
        assert (own == last).all(), "A crosses into another document, or holds a separator"
        for row, (begin, length) in enumerate(zip(pairs.second_begin, pairs.second_length, strict=True)):
            there = int(pairs.second_shard[row])
            begins, ends = document_of(offsets[there], np.array([begin, begin + length]))
            assert begins == ends, "B crosses into another document, or holds a separator"
            same = (there, begins) == (shard, own[row])
            assert same == (pairs.next_sentence_label[row] == 0)


def test_what_follows_follows_at_once(large: tuple[list[list[Document]], list[Pairs]]) -> None:
    for pairs in large[1]:
        follows = pairs.next_sentence_label == 0
        total = pairs.first_length.astype(int) + pairs.second_length
        whole = follows & (total < RULES.text_length)  # nothing was cut off
        assert (pairs.first_begin + pairs.first_length == pairs.second_begin)[whole].all()
        assert (pairs.first_begin + pairs.first_length <= pairs.second_begin)[follows].all()
        assert (total <= RULES.text_length).all()
        assert (pairs.first_length >= 1).all()
        assert (pairs.second_length >= 1).all()


def test_half_of_the_divided_chunks_get_a_random_segment() -> None:
    rules = replace(RULES, short_probability=0.0)
    shards = [draw_documents(seed, 400, most_sentences=60) for seed in range(4)]
    corpus = corpus_of(shards)
    divided: list[NDArray[np.uint8]] = []
    for shard, documents in enumerate(shards):
        pairs = made(corpus, rules, shard, 0)
        # No sentence is as long as a chunk, so a chunk of one sentence is a document's last.
        sentence = np.searchsorted(offsets_of(documents).sentences, pairs.first_begin, side="right")
        is_single = np.isin(sentence, np.cumsum([len(document) for document in documents]))
        assert (pairs.next_sentence_label[is_single] == 1).all()
        assert is_single.any()
        divided.append(pairs.next_sentence_label[~is_single])
    labels = np.concatenate(divided)
    assert len(labels) > 10_000
    assert abs(labels.mean() - 0.5) < 0.02


def times_used(offsets: Offsets, pairs: Pairs) -> NDArray[np.int64]:
    """Return how often each token of the table's own shard stands in A, or in a B that follows."""
    follows = pairs.next_sentence_label == 0
    begin = np.concatenate((pairs.first_begin, pairs.second_begin[follows])).astype(int)
    length = np.concatenate((pairs.first_length, pairs.second_length[follows]))
    num_tokens = int(offsets.sentences[-1])
    starts, ends = (np.bincount(places, minlength=num_tokens + 1) for places in (begin, begin + length))
    return np.cumsum(starts - ends)[:-1]


def test_every_token_is_used_once() -> None:
    """Sentences of one token fill a chunk exactly, so nothing is cut off."""
    documents = [[1] * length for length in (1, 2, 7, 29, 30, 31, 200, 1000)]
    corpus = corpus_of([documents, documents])
    offsets = offsets_of(documents)
    used = times_used(offsets, made(corpus, RULES, 0, 0))
    separators = offsets.documents[1:] - 1
    assert (used[separators] == 0).all()
    assert (np.delete(used, separators) == 1).all()


def test_no_token_is_used_twice_in_a_pass(large: tuple[list[list[Document]], list[Pairs]]) -> None:
    for documents, pairs in zip(*large, strict=True):
        used = times_used(offsets_of(documents), pairs)
        assert used.max() == 1
        # Chunks of 29 tokens with a surplus of 0 to 13: so much is cut off, and no more.
        assert 0.75 < used.mean() < 0.95


def test_a_document_is_cut_short_as_a_whole() -> None:
    rules = replace(RULES, sequence_length=64)
    documents = [[3, 4, 5] * 150 for _ in range(500)]
    corpus, offsets = corpus_of([documents]), offsets_of(documents)
    shorts: list[NDArray[np.bool_]] = []
    for pass_index in range(2):
        pairs = made(corpus, rules, 0, pass_index)
        total = pairs.first_length.astype(int) + pairs.second_length
        document = document_of(offsets, pairs.first_begin)
        last = np.append(document[:-1] != document[1:], True)
        judged = (pairs.next_sentence_label == 0) & ~last  # reaches its target, and goes beyond by 4 at most
        # Where even a sentence reaches the target, all second segments are random: short beyond doubt.
        counts = np.bincount(document[judged], minlength=500)
        short_ones = np.bincount(document[judged & (total < rules.text_length)], minlength=500)
        short = np.where(counts, short_ones / np.maximum(counts, 1), 1.0)
        assert ((short == 0) | (short > 0.1)).all()
        shorts.append(short > 0)
        assert 0.06 < shorts[-1].mean() < 0.14
    assert (shorts[0] != shorts[1]).any(), "drawn anew in every pass"


def test_passes_lengths_and_seeds_cut_elsewhere(large: tuple[list[list[Document]], list[Pairs]]) -> None:
    corpus = corpus_of(large[0])
    first = as_rows(made(corpus, RULES, 0, 0))
    assert as_rows(made(corpus, RULES, 0, 0)) == first
    for rules, pass_index in (
        (RULES, 1),
        (replace(RULES, seed=8), 0),
        (replace(RULES, sequence_length=33), 0),
    ):
        assert as_rows(made(corpus, rules, 0, pass_index)) != first


def test_random_segments_come_from_every_shard(large: tuple[list[list[Document]], list[Pairs]]) -> None:
    pairs = large[1][0]
    drawn = pairs.second_shard[pairs.next_sentence_label == 1]
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    assert (abs(shares - 0.25) < 0.05).all()


@given(st.integers(1, 500), st.integers(1, 500), st.integers(2, 300))
def test_the_longer_segment_loses_token_by_token(first: int, second: int, limit: int) -> None:
    found = truncate_lengths(np.array([first]), np.array([second]), limit)
    while first + second > limit:
        if first > second:
            first -= 1
        else:
            second -= 1
    assert (first, second) == (int(found[0][0]), int(found[1][0]))


def test_coins_are_fair_and_each_is_thrown() -> None:
    states = mix64(np.arange(3000, dtype=np.uint64))
    for num_coins in (1, 63, 64, 65, 1000):
        heads = count_heads(np.full(3000, num_coins), states)
        assert heads.min() >= 0
        assert heads.max() <= num_coins
        assert abs(heads.mean() / num_coins - 0.5) < 0.03
        assert 0.9 < heads.var() / (num_coins / 4) < 1.1
