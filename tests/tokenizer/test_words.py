"""Which tokens begin a word: by the marks of every kind of vocabulary, and by what a segmenter says."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from outlast.errors import TokenizerError
from outlast.storage import open_store
from outlast.tokenizer.config import TokenizerConfig
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.train import train_tokenizer
from outlast.tokenizer.words import Segmenter, WordMarker, make_word_marker

TEXTS = [
    "the quick brown fox jumps over the lazy dog, and the dogs jumped over foxes",
    "unquestionably the quickest unbrowned foxes  never jump\nover lazier dogs",
    "日本語の文章には空白がない。「東京」へ行った。",
    "",
    " \u200b\n",
    "naïve Ａｌｐｈａ ㍻ ｱｲｳ 𠮷野家 [CLS] \ta",
]
TRAINING = TEXTS * 3 + ["jumping dogs foxing quickly unlazy overs the the the"] * 5
Make = Callable[[TokenizerConfig], Tokenizer]

WORDPIECE = TokenizerConfig(library="tokenizers", kind="wordpiece", vocab_size=150, character_coverage=1.0)
BYTES = TokenizerConfig(library="tokenizers", kind="bpe", byte_level=True, vocab_size=320)
METASPACE = TokenizerConfig(library="tokenizers", kind="bpe", vocab_size=150, character_coverage=1.0)
PIECES = TokenizerConfig(vocab_size=160, kind="bpe", character_coverage=1.0)
FALLBACK = TokenizerConfig(vocab_size=330, character_coverage=0.98, byte_fallback=True)
WHITESPACE = TokenizerConfig(vocab_size=350, keep_whitespace=True)
RARE = TokenizerConfig(vocab_size=130, kind="bpe", character_coverage=0.98, user_defined_symbols=("_NEW_",))
EVERY_KIND = (WORDPIECE, BYTES, METASPACE, PIECES, FALLBACK, WHITESPACE, RARE)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    made: dict[TokenizerConfig, Tokenizer] = {}

    def tokenizer(config: TokenizerConfig) -> Tokenizer:
        if config not in made:
            store = open_store(tmp_path_factory.mktemp("tokenizer"))
            train_tokenizer(config, lambda: iter(TRAINING), store, "t", report=lambda line: None)
            made[config] = load_tokenizer(store, "t")
        return made[config]

    return tokenizer


def regex_segmenter(pattern: str) -> Segmenter:
    expression = re.compile(pattern)
    return Segmenter(
        name="test", word_starts=lambda text: [match.start() for match in expression.finditer(text)]
    )


def shown(marker: WordMarker, tokenizer: Tokenizer, text: str) -> list[str]:
    """The words as the pieces that they are made of."""
    ids, _, starts = marker.mark([text])
    words: list[str] = []
    for token, begins in zip(ids.tolist(), starts.tolist(), strict=True):
        if begins:
            words.append(tokenizer.pieces[token])
        else:
            words[-1] += tokenizer.pieces[token]
    return words


@pytest.mark.parametrize("config", EVERY_KIND, ids=lambda config: f"{config.kind}-{config.vocab_size}")
@pytest.mark.parametrize("segmenter", [None, regex_segmenter(r"[^\W\d_]+|\S"), regex_segmenter(r".")])
def test_ids_are_those_of_plain_encoding_and_every_text_begins_with_a_word(
    make: Make, config: TokenizerConfig, segmenter: Segmenter | None
) -> None:
    tokenizer = make(config)
    marker = make_word_marker(tokenizer, segmenter or "pieces")
    ids, lengths, starts = marker.mark(TEXTS)
    expected = tokenizer.encode_batch(TEXTS)
    assert ids.tolist() == np.concatenate(expected).tolist()
    assert lengths.tolist() == [len(one) for one in expected]
    assert starts.shape == ids.shape
    assert starts[(np.cumsum(lengths) - lengths)[lengths > 0]].all()
    for text, one in zip(TEXTS, expected, strict=True):
        alone = marker.mark([text])
        assert alone.ids.tolist() == one.tolist()
    assert starts.tolist() == [bool(bit) for text in TEXTS for bit in marker.mark([text]).word_starts]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (WORDPIECE, ["the", "un##brown##ed", "fox", ",", "日", "本"]),
        (PIECES, ["▁the", "▁unbrowned", "▁fox,", "▁日本"]),
        (METASPACE, ["▁the", "▁unbrowned", "▁fox,", "▁日本"]),
        (BYTES, ["the", "Ġunbrowned", "Ġfox,", "ĠæĹ¥æľ¬"]),
        (WHITESPACE, ["the", "▁unbrowned", "▁fox,", "▁日本"]),
    ],
)
def test_the_vocabulary_marks_words(make: Make, config: TokenizerConfig, words: list[str]) -> None:
    tokenizer = make(config)
    found = shown(make_word_marker(tokenizer, "pieces"), tokenizer, "the unbrowned fox, 日本")
    assert [word.replace("##", "") for word in found] == [word.replace("##", "") for word in words]
    many = make_word_marker(tokenizer, "pieces").mark(["the unbrowned fox, 日本"])
    assert 4 <= many.word_starts.sum() < len(many.ids), "some word has several pieces"


def test_white_space_that_is_a_piece_begins_a_word_or_is_one(make: Make) -> None:
    tokenizer = make(BYTES)
    assert shown(make_word_marker(tokenizer, "pieces"), tokenizer, "fox\n\tdog\n")[1:] in (
        ["ĊĉdogĊ"],
        ["Ċ", "ĉdog", "Ċ"],
        ["Ċĉdog", "Ċ"],
    )
    symbols = make(WHITESPACE)  # line feeds are symbols of their own there
    assert shown(make_word_marker(symbols, "pieces"), symbols, "fox\ndog") == ["fox", "\n", "dog"]
    rare = make(RARE)
    found = shown(make_word_marker(rare, "pieces"), rare, "the_NEW_the the")
    assert found == ["▁the", "_NEW_", "the", "▁the"]


def test_chinese_characters_of_wordpiece_are_words(tmp_path: Path, test_data: Path) -> None:
    """BERT's Chinese vocabulary: every CJK character stands apart, so whole words are single characters."""
    lines = (test_data / "cls-zh-reviews" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:400]
    texts = [line.split("\t")[2] for line in lines]
    store = open_store(tmp_path)
    config = TokenizerConfig(library="tokenizers", kind="wordpiece", vocab_size=1750)
    train_tokenizer(config, lambda: iter(texts), store, "t", report=lambda line: None)
    tokenizer = load_tokenizer(store, "t")
    marked = make_word_marker(tokenizer, "pieces").mark(texts)
    for text, one in zip(texts, tokenizer.encode_spans(texts), strict=True):
        for begin, end in one[1].tolist():
            assert end - begin == 1 or not re.search("[\u3400-\u4dbf\u4e00-\u9fff]", text[begin:end])
    pieces = np.array(tokenizer.pieces)[marked.ids]
    is_cjk = np.array([bool(re.fullmatch("[\u4e00-\u9fff]", piece)) for piece in pieces])
    assert is_cjk.sum() > 10_000
    assert marked.word_starts[is_cjk].all()
    assert marked.word_starts.mean() > 0.9, "nearly every piece is a word: preparing such data warns"


