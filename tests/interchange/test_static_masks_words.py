"""Whole words in static masks: the rule of training, and the same words for the same ranks."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.interchange.export_config import ExportConfig
from outlast.interchange.export_tfrecord import export_tfrecord
from outlast.interchange.restore import unmask
from outlast.interchange.static_masks import choose_words
from outlast.objectives.whole_words import choose_words as choose_on_device
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from support.datasets import SPECIAL_IDS, write_counting_data
from support.records import MASKS, Batch, pair_rows
from support.tfrecords import batch_of, records_of

WHOLE = replace(MASKS, whole_words=True)


def marked_rows(num_rows: int) -> Batch:
    rows = pair_rows(num_rows)
    ids = rows["input_ids"]
    starts = np.random.default_rng(2).random(ids.shape) < 0.5
    starts |= np.isin(ids, sorted(SPECIAL_IDS.values()))
    starts[:, 1:] |= starts[:, :-1] & np.isin(ids[:, :-1], sorted(SPECIAL_IDS.values()))
    return {**rows, "word_starts": starts.astype(np.int8)}


def test_the_same_ranks_give_the_words_of_training() -> None:
    rng = np.random.default_rng(0)
    shape, num_slots = (200, 96), 14
    eligible, starts = rng.random(shape) < 0.9, rng.random(shape) < 0.4
    ranks = rng.integers(0, 2**31, shape)
    counts = np.minimum(rng.integers(0, num_slots + 1, shape[0]), eligible.sum(axis=1))
    # On the device the highest rank comes first.
    chosen = choose_words(eligible, starts, (2**31 - 1 - ranks).astype(np.uint64), counts)
    positions, used = jax.jit(choose_on_device, static_argnames="num_slots")(
        eligible,
        starts.astype(np.int32),
        ranks.astype(np.int32),
        counts.astype(np.int32),
        num_slots=num_slots,
    )
    for row in range(shape[0]):
        found = sorted(np.asarray(positions)[row][np.asarray(used)[row]].tolist())
        assert np.flatnonzero(chosen[row]).tolist() == found


def test_all_of_a_word_is_hidden_or_nothing() -> None:
    rows = marked_rows(400)
    batch = WHOLE.apply(rows, np.arange(400))
    assert "word_starts" not in batch
    np.testing.assert_array_equal(unmask(batch), rows["input_ids"])
    used = batch["masked_weights"] == 1
    chosen = np.zeros(rows["input_ids"].shape, np.bool_)
    row_numbers, slots = np.nonzero(used)
    chosen[row_numbers, batch["masked_positions"][row_numbers, slots]] = True
    words = np.cumsum(rows["word_starts"], axis=1)
    for row in range(400):
        for word in np.unique(words[row, chosen[row]]):
            assert chosen[row, words[row] == word].all()
    lengths = rows["attention_mask"].sum(axis=1)
    assert (used.sum(axis=1) <= np.minimum(5, np.maximum(1, np.rint(0.15 * lengths)))).all()
    assert used.sum() > 0.85 * np.minimum(5, np.rint(0.15 * lengths)).sum()


def test_words_of_one_token_are_hidden_as_tokens_are() -> None:
    rows = pair_rows(50)
    plain = MASKS.apply(rows, np.arange(50))
    single = WHOLE.apply({**rows, "word_starts": np.ones_like(rows["attention_mask"])}, np.arange(50))
    for name, array in plain.items():
        np.testing.assert_array_equal(array, single[name])


def test_an_export_hides_whole_words(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[40, 9], [25, 100, 3], [61]], has_words=True)
    data = str(tmp_path / "data" / "manifest.json")
    config = ExportConfig(features="bert", sequence_length=32, shuffle=False, whole_words=True)
    document = json.loads(
        Path(export_tfrecord(data, str(tmp_path / "out"), config, num_processes=1)).read_text()
    )
    batch = batch_of(records_of(tmp_path / "out", document))
    stream = TokenStream(
        StreamConfig(manifest=data, sequence_length=32, global_batch_size=1), seed=0, word_starts=True
    )
    examples = stream.examples(np.arange(stream.num_examples))
    expected = replace(WHOLE, num_predictions=5, vocab_size=60_000).apply(
        examples, np.arange(len(examples["input_ids"]))
    )
    for name in ("input_ids", "masked_positions", "masked_ids", "masked_weights"):
        np.testing.assert_array_equal(batch[name], expected[name])


def test_an_export_says_what_it_lacks(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path / "data"), [[40, 9]])
    data = str(tmp_path / "data" / "manifest.json")
    with pytest.raises(ConfigError, match="does not tell where words begin"):
        export_tfrecord(
            data, str(tmp_path / "a"), ExportConfig(features="bert", whole_words=True), num_processes=1
        )
    with pytest.raises(ConfigError, match="'tokens' has no masks"):
        export_tfrecord(data, str(tmp_path / "b"), ExportConfig(features="tokens", whole_words=True))
