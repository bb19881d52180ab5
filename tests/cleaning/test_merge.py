"""Of documents that are alike the first stays, whatever the portions, the buckets and the split."""

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.documents import DocumentCleaning
from outlast.cleaning.drops import read_drops, read_merged
from outlast.cleaning.grouping import Grouper
from outlast.cleaning.merge import delete_scans, find_duplicates
from outlast.cleaning.tally import CleaningTally
from outlast.corpus.config import CorpusConfig
from outlast.errors import CorpusError
from outlast.storage import open_store
from support.cleaning import clean, cut, edit, jaccard, scan, write_corpus

WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "seven", "wizards"),
    *("吾輩", "は", "猫", "で", "ある", "名前", "まだ", "無い"),
]
EXACT = CleaningConfig(duplicates="exact")
NEAR = CleaningConfig(duplicates="near")
LINES = CleaningConfig(duplicate_lines="drop", min_duplicate_line_characters=5)


def make_texts(seed: int, count: int) -> list[str]:
    """Documents, some of them copies and some of them edited copies of earlier ones."""
    rng = random.Random(seed)
    texts: list[str] = []
    for _ in range(count):
        fate = rng.random()
        if texts and fate < 0.2:
            texts.append(rng.choice(texts))
        elif texts and fate < 0.4:
            texts.append(edit(rng.choice(texts), 1, rng))
        else:
            texts.append(" ".join(rng.choice(WORDS) + str(rng.randrange(99)) for _ in range(80)))
    return texts


def make_buckets_small(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Grouper.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "run_bytes", 512)


