"""Importing TFRecord files: as they are or as tokens, each record checked, the same after a kill."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError, ShardError, TokenizerError
from outlast.interchange.export_config import ExportConfig
from outlast.interchange.export_tfrecord import export_tfrecord
from outlast.interchange.feature_sets import FeatureSet, Shape, to_messages
from outlast.interchange.import_tfrecord import ImportConfig, import_tfrecord
from outlast.interchange.restore import unmask
from outlast.interchange.tf_example import encode_rows
from outlast.interchange.tfrecord import Compression
from outlast.shards.describe import describe_manifest
from outlast.shards.manifest import read_manifest, write_manifest
from outlast.shards.read import open_shard
from outlast.shards.verify import verify_manifest
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from support import datasets
from support.datasets import SPECIAL_IDS, write_counting_data
from support.hostile import resealed
from support.records import (
    VOCAB_SIZE,
    Batch,
    masked_rows,
    pair_rows,
    to_file_content,
    write_bert_file,
    write_tokenizer_folder,
)

PLAIN = {"input_ids", "attention_mask"}


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return str(write_tokenizer_folder(tmp_path / "tokenizer"))


def bring_in(
    files: list[Path], tokenizer: str, out: Path, *, validation: list[Path] | None = None, **values: Any
) -> str:
    return import_tfrecord(
        [str(file) for file in files],
        str(out),
        ImportConfig(**values),
        tokenizer=tokenizer,
        validation_files=[str(file) for file in validation or []],
        num_processes=1,
    )


def stream_of(url: str, length: int = 32, **values: Any) -> TokenStream:
    config = StreamConfig(manifest=url, sequence_length=length, global_batch_size=4)
    return TokenStream(config, seed=0, **values)


def all_of(url: str, length: int = 32, **values: Any) -> Batch:
    stream = stream_of(url, length, **values)
    return stream.examples(np.arange(stream.num_examples))


def write_rows(path: Path, rows: Batch, features: FeatureSet, slots: int = 0) -> Path:
    shape = Shape(features, rows["input_ids"].shape[1], slots)
    path.write_bytes(to_file_content(to_messages(rows, shape)))
    return path


@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_records_come_back_as_they_were(tmp_path: Path, tokenizer: str, compression: Compression) -> None:
    batches = [masked_rows(20, seed=1), masked_rows(7, seed=2), masked_rows(5, seed=3)]
    files = [tmp_path / f"{name}.tfrecord" for name in "abc"]
    for file, batch in zip(files, batches, strict=True):
        write_bert_file(file, batch, compression)
    url = bring_in(files[:2], tokenizer, tmp_path / "out", validation=files[2:])
    assert verify_manifest(url) == []
    for split, expected in (("train", batches[:2]), ("validation", batches[2:])):
        found = all_of(url, split=split)
        assert set(found) == set(expected[0])
        for name, array in found.items():
            np.testing.assert_array_equal(array, np.concatenate([batch[name] for batch in expected]))
    description = describe_manifest(url)
    assert description["splits"]["train"]["examples"] == 27
    assert description["splits"]["train"]["tokens"] == sum(
        int(b["attention_mask"].sum()) for b in batches[:2]
    )
    manifest, _ = read_manifest(url)
    assert manifest.examples is not None
    assert manifest.examples.num_predictions == 5
    assert [entry.num_token_types for entry in manifest.shards("train")] == [2, 2]


def test_a_classifier_s_records_come_back(tmp_path: Path, tokenizer: str) -> None:
    rows = pair_rows(9)
    rows["labels"] = np.arange(9) % 3
    rows["example_weights"] = (np.arange(9) < 7).astype(np.float32)
    url = bring_in([write_rows(tmp_path / "eval.tf_record", rows, "classifier")], tokenizer, tmp_path / "out")
    found = all_of(url)
    del rows["next_sentence_label"]
    assert set(found) == set(rows)
    for name, array in rows.items():
        np.testing.assert_array_equal(found[name], array)
    evaluated = list(stream_of(url).evaluation_batches())
    weights = np.concatenate([batch["example_weights"] for batch in evaluated])
    assert weights.tolist() == [1] * 7 + [0] * 5, "fake rows and padding weigh nothing"


def test_what_the_two_small_sets_leave_out_is_filled_in(tmp_path: Path, tokenizer: str) -> None:
    batch = masked_rows(6)
    sets: list[tuple[FeatureSet, int]] = [("bigbird", 5), ("tokens", 0)]
    for features, slots in sets:
        file = write_rows(tmp_path / features, batch, features, slots)
        found = all_of(bring_in([file], tokenizer, tmp_path / f"out-{features}"))
        np.testing.assert_array_equal(found["input_ids"], batch["input_ids"])
        np.testing.assert_array_equal(found["attention_mask"], batch["attention_mask"])
        assert set(found) == (set(batch) if slots else PLAIN)


def test_tokens_come_back_from_masked_examples(tmp_path: Path) -> None:
    """Out as masked records, in as tokens: every token of text is there again, in order."""
    lengths = [[40, 9], [25, 100, 3], [61]]
    write_counting_data(LocalStore(tmp_path / "data"), lengths)
    manifest = str(tmp_path / "data" / "manifest.json")
    config = ExportConfig(features="bert", sequence_length=16, shuffle=False, records_per_shard=8)
    exported = json.loads(
        Path(export_tfrecord(manifest, str(tmp_path / "records"), config, num_processes=1)).read_text()
    )
    files = [tmp_path / "records" / file["name"] for file in exported["files"]]
    tokenizer = write_tokenizer_folder(tmp_path / "tokenizer", datasets.VOCAB_SIZE)
    url = bring_in(files, str(tokenizer), tmp_path / "back", target="tokens")
    assert verify_manifest(url) == []
    text = [
        document
        for file in read_manifest(url)[0].shards("train")
        for shard in [open_shard(tmp_path / "back" / file.name)]
        for document in map(shard.document, range(shard.num_documents))
    ]
    assert np.concatenate(text).tolist() == list(range(5, 5 + 238))
    # Boundaries inside records are kept; a record's end is one, too.
    starts = {int(document[0]) for document in text}
    assert {5, 45, 54, 79, 179, 182} <= starts


def test_pairs_come_back_as_documents(tmp_path: Path, tokenizer: str) -> None:
    batch = masked_rows(30)
    file = tmp_path / "pairs.tfrecord"
    write_bert_file(file, batch)
    url = bring_in([file], tokenizer, tmp_path / "out", target="tokens")
    shard = open_shard(tmp_path / "out" / read_manifest(url)[0].shards("train")[0].name)
    expected: list[list[int]] = []
    for ids, types, mask, label in zip(
        unmask(batch),
        batch["token_type_ids"],
        batch["attention_mask"],
        batch["next_sentence_label"],
        strict=True,
    ):
        is_text = (mask == 1) & ~np.isin(ids, [SPECIAL_IDS["cls"], SPECIAL_IDS["sep"]])
        first, second = (ids[is_text & (types == kind)].tolist() for kind in (0, 1))
        expected += [first, second] if label else [first + second]
    assert [shard.document(index).tolist() for index in range(shard.num_documents)] == expected


def test_the_manifest_of_an_export_stands_for_its_files(tmp_path: Path, tokenizer: str) -> None:
    write_bert_file(tmp_path / "f", masked_rows(25))
    first = bring_in([tmp_path / "f"], tokenizer, tmp_path / "first")
    config = ExportConfig(features="bert", shuffle=False, records_per_shard=10)
    exported = Path(export_tfrecord(first, str(tmp_path / "records"), config, num_processes=1))
    second = bring_in([exported], tokenizer, tmp_path / "second", validation=[tmp_path / "f"])
    for name, array in all_of(first).items():
        np.testing.assert_array_equal(all_of(second)[name], array)
    assert len(read_manifest(second)[0].shards("train")) == 3
    document = json.loads(exported.read_text())
    for change, content in (
        ("is no list of TFRecord files", resealed({**document, "format": "other"})),
        ("does not list TFRecord files", resealed({**document, "files": [{"name": "../f"}]})),
        ("does not list TFRecord files", resealed({**document, "files": 1})),
        ("edited or damaged", exported.read_bytes().replace(b'"num_records": 25', b'"num_records": 24')),
    ):
        (tmp_path / "manifest.json").write_bytes(content)
        with pytest.raises(ShardError, match=change):
            bring_in([tmp_path / "manifest.json"], tokenizer, tmp_path / "third")


def test_labels_are_not_lost(tmp_path: Path, tokenizer: str) -> None:
    rows = {**pair_rows(3), "labels": np.arange(3)}
    file = write_rows(tmp_path / "f", rows, "classifier")
    with pytest.raises(ConfigError, match="labels, which token shards have no place for"):
        bring_in([file], tokenizer, tmp_path / "out", target="tokens")


def test_lengths_are_checked_before_anything_is_done(tmp_path: Path, tokenizer: str) -> None:
    file = tmp_path / "f.tfrecord"
    write_bert_file(file, masked_rows(3))
    with pytest.raises(ConfigError, match=r"has 32 tokens[\s\S]*set --sequence-length to 32"):
        bring_in([file], tokenizer, tmp_path / "out", sequence_length=128)
    with pytest.raises(ConfigError, match=r"has 5 predictions[\s\S]*set --max-predictions to 5"):
        bring_in([file], tokenizer, tmp_path / "out", max_predictions=20)
    assert not (tmp_path / "out").exists()
    url = bring_in([file], tokenizer, tmp_path / "out", sequence_length=32, max_predictions=5)
    with pytest.raises(ConfigError, match=r"32 tokens long, the run's 128[\s\S]*sequence_length to 32"):
        stream_of(url, 128)


def damaged_file(path: Path, **changes: Any) -> Path:
    """Write 5 records of which the fourth has other values."""
    batch = masked_rows(5)
    for name, value in changes.items():
        batch[name] = batch[name].astype(np.float64 if name == "masked_weights" else np.int64)
        batch[name].reshape(5, -1)[3, 0] = value
    write_bert_file(path, batch)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": VOCAB_SIZE}, "input_ids holds 1000"),
        ({"input_ids": -1}, "input_ids holds -1"),
        ({"attention_mask": 2}, "attention_mask holds 2"),
        ({"token_type_ids": 128}, "token_type_ids holds 128"),
        ({"masked_positions": 32}, "masked_positions holds 32"),
        ({"masked_ids": 2**40}, "masked_ids holds 1099511627776"),
        ({"masked_weights": float("nan")}, "masked_weights holds nan"),
        ({"masked_weights": -1}, "masked_weights holds -1"),
        ({"next_sentence_label": 2}, "next_sentence_label holds 2"),
    ],
)
@pytest.mark.parametrize("target", ["examples", "tokens"])
def test_impossible_values_are_named(
    tmp_path: Path, tokenizer: str, changes: dict[str, Any], message: str, target: str
) -> None:
    file = damaged_file(tmp_path / "f.tfrecord", **changes)
    with pytest.raises(ShardError, match=message) as caught:
        bring_in([file], tokenizer, tmp_path / "out", target=target)
    assert f"{file}, record 3 at byte" in str(caught.value)


def test_records_of_another_shape_are_named(tmp_path: Path, tokenizer: str) -> None:
    shape = Shape("bert", 32, 5)
    good = to_messages(masked_rows(2), shape)
    longer = to_messages(masked_rows(1, length=40), Shape("bert", 40, 5))
    other = to_messages(pair_rows(1), Shape("tokens", 32, 0))
    floats = encode_rows({"input_ids": ("float", np.zeros((1, 32)))})
    file = tmp_path / "f"
    for number, (messages, message) in enumerate(
        (
            (good + longer, "input_ids holds 40 values instead of 32"),
            (good + other, "lacks input_mask, segment_ids"),
            (floats, "has the features input_ids"),
            ([b"nonsense"], "no tf.train.Example"),
            ([], "hold no record"),
        )
    ):
        file.write_bytes(to_file_content(messages))
        with pytest.raises(ShardError, match=message) as caught:
            bring_in([file], tokenizer, tmp_path / f"out-{number}")
        assert str(file) in str(caught.value)
        assert not (tmp_path / f"out-{number}" / "manifest.json").exists()
    file.write_bytes(to_file_content(good))
    with pytest.raises(ShardError, match=r"lacks label_ids, is_real_example[\s\S]*--features"):
        bring_in([file], tokenizer, tmp_path / "out", features="classifier")


def test_the_wrong_tokenizer_shows(tmp_path: Path, tokenizer: str) -> None:
    batch = masked_rows(3)
    batch["input_ids"][:, 0] = 101
    file = tmp_path / "f"
    write_bert_file(file, batch)
    with pytest.raises(ShardError, match="begins with the id 101"):
        bring_in([file], tokenizer, tmp_path / "out")
    with pytest.raises(TokenizerError, match="no tokenizer"):
        bring_in([file], str(tmp_path / "elsewhere"), tmp_path / "out")
    with pytest.raises(ShardError, match="no such file"):
        bring_in([tmp_path / "absent"], tokenizer, tmp_path / "out")


def test_a_count_in_a_name_must_be_right(tmp_path: Path, tokenizer: str) -> None:
    file = tmp_path / "dataset-00000-4.tfrecord"
    write_bert_file(file, masked_rows(3))
    with pytest.raises(ShardError, match=r"holds 3 records[\s\S]*4 by its name"):
        bring_in([file], tokenizer, tmp_path / "out")


def test_a_broken_import_goes_on_with_what_is_missing(tmp_path: Path, tokenizer: str) -> None:
    files = [tmp_path / f"{number}.tfrecord" for number in range(3)]
    for number, file in enumerate(files):
        write_bert_file(file, masked_rows(4, seed=number))
    whole = Path(bring_in(files, tokenizer, tmp_path / "whole")).read_bytes()
    damaged = files[1].read_bytes()
    files[1].write_bytes(damaged[:-9] + bytes(9))
    with pytest.raises(ShardError, match="1 of 3 portions failed"):
        bring_in(files, tokenizer, tmp_path / "broken")
    kept = tmp_path / "broken" / "train-00002-of-00003.safetensors"
    before = kept.stat().st_mtime_ns
    files[1].write_bytes(damaged)
    assert Path(bring_in(files, tokenizer, tmp_path / "broken")).read_bytes() == whole
    assert kept.stat().st_mtime_ns == before


def test_an_empty_file_among_others_is_no_shard(tmp_path: Path, tokenizer: str) -> None:
    (tmp_path / "empty").write_bytes(b"")
    write_bert_file(tmp_path / "full", masked_rows(4))
    url = bring_in([tmp_path / "empty", tmp_path / "full"], tokenizer, tmp_path / "out")
    assert [entry.name for entry in read_manifest(url)[0].shards("train")] == [
        "train-00001-of-00002.safetensors"
    ]


def test_imported_examples_are_exported_with_their_masks(tmp_path: Path, tokenizer: str) -> None:
    file = tmp_path / "f"
    write_bert_file(file, masked_rows(11))
    url = bring_in([file], tokenizer, tmp_path / "in")
    config = ExportConfig(features="bert", shuffle=False)
    export_tfrecord(url, str(tmp_path / "out"), config, num_processes=1)
    assert (tmp_path / "out" / "dataset-00000-11.tfrecord").read_bytes() == file.read_bytes()
    for wrong, message in (
        (ExportConfig(features="tokens"), "masked already"),
        (ExportConfig(features="bert", sequence_length=64), "cannot be cut anew"),
        (ExportConfig(features="bert", max_predictions=9), "have 5 predictions each"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_tfrecord(url, str(tmp_path / "other"), wrong, num_processes=1)


def test_a_wrong_number_of_token_types_is_seen(tmp_path: Path, tokenizer: str) -> None:
    write_bert_file(tmp_path / "f", masked_rows(6))
    url = bring_in([tmp_path / "f"], tokenizer, tmp_path / "out")
    manifest, store = read_manifest(url)
    [entry] = manifest.shards("train")
    write_manifest(store, replace(manifest, splits={"train": (replace(entry, num_token_types=1),)}))
    [problem] = verify_manifest(url)
    assert problem == f"{entry.name}: holds 2 token types, the manifest says 1"


def test_damaged_example_shards_are_seen(tmp_path: Path, tokenizer: str) -> None:
    write_bert_file(tmp_path / "f", masked_rows(6))
    url = bring_in([tmp_path / "f"], tokenizer, tmp_path / "out")
    shard = next((tmp_path / "out").glob("*.safetensors"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"\xff")
    problems = verify_manifest(url)
    assert any("sha256" in problem for problem in problems)
    assert any("next_sentence_label holds 255" in problem for problem in problems) or len(problems) == 2
    with pytest.raises(ShardError, match="fails the manifest's sha256"):
        all_of(url)
    shard.write_bytes(content[:-5])
    assert any("cut short" in problem or "by its header" in problem for problem in verify_manifest(url))
