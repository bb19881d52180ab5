"""Sentences: every character is kept, and the rules of each language hold."""

import json
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from outlast.corpus.sentences import split_lines, split_sentences


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        ("one", ["one"]),
        ("one\ntwo\n", ["one\n", "two\n"]),
        ("\n  one \n\n \n  two", ["\n  one \n\n \n", "  two"]),
        ("one\n \t\n", ["one\n \t\n"]),
        ("one\n\u3000", ["one\n\u3000"]),
        (" \n", [" \n"]),
    ],
)
def test_lines(document: str, sentences: list[str]) -> None:
    assert split_lines(document) == sentences


@hypothesis.given(st.text(st.sampled_from("ab \n\r\u3000\x1c\u2028"), min_size=1))
def test_lines_keep_every_character(document: str) -> None:
    lines = split_lines(document)
    assert "".join(lines) == document
    assert lines == [document] or all(line.strip() for line in lines)


@pytest.mark.parametrize(
    "sentences",
    [
        ["一つ。", "二つ。", "三つ"],
        ["そうか？", "そうだ！", "はい｡", "終"],
        ["そうか?", "そうだ!", "はい"],
        ["本当？！", "ええ。。。", "でも！？　", "はい‼", "終"],
        ["「一つ。二つ。三つ。」と言った。", "彼は帰った。"],
        ["『一つ。二つ。』（三つ。四つ。）【五つ。】〈六つ。〉｢七つ｡｣と言った。", "終"],
        ["（「入れ子。」と言う。）そして。", "終"],
        ["他说：“你好。我是学生。”然后走了。", "再见！"],
        ["はい。」と言った。", "終"],
        ["「閉じない。", "次の文。", "「閉じた。」終。", "後"],
        ["閉じた」だけ。", "次の文。", "後"],
        ["「違う。（交差。」の外。", "残り）。", "終"],
        ["これは…そう……でも。", "終"],
        ["次のとおり．", "値は１．５とする．", "Ｊ．ロックは哲学者．", "終"],
        ["第一行\n", "第二行「途中\n", "続き。」終"],
        ["DNAです。", "RNAです。 ", "終"],
        ["価格は3.5円。", "a.b.c と http://x.jp/?q=1 です。", "終"],
        ["Mr. Smith came. ", 'He said "Go away." ', "Then J. K. Rowling left."],
        ["It cost 3.5 dollars! ", "See Fig. 3 and No. 5 on pp. 5 of it. ", "No. ", "It is not."],
        ['"Stop!" he said. ', "“I came. ", "I saw.” ", "He left (at noon. Or so.) for home. ", "End."],
        ["The U.S. Navy, e.g. Sailors. ", "Am 3. Oktober kam Dr. Weiß. ", "Ende… ", "Es"],
        ["A claim.[12] ", "Another one.[1][2] ", "End"],
        ["Is it? yes it is. ", "¿Qué? ", "Ok"],
        ["Почему? ", "Так надо. ", "Да"],
    ],
)
def test_rules(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == sentences


ALPHABET = "あ。！?.．… \n「」（）『』()“”‘’aA1\u3000[]"


@hypothesis.given(st.text(st.sampled_from(ALPHABET), min_size=1) | st.text(min_size=1))
def test_rules_keep_every_character(document: str) -> None:
    sentences = split_sentences(document)
    assert "".join(sentences) == document
    assert sentences == [document] or all(sentence.strip() for sentence in sentences)
    assert [line for sentence in sentences for line in split_lines(sentence)] == sentences


@hypothesis.given(st.text(st.sampled_from("あ。。「」（）"), min_size=1, max_size=24))
def test_brackets_that_are_closed_enclose_and_others_do_not(line: str) -> None:
    ends = [0]
    for sentence in split_sentences(line):
        ends.append(ends[-1] + len(sentence))
    marks = [
        place for place in range(1, len(line)) if line[place - 1] == "。" and line[place] not in "。」）"
    ]
    assert ends[1:-1] == [place for place in marks if not is_enclosed(line, place)]


def is_enclosed(line: str, place: int) -> bool:
    """By definition: an opening bracket before the place is met by its closing one after it."""
    return any(
        line[begin] in "「（" and place <= partner(line, begin)
        for begin in range(place)
        if line[begin] in "「（"
    )


def partner(line: str, begin: int) -> int:
    """Where the bracket is closed, -1 where it is not; one that is closed around it cuts it off."""
    open_brackets: list[int] = []
    for place, character in enumerate(line):
        if character in "「（":
            open_brackets.append(place)
        elif character in "」）":
            opening = "「" if character == "」" else "（"
            same = [other for other in open_brackets if line[other] == opening]
            if same:
                if same[-1] == begin:
                    return place
                open_brackets = open_brackets[: open_brackets.index(same[-1])]
                if begin < place and begin not in open_brackets:
                    return -1
    return -1


def test_a_line_of_a_million_open_brackets_is_no_trap() -> None:
    """Rules that looked back for each of them would not end."""
    document = "（" * 500_000 + "」" * 500_000 + "。次。" + "「」" * 100_000 + "." * 100_000
    assert "".join(split_sentences(document)) == document


def test_real_articles_keep_every_character(test_data: Path) -> None:
    num_sentences = 0
    for language in ("ja", "en"):
        path = test_data / f"text-{language}-kyoto-wikipedia" / "train-01.jsonl"
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                sentences = split_sentences(text)
                assert "".join(sentences) == text
                num_sentences += len(sentences)
    assert num_sentences > 30_000
