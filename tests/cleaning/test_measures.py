"""Measures of a document: what they count, in languages with and without spaces."""

import collections
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.cleaning.measures import (
    WINDOW_BYTES,
    letter_share,
    remove_control_characters,
    repeated_line_share,
    repeated_text_share,
    window_hashes,
)

JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
ENGLISH = "It is a truth universally acknowledged, that a single man in possession of a good fortune"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\0b\x1b[0m\x7f", "ab[0m"),
        ("a\r\nb\rc\x0bd\x0ce\x85f\u2028g\u2029h", "a\nb\nc\nd\ne\nf\ng\nh"),
        ("\ufeffa\u200bb\u00adc\u202ed\u2066e\u2069", "abcde"),
        ("می\u200cخواهم 👩\u200d💻", "می\u200cخواهم 👩\u200d💻"),
        ("a\ufffe\U0001ffff\ufdd0b", "ab"),
        ("全角　空白\n行", "全角　空白\n行"),
    ],
)
def test_control_characters_are_removed_and_joiners_stay(text: str, clean: str) -> None:
    assert remove_control_characters(text) == clean


@given(st.text())
def test_no_control_character_is_left(text: str) -> None:
    clean = remove_control_characters(text)
    assert not [c for c in clean if unicodedata.category(c) == "Cc" and c not in "\t\n"]
    assert remove_control_characters(clean) == clean
    left = collections.Counter(clean) - collections.Counter(text)
    assert set(left) <= {"\n"}  # nothing is added but the newline for another break


@pytest.mark.parametrize(
    ("text", "share"),
    [("abc", 1.0), ("ab12", 0.5), ("漢字かな、。", 4 / 6), ("", 0.0), (" \n\t　", 0.0), ("é e\u0301 ก็", 1.0)],
)
def test_letters_are_counted_without_white_space(text: str, share: float) -> None:
    assert letter_share(text) == pytest.approx(share)


def test_letters_of_long_text_are_counted_across_blocks() -> None:
    assert letter_share("a1" * 3_000_000) == 0.5


@pytest.mark.parametrize(
    ("text", "share"),
    [("a\nb\nc", 0.0), ("ab\nab\nab\nab", 0.75), ("\n\n\n", 0.0), ("行\n 行 \n別", 1 / 3), ("", 0.0)],
)
def test_repeated_lines(text: str, share: float) -> None:
    assert repeated_line_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", [JAPANESE, ENGLISH])
def test_repeated_text_is_the_share_of_windows_seen_before(text: str) -> None:
    def windows(text: str) -> list[bytes]:
        content = text.encode()
        starts = [i for i in range(len(content) - WINDOW_BYTES + 1) if content[i] & 0xC0 != 0x80]
        return [content[i : i + WINDOW_BYTES] for i in starts]

    assert repeated_text_share(text) == 0.0
    for repeated in (text * 2, text * 10, text + "。" + text[:30], text + text[10:]):
        expected = 1 - len(set(windows(repeated))) / len(windows(repeated))
        assert repeated_text_share(repeated) == pytest.approx(expected)
        assert expected > 0
    assert repeated_text_share(text * 10) > 0.85


@given(st.text(max_size=60), st.text(max_size=60))
def test_equal_windows_have_equal_hashes_wherever_they_stand(before: str, text: str) -> None:
    content = text.encode()
    if len(content) < WINDOW_BYTES:
        assert len(window_hashes(content)) == 1
        return
    alone = window_hashes(content)
    within = window_hashes((before + text).encode())
    assert alone.tolist() == within[-len(alone) :].tolist()
    assert window_hashes((text + before).encode())[: len(alone)].tolist() == alone.tolist()


def test_different_windows_have_different_hashes() -> None:
    texts = [f"{number:024d}".encode() for number in range(20_000)]
    texts += [bytes([65 + (number >> place & 1) for place in range(24)]) for number in range(20_000)]
    hashes = {int(window_hashes(text)[0]) for text in texts}
    assert len(hashes) == len(set(texts))
