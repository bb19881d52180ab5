"""The choice of training text: bounded, seeded, independent of the stream's order; no line is dropped."""

import random

from hypothesis import given
from hypothesis import strategies as st

from outlast.tokenizer.sampling import choose_documents, split_lines

DOCUMENTS = [f"document {number} " * (number % 7 + 1) for number in range(300)]


def test_a_small_corpus_is_used_whole() -> None:
    text = choose_documents(DOCUMENTS, max_bytes=10**6, seed=0)
    assert sorted(text.documents) == sorted(document.encode() for document in DOCUMENTS)
    assert text.size_bytes == text.bytes_seen == sum(map(len, DOCUMENTS))


def test_the_choice_is_bounded_and_independent_of_the_order() -> None:
    shuffled = random.Random(5).sample(DOCUMENTS, len(DOCUMENTS))
    first = choose_documents(DOCUMENTS, max_bytes=3000, seed=1)
    second = choose_documents(shuffled, max_bytes=3000, seed=1)
    assert first.documents == second.documents
    assert 2800 < first.size_bytes <= 3000
    assert first.num_documents_seen == 300


def test_the_seed_changes_the_choice() -> None:
    first, second = (choose_documents(DOCUMENTS, max_bytes=3000, seed=seed).documents for seed in (1, 2))
    assert set(first) != set(second)


def test_every_part_of_the_stream_is_chosen_from() -> None:
    chosen = choose_documents(DOCUMENTS, max_bytes=9000, seed=0).documents
    numbers = [int(document.split()[1]) for document in chosen]
    assert sum(number < 150 for number in numbers) > len(numbers) // 4
    assert sum(number >= 150 for number in numbers) > len(numbers) // 4


def test_a_document_larger_than_all_the_room_is_cut_between_characters() -> None:
    text = choose_documents(["猫" * 1000], max_bytes=100, seed=0)
    assert text.documents == [("猫" * 33).encode()]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80)), st.integers(8, 40))
def test_splitting_drops_nothing_but_line_ends(documents: list[str], max_bytes: int) -> None:
    encoded = [document.encode() for document in documents]
    lines = list(split_lines(encoded, max_bytes=max_bytes))
    joined = "".join(documents).replace("\n", "").replace("\r", "")
    assert "".join(lines).replace("\r", "") == joined
    assert all(0 < len(line.encode()) <= max_bytes for line in lines)
