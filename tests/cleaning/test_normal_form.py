"""Normal forms: the same as the standard library's, whatever stands beside what."""

import itertools
import json
import random
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.cleaning.normal_form import Form, normalize

UNSTABLE = [
    chr(code)
    for code in range(0x30000)
    if unicodedata.combining(chr(code)) or not unicodedata.is_normalized("NFKC", chr(code))
]
COMPOSING = [chr(code) for code in (*range(0x1100, 0x1200), *range(0x3040, 0x3100), *range(0xAC00, 0xAC40))]
FORMS: tuple[Form, ...] = ("NFC", "NFKC")


@given(
    st.text(st.one_of(st.sampled_from(UNSTABLE), st.sampled_from(COMPOSING), st.characters()), max_size=12)
)
def test_it_is_the_standard_librarys_form(text: str) -> None:
    for form in FORMS:
        assert normalize(form, text) == unicodedata.normalize(form, text)


@pytest.mark.parametrize("form", FORMS)
def test_every_neighbourhood_of_unstable_characters(form: Form) -> None:
    rng = random.Random(1)
    some = rng.sample(UNSTABLE, 60) + rng.sample(COMPOSING, 40) + list("aか。\n ")
    for pair in itertools.product(some, some):
        text = "x".join(("".join(pair), "".join(reversed(pair)), "か" + "".join(pair)))
        assert normalize(form, text) == unicodedata.normalize(form, text)


def test_real_japanese(test_data: Path) -> None:
    lines = (
        (test_data / "text-ja-kyoto-wikipedia" / "train-00.jsonl").read_text(encoding="utf-8").splitlines()
    )
    texts = [json.loads(line)["text"] for line in lines[:100]]
    assert [normalize("NFKC", text) for text in texts] == [
        unicodedata.normalize("NFKC", text) for text in texts
    ]
    assert sum(normalize("NFKC", text) != text for text in texts) > 50
