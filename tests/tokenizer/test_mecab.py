"""Japanese words by MeCab: boundaries in characters, whatever stands in the text."""

import sys
from pathlib import Path

import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.tokenizer.mecab import mecab_segmenter, mecab_word_starts
from outlast.tokenizer.mecab_words import load_analyser


def words_of(text: str) -> list[str]:
    starts = mecab_word_starts(text).tolist()
    return [text[begin:end] for begin, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def test_words_are_unidics_short_units() -> None:
    words = [
        "国際",
        "連合",
        "の",
        "東京",
        "特許",
        "許可",
        "局",
        "は",
        "、",
        "食べ",
        "られ",
        "ませ",
        "ん",
        "でし",
        "た",
        "。",
    ]
    assert words_of("".join(words)) == words


def test_places_are_characters_whatever_their_bytes() -> None:
    text = "𠮷野家で\u0000ＡＢＣ２０２４年　café 🦊\n\n \t次の行です。"
    assert [word.rstrip() for word in words_of(text)] == [
        *("𠮷", "野家", "で\0", "ＡＢＣ", "２０２４", "年", "", "cafe"[:3] + "é", "🦊"),
        *("次", "の", "行", "です", "。"),
    ]
    assert mecab_word_starts("").tolist() == mecab_word_starts(" \n\t ").tolist() == []


def test_lines_are_segmented_each_by_itself_and_endless_ones_in_parts() -> None:
    line = "私は東京で食べました。"
    alone = mecab_word_starts(line)
    several = mecab_word_starts("\n".join([line] * 3))
    expected = np.concatenate([alone + number * (len(line) + 1) for number in range(3)])
    np.testing.assert_array_equal(several, expected)
    endless = mecab_word_starts(line * 100_000)
    assert (np.diff(endless) > 0).all()
    assert len(endless) > 0.99 * len(alone) * 100_000


def test_real_text_rises_from_the_beginning_to_the_end(test_data: Path) -> None:
    content = (test_data / "text-ja-aozora-sjis" / "akutagawa" / "3786_ruby_27249.txt").read_bytes()
    text = content.decode("cp932").replace("\r\n", "\n")[:20_000]
    starts = mecab_word_starts(text)
    assert (np.diff(starts) > 0).all()
    assert 1.2 < len(text) / len(starts) < 2.5
    assert not any(text[place].isspace() and text[place] != "\u3000" for place in starts.tolist())


def test_without_the_libraries_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(mecab_segmenter().versions) == {"fugashi", "unidic-lite"}
    load_analyser.cache_clear()
    monkeypatch.setitem(sys.modules, "fugashi", None)
    with pytest.raises(ConfigError, match=r"pip install .outlast\[segment\]"):
        mecab_segmenter()