@pytest.fixture
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets so small that every corpus needs many of them."""
    make_buckets_small(monkeypatch)


@pytest.mark.parametrize("num_portions", [1, 3, 7])
def test_the_first_of_equal_documents_stays(tmp_path: Path, num_portions: int, many_buckets: None) -> None:
    texts = make_texts(1, 300)
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", texts)), format="jsonl")
    kept, tally = clean(corpus, EXACT, tmp_path / "out", num_portions)
    assert kept == list(dict.fromkeys(texts))
    assert tally.dropped["exact_duplicate"].documents == 300 - len(kept) > 30
    assert tally.documents_in == 300


def test_portions_and_buckets_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = make_texts(2, 300)
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", texts)), format="jsonl")
    config = CleaningConfig(duplicates="near", duplicate_lines="drop")
    expected = clean(corpus, config, tmp_path / "1", 1)
    make_buckets_small(monkeypatch)
    kept, tally = clean(corpus, config, tmp_path / "5", 5)
    assert kept == expected[0]
    quotes, expected_quotes = (sorted(found.quotes.values()) for found in (tally, expected[1]))
    assert quotes == expected_quotes
    tally.quotes = expected[1].quotes
    assert tally == expected[1]
    assert set(tally.dropped) == {"exact_duplicate", "near_duplicate"}


def test_one_text_many_times_is_found_across_chunks(tmp_path: Path, many_buckets: None) -> None:
    rng = random.Random(9)
    text = " ".join(rng.choice(WORDS) + str(rng.randrange(99)) for _ in range(100))
    texts = [*[text] * 200, "other", *(edit(text, 1, random.Random(number)) for number in range(100))]
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", texts)), format="jsonl")
    kept, tally = clean(corpus, NEAR, tmp_path / "out", 2)
    assert kept == [text, "other"]
    assert tally.dropped["exact_duplicate"].documents + tally.dropped["near_duplicate"].documents == 299


def test_near_duplicates_are_dropped_and_others_stay(tmp_path: Path, many_buckets: None) -> None:
    rng = random.Random(3)
    originals = [" ".join(rng.choice(WORDS) + str(rng.randrange(99)) for _ in range(200)) for _ in range(60)]
    copies = [edit(text, 2, rng) for text in originals[:30]]
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", originals + copies)), format="jsonl")
    kept, tally = clean(corpus, NEAR, tmp_path / "out", 4)
    assert kept == originals
    assert tally.dropped["near_duplicate"].documents == 30
    merged = read_merged(open_store(str(tmp_path / "out")))
    assert len(merged.examples["near_duplicate"]) == 5
    for example in merged.examples["near_duplicate"]:
        dropped, like = (
            tally.quotes[f"{portion}/{section}/{number}"]
            for portion, section, number in (example.dropped, example.like)
        )
        assert originals[copies.index(next(c for c in copies if c.startswith(dropped[:-1])))].startswith(
            like[:-1]
        )
        assert 0.8 <= example.similarity < 1


def test_documents_that_only_share_a_band_stay(tmp_path: Path) -> None:
    rng = random.Random(10)
    originals = [" ".join(rng.choice(WORDS) + str(rng.randrange(99)) for _ in range(200)) for _ in range(80)]
    copies = [edit(text, len(text) // 85, rng) for text in originals]
    similar = [jaccard(text, copy) for text, copy in zip(originals, copies, strict=True)]
    assert 0.5 < min(similar) < max(similar) < 0.74  # many of them share a band
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", originals + copies)), format="jsonl")
    kept, _ = clean(corpus, NEAR, tmp_path / "out", 1)
    assert len(kept) >= 158


def test_held_out_documents_that_lie_apart_stay_and_their_copies_go(tmp_path: Path) -> None:
    texts = make_texts(4, 40)
    held = [edit(texts[0], 1, random.Random(1)), texts[1], "something else entirely, which is nowhere else"]
    corpus = CorpusConfig(
        path=str(write_corpus(tmp_path / "a.jsonl", texts)),
        validation_path=str(write_corpus(tmp_path / "held.jsonl", held)),
        format="jsonl",
    )
    kept, _ = clean(corpus, NEAR, tmp_path / "out", 3)
    assert kept[-3:] == held
    assert texts[0] not in kept
    assert kept.count(texts[1]) == 1


def test_lines_that_were_there_before_are_removed(tmp_path: Path, many_buckets: None) -> None:
    texts = [
        "one line\nof text",
        "one line\nof another text\n\nab\nab",
        "of text\n  one line ",
        "fresh\nof text  ",
    ]
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", texts)), format="jsonl")
    kept, tally = clean(corpus, LINES, tmp_path / "out", 2)
    assert kept == ["one line\nof text", "of another text\n\nab\nab", "fresh"]
    assert tally.dropped["duplicate_lines"].documents == 1
    assert tally.removed_lines == 2
    assert tally.changed == {"duplicate_lines": 2}


def test_a_line_whose_first_document_is_dropped_stays_where_it_stands_next(tmp_path: Path) -> None:
    rng = random.Random(5)
    body = " ".join(rng.choice(WORDS) + str(rng.randrange(99)) for _ in range(200))
    texts = [body, body + "\na line of its own", "other\na line of its own"]
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", texts)), format="jsonl")
    config = CleaningConfig(duplicates="near", duplicate_lines="drop", min_duplicate_line_characters=5)
    assert clean(corpus, config, tmp_path / "out", 1)[0] == [body, "other\na line of its own"]


def test_nothing_at_all_is_no_error(tmp_path: Path) -> None:
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", ["ab", "cd"])), format="jsonl")
    config = CleaningConfig(duplicates="near", duplicate_lines="drop", min_characters=5)
    kept, tally = clean(corpus, config, tmp_path / "out", 2)
    assert kept == []
    assert tally.dropped["too_short"].documents == 2


def test_damaged_scans_and_verdicts_are_named(tmp_path: Path) -> None:
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", make_texts(6, 20))), format="jsonl")
    scan(corpus, EXACT, tmp_path, cut(corpus, 2))
    store = open_store(str(tmp_path))
    record, other = (tmp_path / "cleaning" / "scan" / f"0000{number}.json" for number in (0, 1))
    part = tmp_path / "cleaning" / "scan" / "00000-corpus-00000"
    whole = record.read_text(), part.read_bytes()
    damaged: dict[str, tuple[Path, bytes | None]] = {
        r"00000-corpus-00000[\s\S]*by the record of the scan": (part, whole[1][:-1] + b"?"),
        r"names a file that is missing[\s\S]*00000-corpus": (part, None),
        "does not match the sha256 it carries": (
            record,
            whole[0].replace('"number": 0', '"number": 3').encode(),
        ),
        "is that of portion 1": (record, other.read_bytes()),
        "is no record of the scan": (record, b"{}"),
        r"has version 1\.[\s\S]*delete the folder": (record, b'{"format": "outlast-scan", "version": 1}'),
    }
    for message, (path, content) in damaged.items():
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(CorpusError, match=message + r"[\s\S]*prepare again"):
            find_duplicates(store, EXACT, 2)
        record.write_text(whole[0])
        part.write_bytes(whole[1])
    find_duplicates(store, EXACT, 2)
    verdict = tmp_path / "cleaning" / "drops" / "00000-corpus.documents"
    verdict.write_bytes(bytes([1]) + verdict.read_bytes()[1:])
    with pytest.raises(CorpusError, match=r"00000-corpus\.documents[\s\S]*by the record of the duplicates"):
        read_drops(store, read_merged(store), 0, "corpus")
    (tmp_path / "cleaning" / "merged.json").write_text('{"format": 1}')
    with pytest.raises(CorpusError, match="is no record of the duplicates"):
        read_merged(store)
    delete_scans(store)
    assert not (tmp_path / "cleaning" / "scan").exists()


def test_verdicts_of_version_1_are_read_without_digests(tmp_path: Path) -> None:
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", make_texts(6, 20))), format="jsonl")
    scan(corpus, EXACT, tmp_path, cut(corpus, 1))
    store = open_store(str(tmp_path))
    merged = find_duplicates(store, EXACT, 1)
    fields = {key: value for key, value in asdict(merged).items() if key != "files"}
    former = {"format": "outlast-duplicates", "version": 1, **fields}
    (tmp_path / "cleaning" / "merged.json").write_text(json.dumps(former, indent=1))
    found = read_merged(store)
    assert found == replace(merged, files=None)
    of_both = [read_drops(store, some, 0, "corpus") for some in (merged, found)]
    assert of_both[0].documents.tolist() == of_both[1].documents.tolist()


def test_documents_that_the_scan_did_not_see_are_refused(tmp_path: Path) -> None:
    texts = make_texts(7, 20)
    corpus = CorpusConfig(path=str(write_corpus(tmp_path / "a.jsonl", texts)), format="jsonl")
    scan(corpus, EXACT, tmp_path / "out", cut(corpus, 1))
    find_duplicates(open_store(str(tmp_path / "out")), EXACT, 1)
    stage = DocumentCleaning(EXACT, open_store(str(tmp_path / "out")))
    for other in (texts[:-1], [*texts, "one more"]):
        with pytest.raises(CorpusError, match="not those that were scanned"):
            list(stage.clean(other, 0, "corpus", CleaningTally()))
