"""Exporting a data set's pairs: every pass of them, with segments, labels and masks, and back again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.interchange.export_config import ExportConfig
from outlast.interchange.export_tfrecord import export_tfrecord
from outlast.interchange.import_tfrecord import ImportConfig, import_tfrecord
from outlast.interchange.restore import unmask
from outlast.prepare.pairs import add_pairs
from outlast.shards.config import PairsConfig
from outlast.shards.manifest import read_manifest
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from support.command import Command, kill_when
from support.datasets import SPECIAL_IDS, VOCAB_SIZE, draw_documents, write_sentence_data
from support.records import FEATURES_OF, write_tokenizer_folder
from support.tfrecords import batch_of, records_of

LENGTH = 32
PASSES = 3
SPLITS = {
    "train": [draw_documents(seed, 20) for seed in range(3)],
    "validation": [draw_documents(9, 12)],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data")
    write_sentence_data(LocalStore(folder), SPLITS, has_words=True)
    url = str(folder / "manifest.json")
    assert add_pairs(url, PairsConfig(lengths=(LENGTH,), num_passes=PASSES), num_processes=1)
    return url


def export(data: str, out: Path, **values: Any) -> dict[str, Any]:
    values = {"features": "bert", "records_per_shard": 50, **values}
    url = export_tfrecord(data, str(out), ExportConfig(**values), num_processes=1)
    document: dict[str, Any] = json.loads(Path(url).read_text())
    return document


def pairs_of(data: str, split: str = "train", **values: Any) -> dict[str, NDArray[Any]]:
    """What the stream gives, in the order of the manifest."""
    config = StreamConfig(manifest=data, packing="pairs", sequence_length=LENGTH, global_batch_size=1)
    stream = TokenStream(config, seed=0, split=split, **values)
    return stream.examples(np.arange(stream.num_examples))


@pytest.mark.parametrize("features", ["bert", "bigbird"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_pair_of_every_pass_is_there(data: str, tmp_path: Path, features: str, split: str) -> None:
    document = export(data, tmp_path, features=features, split=split, shuffle=False)
    records = records_of(tmp_path, document)
    tables = read_manifest(data)[0].pair_set(LENGTH).splits[split]
    assert document["num_records"] == len(records) == sum(table.num_examples for table in tables)
    assert document["sequence_length"] == LENGTH
    assert set(records[0]) == FEATURES_OF[features]
    batch, expected = batch_of(records), pairs_of(data, split)
    np.testing.assert_array_equal(unmask(batch), expected["input_ids"])
    for name in ("attention_mask", "token_type_ids", "next_sentence_label"):
        np.testing.assert_array_equal(batch[name], expected[name])
    assert int(batch["next_sentence_label"].sum()) == sum(table.num_random for table in tables)
    assert set(batch["next_sentence_label"].tolist()) == {0, 1}


def test_records_are_what_their_labels_say(data: str, tmp_path: Path) -> None:
    """By the tokens alone, which count up through the split: no stream, no table."""
    batch = batch_of(records_of(tmp_path, export(data, tmp_path)))
    ids, types, mask = unmask(batch), batch["token_type_ids"], batch["attention_mask"]
    document_of = documents_of("train")
    for row, label in enumerate(batch["next_sentence_label"].tolist()):
        length = int(mask[row].sum())
        first_sep, last_sep = np.flatnonzero(ids[row] == SPECIAL_IDS["sep"]).tolist()
        assert ids[row, 0] == SPECIAL_IDS["cls"]
        assert last_sep == length - 1
        expected = (np.arange(LENGTH) > first_sep) & (np.arange(LENGTH) <= last_sep)
        np.testing.assert_array_equal(types[row], expected)
        first, second = ids[row, 1:first_sep], ids[row, first_sep + 1 : last_sep]
        same_document = document_of[first[0]] == document_of[second[0]]
        assert same_document == (label == 0)
        assert (np.diff(first) == 1).all()
        assert (np.diff(second) == 1).all()
        if label == 0:
            assert second[0] > first[-1]
        used = batch["masked_weights"][row] == 1
        wanted = min(5, max(1, round(0.15 * length)))  # P is 0.15 * 32, rounded up
        assert used.sum() == min(wanted, length - 3)
        assert not set(batch["masked_ids"][row, used].tolist()) & set(SPECIAL_IDS.values())


def documents_of(split: str) -> NDArray[np.int64]:
    """Return the number of the document that each token of a split belongs to."""
    lengths = [sum(sentences) for shard in SPLITS[split] for sentences in shard]
    return np.concatenate((np.full(5, -1), np.repeat(np.arange(len(lengths)), lengths)))


def test_whole_words_of_pairs_are_hidden(data: str, tmp_path: Path) -> None:
    document = export(data, tmp_path, whole_words=True, shuffle=False)
    batch, expected = batch_of(records_of(tmp_path, document)), pairs_of(data, word_starts=True)
    np.testing.assert_array_equal(unmask(batch), expected["input_ids"])
    words = np.cumsum(expected["word_starts"], axis=1)
    hidden = np.zeros(words.shape, np.bool_)
    rows, slots = np.nonzero(batch["masked_weights"])
    hidden[rows, batch["masked_positions"][rows, slots]] = True
    for row in range(len(words)):
        for word in np.unique(words[row, hidden[row]]):
            assert hidden[row, words[row] == word].all()


@pytest.mark.parametrize("features", ["bert", "bigbird"])
def test_pairs_come_back_from_an_import(data: str, tmp_path: Path, features: Any) -> None:
    exported = batch_of(records_of(tmp_path / "out", export(data, tmp_path / "out", features=features)))
    url = import_tfrecord(
        [str(tmp_path / "out" / "manifest.json")],
        str(tmp_path / "back"),
        ImportConfig(),
        tokenizer=str(write_tokenizer_folder(tmp_path / "tokenizer", VOCAB_SIZE)),
        num_processes=1,
    )
    stream = TokenStream(
        StreamConfig(manifest=url, sequence_length=LENGTH, global_batch_size=1), seed=0, split="train"
    )
    back = stream.examples(np.arange(stream.num_examples))
    assert set(back) == set(exported)
    for name, array in exported.items():
        np.testing.assert_array_equal(back[name], array)
    again = export(url, tmp_path / "again", features=features, shuffle=False)
    for name, array in batch_of(records_of(tmp_path / "again", again)).items():
        np.testing.assert_array_equal(array, exported[name])


def test_a_killed_export_of_pairs_ends_with_the_same_bytes(data: str, tmp_path: Path) -> None:
    command, out = Command(tmp_path / "cache"), tmp_path / "out"
    export(data, tmp_path / "whole", records_per_shard=10)
    line = ("shards", "export-tfrecord", data, "--out", out, "--features", "bert", "--processes", "1")
    line = (*line, "--records-per-shard", "10")
    assert kill_when(command.start(*line), lambda: len(list(out.glob("dataset-*"))) >= 3)
    assert not (out / "manifest.json").exists()
    command.run(*line)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").glob("*") if path.is_file()}
    assert {path.name: path.read_bytes() for path in out.glob("*") if path.is_file()} == expected


def test_runs_of_tokens_are_exported_where_they_are_asked_for(data: str, tmp_path: Path) -> None:
    batch = batch_of(records_of(tmp_path, export(data, tmp_path, packing="blocks", sequence_length=16)))
    assert not batch["token_type_ids"].any()
    document = export(data, tmp_path / "tokens", features="tokens", sequence_length=16)
    assert "pairs" not in document["provenance"]


def test_the_same_pairs_are_part_of_the_plan(data: str, tmp_path: Path) -> None:
    document = export(data, tmp_path)
    pair_set = read_manifest(data)[0].pair_set(LENGTH)
    assert document["provenance"]["pairs"] == pair_set.fingerprint


def test_pairs_that_cannot_be_exported_are_refused(data: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has pairs of 32 tokens") as refused:
        export(data, tmp_path / "a", sequence_length=64)
    assert "shards pair MANIFEST --length 64" in str(refused.value.remedy)
    with pytest.raises(ConfigError, match="no place for whether the second text follows"):
        export(data, tmp_path / "b", features="tokens", packing="pairs")
    with pytest.raises(ConfigError, match="told apart by their special tokens"):
        export(data, tmp_path / "c", special_tokens=False)
    write_sentence_data(LocalStore(tmp_path / "plain"), SPLITS)
    plain = str(tmp_path / "plain" / "manifest.json")
    with pytest.raises(ConfigError, match="has no pairs"):
        export(plain, tmp_path / "d", packing="pairs")
    assert add_pairs(plain, PairsConfig(lengths=(16, 24), num_passes=1), num_processes=1)
    with pytest.raises(ConfigError, match="has pairs of 16, 24 tokens"):
        export(plain, tmp_path / "e")
