"""Exporting a data set as TFRecord files: every example once, masked by the rule, the same after a kill."""

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.errors import ConfigError, ShardError
from outlast.interchange.export_config import ExportConfig
from outlast.interchange.export_tfrecord import export_tfrecord
from outlast.interchange.feature_sets import Shape, recognise
from outlast.interchange.restore import unmask
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from support.datasets import SPECIAL_IDS, write_counting_data
from support.records import FEATURES_OF
from support.tfrecords import batch_of, records_of

LENGTHS = [[40, 9], [25, 100, 3], [61]]
LENGTH = 16


@pytest.fixture
def data(tmp_path: Path) -> str:
    write_counting_data(LocalStore(tmp_path / "data"), LENGTHS)
    return str(tmp_path / "data" / "manifest.json")


def export(data: str, out: Path, **values: Any) -> dict[str, Any]:
    """Export in this process; return the files' manifest."""
    values = {"sequence_length": LENGTH, "records_per_shard": 7, **values}
    config = ExportConfig(**values)
    url = export_tfrecord(data, str(out), config, num_processes=1)
    document: dict[str, Any] = json.loads(Path(url).read_text())
    return document


def examples_of(data: str) -> dict[str, NDArray[Any]]:
    """What the stream gives, in the order of the manifest."""
    config = StreamConfig(manifest=data, sequence_length=LENGTH, global_batch_size=1)
    stream = TokenStream(config, seed=0)
    return stream.examples(np.arange(stream.num_examples))


@pytest.mark.parametrize("features", ["bert", "bigbird", "tokens"])
@pytest.mark.parametrize("compression", ["none", "gzip", "zlib"])
def test_every_example_is_there_once(data: str, tmp_path: Path, features: str, compression: str) -> None:
    out = tmp_path / "out"
    document = export(data, out, features=features, compression=compression, shuffle=False)
    records = records_of(out, document)
    assert document["num_records"] == len(records) == 19
    assert set(records[0]) == FEATURES_OF[features]
    shape = recognise(records[0], None, "f")
    slots = 0 if features == "tokens" else 3  # 0.15 * 16, rounded up
    assert shape == Shape(features, LENGTH, slots)  # pyright: ignore[reportArgumentType]
    batch, expected = batch_of(records), examples_of(data)
    np.testing.assert_array_equal(unmask(batch), expected["input_ids"])
    np.testing.assert_array_equal(batch["attention_mask"], expected["attention_mask"])


def test_names_and_sizes_are_those_asked_for(data: str, tmp_path: Path) -> None:
    document = export(data, tmp_path / "out", features="bert", sequence_length=32, max_predictions=9)
    names = [file["name"] for file in document["files"]]
    assert names == ["dataset-00000-7.tfrecord", "dataset-00001-3.tfrecord"]
    assert (document["sequence_length"], document["num_predictions"]) == (32, 9)
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tfrecord")) == names


def test_the_order_is_that_of_training_or_of_the_manifest(data: str, tmp_path: Path) -> None:
    in_order, shuffled = (
        batch_of(
            records_of(tmp_path / name, export(data, tmp_path / name, features="bert", seed=5, **options))
        )
        for name, options in (("a", {"shuffle": False}), ("b", {}))
    )
    config = StreamConfig(manifest=data, sequence_length=LENGTH, global_batch_size=19)
    seen = TokenStream(config, seed=5).batch(0)["input_ids"]
    np.testing.assert_array_equal(unmask(shuffled), seen)
    assert not np.array_equal(unmask(in_order), seen)
    # A mask belongs to its example, wherever that stands.
    masked_in_order, masked_shuffled = (
        {tuple(row) for row in batch["input_ids"].tolist()} for batch in (in_order, shuffled)
    )
    assert masked_in_order == masked_shuffled


def test_a_seed_decides_the_masks(data: str, tmp_path: Path) -> None:
    contents = [
        (
            tmp_path / name / export(data, tmp_path / name, features="bert", seed=seed)["files"][0]["name"]
        ).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert contents[0] == contents[1] != contents[2]


def test_a_broken_export_goes_on_with_what_is_missing(data: str, tmp_path: Path) -> None:
    whole = export(data, tmp_path / "whole", features="bert")
    broken = tmp_path / "broken"
    export(data, broken, features="bert")
    (broken / "manifest.json").unlink()
    kept, lost = (broken / file["name"] for file in whole["files"][:2])
    lost.unlink()
    (broken / "done" / "00001.json").unlink()
    leftover = broken / f".tmp-{uuid.uuid4().hex}"
    leftover.write_bytes(b"half")
    (broken / "mine").mkdir()
    others = [broken / ".tmp-notes", broken / "mine" / leftover.name]
    for path in others:
        path.write_bytes(b"precious")
    before = kept.stat().st_mtime_ns
    assert export(data, broken, features="bert") == whole
    assert kept.stat().st_mtime_ns == before, "a finished file was written again"
    assert not leftover.exists()
    assert [path.read_bytes() for path in others] == [b"precious"] * 2
    for file in whole["files"]:
        assert (broken / file["name"]).read_bytes() == (tmp_path / "whole" / file["name"]).read_bytes()


def test_another_export_is_not_mixed_in(data: str, tmp_path: Path) -> None:
    export(data, tmp_path / "out", features="bert")
    with pytest.raises(ShardError, match="another corpus or configuration"):
        export(data, tmp_path / "out", features="bert", seed=1)


def test_what_cannot_be_exported_is_refused(data: str, tmp_path: Path) -> None:
    with pytest.raises(ShardError, match="no labels for the feature label_ids"):
        export(data, tmp_path / "a", features="classifier")
    with pytest.raises(ConfigError, match="mask_probability"):
        export(data, tmp_path / "b", features="bert", mask_probability=1.5)
    with pytest.raises(ShardError, match="no split 'test'"):
        export(data, tmp_path / "c", features="bert", split="test")
    with pytest.raises(ConfigError, match="records in a file"):
        export(data, tmp_path / "d", features="bert", records_per_shard=0)


def test_bigbird_needs_padding_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPECIAL_IDS, "pad", 9)
    write_counting_data(LocalStore(tmp_path / "data"), LENGTHS, first_token=20)
    data = str(tmp_path / "data" / "manifest.json")
    with pytest.raises(ShardError, match="pads with 9"):
        export(data, tmp_path / "out", features="bigbird")
    export(data, tmp_path / "out", features="bert")