def test_a_segmenters_words_are_carried_over_to_the_pieces(make: Make) -> None:
    tokenizer = make(BYTES)
    marker = make_word_marker(tokenizer, regex_segmenter("日本語|の|文章|[a-z]+|\n"))
    # Bytes of a character stay together, white space goes with the word behind it.
    found = shown(marker, tokenizer, "日本語の文章  fox\ndogs \t")
    as_bytes = [word.encode().decode("latin-1") for word in ("日本語", "の", "文章")]
    assert len(found) == 6
    assert found[3:5] == ["ĠĠfox", "Ċdogs"]
    assert [len(word) for word in found[:3]] == [len(word) for word in as_bytes]


def test_a_piece_that_spans_two_words_begins_one(make: Make) -> None:
    tokenizer = make(PIECES)
    [(_, spans)] = tokenizer.encode_spans(["the dogs"])
    first, second = spans[0].tolist(), spans[1].tolist()
    assert (first, second[0]) == ([0, 3], 3), "▁the, then a piece with the space"

    def starts(*boundaries: int) -> list[bool]:
        segmenter = Segmenter(name="test", word_starts=lambda text: boundaries)
        return make_word_marker(tokenizer, segmenter).mark(["the dogs"]).word_starts.tolist()

    length = len(spans)
    assert starts(0, 1, 2) == [True] + [False] * (length - 1)
    assert starts(0, 4) == [True, True] + [False] * (length - 2)
    assert starts(0, 2, 4) == [True, True] + [False] * (length - 2)
    assert starts() == [True] + [False] * (length - 1)
    assert starts(4) == [True, True] + [False] * (length - 2)
    within = int(spans[-1, 0])
    assert starts(0, within)[-1]


@hypothesis.settings(deadline=None)
@hypothesis.given(
    text=st.text(alphabet="the dogs日本語\n　ｱ㍻é\u0301🦊", max_size=40), seed=st.integers(0, 9)
)
def test_every_word_is_begun_by_the_first_piece_that_reaches_it(make: Make, text: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    boundaries = np.flatnonzero(rng.random(len(text)) < 0.4)
    segmenter = Segmenter(name="test", word_starts=lambda text: boundaries)
    for config in (PIECES, BYTES, FALLBACK):
        tokenizer = make(config)
        [(ids, spans)] = tokenizer.encode_spans([text])
        starts = make_word_marker(tokenizer, segmenter).mark([text]).word_starts
        assert len(starts) == len(ids)
        number = [0] * len(text)  # of each character's word, white space with the word behind it
        for place in boundaries.tolist():
            while place and text[place - 1].isspace():
                place -= 1
            number[place] = 1
        trailing = len(text.rstrip())
        if trailing < len(text):
            number[trailing] = 1
        number = np.cumsum(number).tolist()
        reached = -1
        for (begin, end), found in zip(spans.tolist(), starts.tolist(), strict=True):
            word = number[min(max(end, begin + 1), len(text)) - 1]
            assert found == (reached < 0 or word > reached)
            reached = max(reached, word)


@pytest.mark.parametrize("wrong", [[0, 0], [3, 1], [-1], [5], [[0]]])
def test_word_starts_that_cannot_be_are_refused(make: Make, wrong: Sequence[int]) -> None:
    segmenter = Segmenter(name="mine", word_starts=lambda text: wrong)
    with pytest.raises(TokenizerError, match=r"segmenter 'mine' gives word starts that do not fit"):
        make_word_marker(make(PIECES), segmenter).mark(["foxes"])


def test_a_vocabulary_without_marks_is_refused(make: Make) -> None:
    tokenizer = make(METASPACE)
    data = json.loads(tokenizer.model)
    data["model"]["vocab"] = {
        piece.replace("▁", "+"): number for piece, number in data["model"]["vocab"].items()
    }
    data["model"]["merges"] = []
    unmarked = type(tokenizer)(tokenizer.manifest, json.dumps(data).encode())
    with pytest.raises(TokenizerError, match="does not tell where words begin"):
        make_word_marker(unmarked, "pieces")
