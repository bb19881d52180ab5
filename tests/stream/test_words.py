"""Batches tell where words begin, in both packings, and only to those who ask."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.prepare.pairs import add_pairs
from outlast.shards.config import PairsConfig
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream, open_stream
from support.datasets import draw_documents, write_counting_data, write_sentence_data

LENGTH = 24
LENGTHS = [[40, 9, 2], [25, 100, 3], [61]]
SEVERAL_SHARDS = {"train": [draw_documents(seed, 30) for seed in range(3)]}


@pytest.fixture(scope="module", params=["blocks", "pairs"])
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StreamConfig:
    folder = tmp_path_factory.mktemp("data")
    url = str(folder / "manifest.json")
    if request.param == "pairs":
        write_sentence_data(LocalStore(folder), SEVERAL_SHARDS, has_words=True)
        add_pairs(url, PairsConfig(lengths=(LENGTH,), num_passes=2), num_processes=1)
    else:
        write_counting_data(LocalStore(folder), LENGTHS, has_words=True)
    return StreamConfig(manifest=url, sequence_length=LENGTH, global_batch_size=6, packing=request.param)


def expected_starts(ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """As ``counting_words`` marked them: what is no text, and what follows it, begins a word."""
    is_text = ids >= 5
    behind = np.concatenate((np.ones((len(ids), 1), np.bool_), ~is_text[:, :-1]), axis=1)
    return ~is_text | behind | (ids % 3 != 0)


def test_every_word_start_is_that_of_its_token(config: StreamConfig) -> None:
    stream = TokenStream(config, seed=0, word_starts=True)
    num_rows = num_within = 0
    for batch in stream.evaluation_batches():
        assert (batch["word_starts"].dtype, batch["word_starts"].shape) == (np.int8, (6, LENGTH))
        np.testing.assert_array_equal(batch["word_starts"], expected_starts(batch["input_ids"]))
        num_rows += len(batch["input_ids"])
        num_within += int((batch["word_starts"] == 0).sum())
    assert num_rows >= stream.num_examples > 10
    assert num_within > 50


def test_without_special_tokens_a_word_that_is_cut_begins_at_the_border(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path), LENGTHS, has_words=True)
    url = str(tmp_path / "manifest.json")
    config = StreamConfig(manifest=url, sequence_length=7, global_batch_size=4, special_tokens=False)
    stream = TokenStream(config, seed=0, word_starts=True)
    batch = stream.examples(np.arange(stream.num_examples))
    ids = batch["input_ids"]
    assert ((ids[:, 0] >= 5) & (ids[:, 0] % 3 == 0)).any(), "some row begins within a word"
    np.testing.assert_array_equal(batch["word_starts"], expected_starts(ids))


def test_training_batches_have_them_too_and_are_otherwise_the_same(config: StreamConfig) -> None:
    plain, marked = TokenStream(config, seed=3), TokenStream(config, seed=3, word_starts=True)
    assert plain.identity == marked.identity
    ahead = open_stream(
        str(config.manifest),
        global_batch_size=6,
        seed=3,
        sequence_length=LENGTH,
        packing="pairs" if config.packing == "pairs" else "blocks",
        word_starts=True,
    )
    halves = [
        TokenStream(config, seed=3, word_starts=True, process_index=index, process_count=2)
        for index in range(2)
    ]
    for step, batch in zip(range(4), ahead, strict=False):
        without: dict[str, Any] = plain.batch(step)
        assert set(batch) == {*without, "word_starts"}
        joined = [half.batch(step) for half in halves]
        for name, array in marked.batch(step).items():
            np.testing.assert_array_equal(array, batch[name])
            np.testing.assert_array_equal(array, np.concatenate([half[name] for half in joined]))
            np.testing.assert_array_equal(array, without.get(name, batch["word_starts"]))
        np.testing.assert_array_equal(batch["word_starts"], expected_starts(batch["input_ids"]))


def test_a_data_set_without_words_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path), LENGTHS)
    config = StreamConfig(manifest=str(tmp_path / "manifest.json"), sequence_length=LENGTH)
    with pytest.raises(ConfigError, match=r'(?s)does not tell where words begin.*shards\.words = "pieces"'):
        TokenStream(config, seed=0, word_starts=True)
