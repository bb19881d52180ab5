"""Real text with planted duplicates: what is planted is found, what is not stays, and the counts add up."""

import json
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.cleaning.config import CleaningConfig
from outlast.corpus.config import CorpusConfig
from support.cleaning import clean, edit, jaccard, write_corpus


def kyoto(data: Path, language: str) -> list[str]:
    path = data / f"text-{language}-kyoto-wikipedia" / "train-00.jsonl"
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def livedoor(data: Path) -> list[str]:
    texts: list[str] = []
    with tarfile.open(data / "text-ja-livedoor" / "livedoor-train.tar.gz") as archive:
        for member in archive:
            if member.isfile() and "dokujo-tsushin" in member.name and "LICENSE" not in member.name:
                file = archive.extractfile(member)
                assert file is not None
                texts.append(file.read().decode().split("\n", 2)[2])
    return texts


def reviews(data: Path) -> list[str]:
    lines = (data / "cls-zh-reviews" / "dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t")[2] for line in lines]


CORPORA: dict[str, Callable[[Path], list[str]]] = {
    "kyoto-ja": lambda data: kyoto(data, "ja"),
    "kyoto-en": lambda data: kyoto(data, "en"),
    "livedoor": livedoor,
    "reviews-zh": reviews,
}


@pytest.mark.parametrize("name", CORPORA)
def test_planted_duplicates_are_found_and_others_stay(test_data: Path, tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    originals = list(dict.fromkeys(text.strip() for text in CORPORA[name](test_data)))
    chosen = rng.sample([text for text in originals if len(text) > 100], 120)
    exact = chosen[:40]
    planted = [(text, edit(text, max(1, len(text.encode()) // 600), rng)) for text in chosen[40:]]
    near = {copy for text, copy in planted if jaccard(text, copy) >= 0.9}
    texts = originals + exact + [copy for _, copy in planted]
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", texts)), format="jsonl")
    kept, tally = clean(corpus, CleaningConfig(duplicates="near"), tmp_path / "out", 3)

    assert tally.dropped["exact_duplicate"].documents == 40
    assert len(near) > 20
    assert len(near & set(kept)) <= len(near) * 0.03
    lost = [text for text in originals if text not in set(kept)]
    assert len(lost) <= len(originals) * 0.02
    for text in lost:  # what was dropped without being planted is a near duplicate in truth
        assert max(jaccard(text, other) for other in originals if other != text) > 0.7
    assert tally.documents_in == len(texts)
    assert tally.documents_out == len(kept)
    assert tally.documents_in - tally.documents_out == sum(d.documents for d in tally.dropped.values())
    assert tally.text_bytes_in == sum(len(text.encode()) for text in texts)
    assert tally.text_bytes_out == sum(len(text.encode()) for text in kept)
    dropped_bytes = sum(d.text_bytes for d in tally.dropped.values())
    assert tally.text_bytes_in == tally.text_bytes_out + tally.text_bytes_within + dropped_bytes


def test_rules_drop_what_is_no_text_and_keep_articles(test_data: Path, tmp_path: Path) -> None:
    articles = kyoto(test_data, "ja")[:200] + kyoto(test_data, "en")[:200]
    garbage = ["1234 5678 !!! " * 20, "同じ行です。\n" * 30, "あいうえお" * 200, "短い", "\u200b\ufeff \0"]
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", garbage + articles)), format="jsonl")
    config = CleaningConfig(
        unicode_form="NFKC",
        remove_control_characters=True,
        min_characters=20,
        min_letter_share=0.5,
        max_repeated_line_share=0.3,
        max_repeated_text_share=0.3,
    )
    kept, tally = clean(corpus, config, tmp_path / "out", 2)
    assert {reason: entry.documents for reason, entry in tally.dropped.items()} == {
        "few_letters": 1,
        "repeated_lines": 1,
        "repeated_text": 1,
        "too_short": 1,
        "empty": 1,
    }
    assert len(kept) == 400
    again = CorpusConfig(path=str(write_corpus(tmp_path / "b.jsonl", kept)), format="jsonl")
    assert clean(again, config, tmp_path / "again", 2)[0] == kept  # cleaning what is clean changes nothing


def test_languages_are_told_apart(test_data: Path, tmp_path: Path) -> None:
    japanese, english = kyoto(test_data, "ja")[:60], kyoto(test_data, "en")[:60]
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", japanese + english)), format="jsonl")
    kept, tally = clean(corpus, CleaningConfig(languages=("ja",)), tmp_path / "out", 2)
    assert len(set(kept) & set(japanese)) >= 59
    assert len(set(kept) & set(english)) <= 1
    assert 59 <= tally.dropped["other_language"].documents <= 61
