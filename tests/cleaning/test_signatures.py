"""Signatures: equal for equal text, near for near text, the same on every machine."""

import random

import numpy as np
import pytest

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.signatures import (
    Signatures,
    estimate_similarity,
    line_hashes,
    num_bands,
    text_hash,
)

WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"),
    *("吾輩", "は", "猫", "で", "ある", "名前", "まだ", "無い"),
]


@pytest.fixture(scope="module")
def signatures() -> Signatures:
    return Signatures(CleaningConfig(duplicates="near"))


def jaccard(one: str, other: str) -> float:
    sets: list[set[bytes]] = []
    for text in (one, other):
        content = "".join(text.lower().split()).encode()
        starts = [i for i in range(len(content) - 23) if content[i] & 0xC0 != 0x80]
        sets.append({content[i : i + 24] for i in starts})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_the_estimate_is_right_within_its_error(signatures: Signatures) -> None:
    rng = random.Random(3)
    errors: list[float] = []
    for number in range(200):
        words = [rng.choice(WORDS) + str(rng.randrange(1000)) for _ in range(200)]
        changed = list(words)
        for _ in range(number // 10):
            changed[rng.randrange(len(words))] = "другое"
        _, pair = signatures.sign([" ".join(words), " ".join(changed)])
        truth = jaccard(" ".join(words), " ".join(changed))
        errors.append(float(estimate_similarity(pair[:1], pair[1:])[0]) - truth)
    assert abs(np.mean(errors)) < 0.01
    assert np.std(errors) < 0.045  # 0.044 is the largest standard error, at a similarity of one half


def test_case_and_white_space_do_not_count(signatures: Signatures) -> None:
    text = "It is a truth universally acknowledged, that a single man"
    bands, values = signatures.sign([text, text.upper().replace(" ", "\n "), text + "!"])
    assert (values[0] == values[1]).all()
    assert (bands[0] == bands[1]).all()
    assert (values[0] != values[2]).any()


def test_a_signature_does_not_depend_on_the_batch(signatures: Signatures) -> None:
    texts = ["short", "", "a" * 500, "吾輩は猫である。" * 9, "x" * 100_000]
    together = signatures.sign(texts)
    for number, text in enumerate(texts):
        alone = signatures.sign([text])
        assert (alone[0][0] == together[0][number]).all()
        assert (alone[1][0] == together[1][number]).all()


def test_signatures_never_change(signatures: Signatures) -> None:
    # Another version of the library that computes others would drop other documents.
    bands, values = signatures.sign(["吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"])
    assert values[0, :8].tolist() == GOLDEN_VALUES
    assert int(bands[0, 0]) == GOLDEN_BAND


GOLDEN_VALUES = [29, 1, 97, 242, 246, 211, 131, 43]
GOLDEN_BAND = 2587477673953643712


@pytest.mark.parametrize("similarity", [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
def test_bands_meet_often_enough(similarity: float) -> None:
    bands, rows = num_bands(similarity)
    assert bands * rows <= 128
    assert 1 - (1 - similarity**rows) ** bands >= 0.95
    longer = 1 - (1 - similarity ** (rows + 1)) ** (128 // (rows + 1))
    assert longer < 0.95


def test_hashes_of_text_and_lines() -> None:
    assert text_hash(" a\n") == text_hash("a") != text_hash("b")
    chosen, hashes = line_hashes("a long line\nshort\n  a long line  \n", 6)
    assert chosen.tolist() == [0, 2]
    assert hashes[:16] == hashes[16:] == text_hash("a long line")
