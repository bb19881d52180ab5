"""MeCab's tokenizer of Japanese BERTs: the ids of ``BertJapaneseTokenizer``, from import to export."""

import json
import random
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import TokenizerError
from outlast.huggingface.japanese_text import JapaneseText
from outlast.huggingface.tokenizer_files import write_tokenizer_files
from outlast.storage import open_store
from outlast.tokenizer.encode import Tokenizer, load_tokenizer
from outlast.tokenizer.importing import import_tokenizer
from outlast.tokenizer.mecab import mecab_segmenter
from outlast.tokenizer.mecab_words import find_words, normalize_with_places
from outlast.tokenizer.words import make_word_marker

SETTINGS: dict[str, Any] = {
    "tokenizer_class": "BertJapaneseTokenizer",
    "word_tokenizer_type": "mecab",
    "subword_tokenizer_type": "wordpiece",
    "mecab_kwargs": {"mecab_dic": "unidic_lite"},
}
KINDS: list[dict[str, Any]] = [
    {},
    {"do_lower_case": True},
    {"subword_tokenizer_type": "character"},
    {"mecab_kwargs": {"mecab_dic": "unidic_lite", "normalize_text": False}, "do_lower_case": True},
]
NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ODD = (
    *(
        "国際",
        "ｶﾞ",
        "か\u3099",
        " ",
        "\n",
        "\t",
        "\u3000",
        "a",
        "É",
        "🦊",
        "㍿",
        "[CLS]",
        "[MASK]",
        "Ａ",
        "が",
    ),
    *("\u200d", "\u1100\u1161\u11a8", "½", "\ufeff", "İ", "Straße", "x" * 101, "ﷺ"),
)


def write_folder(test_data: Path, out: Path, settings: dict[str, Any]) -> Path:
    """Write a vocabulary in the manner of cl-tohoku's, from real text, with its settings."""
    out.mkdir()
    words: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for text in real_lines(test_data):
        found = unicodedata.normalize("NFKC", text)
        words.update(found[begin:end] for begin, end in find_words(found))
        characters.update(c for c in found if not c.isspace())
    single = [c for c, _ in characters.most_common(800)]
    pieces = [*NAMES, *single, *(w for w, _ in words.most_common(600)), *("##" + c for c in single)]
    (out / "vocab.txt").write_text("".join(f"{piece}\n" for piece in dict.fromkeys(pieces)))
    (out / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, **settings}))
    return out


def real_lines(test_data: Path) -> list[str]:
    with (test_data / "text-ja-kyoto-wikipedia/train-00.jsonl").open() as file:
        rows = [json.loads(row)["text"] for row, _ in zip(file, range(60), strict=False)]
    return [*(line for row in rows for line in row.split("\n")), *rows[:5]]


def odd_texts() -> list[str]:
    rng = random.Random(0)
    return ["", *("".join(rng.choices(ODD, k=rng.randint(1, 14))) for _ in range(1500))]


def imported(folder: Path) -> Tokenizer:
    store = open_store(folder)
    import_tokenizer(folder, store, "imported")
    return load_tokenizer(store, "imported")


@pytest.mark.peers
@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_the_ids_are_those_of_transformers_before_and_after(
    test_data: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    from transformers import AutoTokenizer, BertJapaneseTokenizer

    folder = write_folder(test_data, tmp_path / "theirs", settings)
    tokenizer = imported(folder)
    write_tokenizer_files(tokenizer, tmp_path / "ours", max_length=128, type_vocab_size=2)
    (tmp_path / "ours" / "config.json").write_text('{"model_type": "bert"}')
    theirs: Any = BertJapaneseTokenizer.from_pretrained(str(folder), split_special_tokens=True)
    exported: Any = AutoTokenizer.from_pretrained(str(tmp_path / "ours"))
    assert type(exported).__name__ == "BertJapaneseTokenizer"
    filling = JapaneseText(tmp_path / "ours")
    for text in [*real_lines(test_data), *odd_texts()]:
        ids = tokenizer.encode(text).tolist()
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids, text
        assert exported(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] == ids, text
        framed = exported(text)["input_ids"]
        assert filling.encode(text).ids == framed, text
        assert any(name in text for name in NAMES) or framed[1:-1] == ids, text
    assert exported("雨", "風")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert len(exported) == tokenizer.manifest.vocab_size


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_places_are_of_the_text_as_it_was_given(
    test_data: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    tokenizer = imported(write_folder(test_data, tmp_path / "theirs", settings))
    assert tokenizer.manifest.library == "mecab"
    texts = [*real_lines(test_data)[:300], *odd_texts()]
    for text, (ids, spans) in zip(texts, tokenizer.encode_spans(texts), strict=True):
        assert ids == tokenizer.encode(text).tolist()
        assert (spans[:, 0] < spans[:, 1]).all()
        assert (np.diff(spans[:, 0]) >= 0).all()
        assert not len(spans) or spans.max() <= len(text)
    marked = make_word_marker(tokenizer, mecab_segmenter()).mark(texts)
    assert marked.ids.tolist() == [number for ids, _ in tokenizer.encode_spans(texts) for number in ids]
    text = "ｶﾞラス１２㍿"
    normal, origin = normalize_with_places(text)
    assert normal == unicodedata.normalize("NFKC", text) == "ガラス12株式会社"
    assert origin == [(0, 2), *((place, place + 1) for place in range(2, 6)), *[(6, 7)] * 4]


def test_words_are_marked_by_the_pieces(test_data: Path, tmp_path: Path) -> None:
    tokenizer = imported(write_folder(test_data, tmp_path / "theirs", {}))
    marked = make_word_marker(tokenizer, "pieces").mark(["京都は日本の都市である。"])
    pieces = [tokenizer.piece(number) for number in marked.ids.tolist()]
    assert marked.word_starts.tolist() == [not piece.startswith("##") for piece in pieces]
    assert tokenizer.decode(marked.ids).replace(" ", "") == "京都は日本の都市である。"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"word_tokenizer_type": "basic"}, "word_tokenizer_type is 'basic'"),
        ({"word_tokenizer_type": "sudachi"}, "word_tokenizer_type is 'sudachi'"),
        ({"subword_tokenizer_type": "sentencepiece"}, "subword_tokenizer_type is 'sentencepiece'"),
        ({"mecab_kwargs": None}, "mecab_kwargs.mecab_dic is 'not given'"),
        ({"mecab_kwargs": {"mecab_dic": "ipadic"}}, "mecab_kwargs.mecab_dic is 'ipadic'"),
        ({"mecab_kwargs": {"mecab_dic": "unidic_lite", "mecab_option": "-x"}}, "mecab_option is '-x'"),
        ({"mecab_kwargs": {"mecab_dic": "unidic_lite", "new": 1}}, "mecab_kwargs.new is 1"),
        ({"never_split": ["a"]}, "never_split is"),
    ],
)
def test_what_cannot_be_computed_exactly_is_refused(
    test_data: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(NAMES))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**SETTINGS, **settings}))
    with pytest.raises(TokenizerError, match=message):
        imported(tmp_path)


def test_another_dictionary_is_refused(test_data: Path, tmp_path: Path) -> None:
    folder = write_folder(test_data, tmp_path / "theirs", {})
    tokenizer = imported(folder)
    changed = tokenizer.model.replace(b"unidic-lite ", b"unidic-lite 9")
    with pytest.raises(TokenizerError, match="made with the dictionary unidic-lite 9"):
        type(tokenizer)(tokenizer.manifest, changed)
