"""TFRecord files by the command line: out with masks, in again, trained as they are."""

from pathlib import Path

import pytest

from support.command_line import Run


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Path:
    return data / "tokenizer"


def test_out_and_in_and_trained(
    outlast: Run, train: Run, data: Path, tokenizer: Path, tmp_path: Path
) -> None:
    for split in ("train", "validation"):
        done = outlast(
            *("shards", "export-tfrecord", data / "manifest.json", "--features", "bert"),
            *("--sequence-length", "16", "--split", split, "--out", tmp_path / split),
            *("--compression", "gzip", "--records-per-shard", "2000", "--processes", "1"),
        )
        assert done.code == 0, done.err
        assert done.out.strip() == f"{tmp_path / split}/manifest.json"
    held_out = sorted((tmp_path / "validation").glob("*.tfrecord.gz"))
    files = sorted((tmp_path / "train").glob("*.tfrecord.gz"))
    assert len(files) > 1
    done = outlast(
        *("shards", "import-tfrecord", *files, "--validation", held_out[0], "--tokenizer", tokenizer),
        *("--sequence-length", "16", "--out", tmp_path / "in"),
    )
    assert done.code == 0, done.err
    shown = outlast("shards", "show", tmp_path / "in" / "manifest.json")
    assert " examples, " in shown.out
    assert outlast("shards", "verify", tmp_path / "in" / "manifest.json").code == 0
    trained = train(manifest=tmp_path / "in" / "manifest.json")
    assert trained.code == 0, trained.err
    evaluated = outlast("evaluate", tmp_path / "run", "--json")
    assert '"num_predictions"' in evaluated.out
    train("stream.sequence_length=32", manifest=tmp_path / "in" / "manifest.json").refused(
        2, "16 tokens long", "set stream.sequence_length to 16"
    )


def test_what_is_wrong_is_told(outlast: Run, data: Path, tokenizer: Path, tmp_path: Path) -> None:
    manifest = data / "manifest.json"
    line = ("shards", "export-tfrecord", manifest, "--out", tmp_path / "out", "--features")
    outlast(*line, "albert").refused(2, "albert", "bigbird")
    outlast(*line, "bert", "--sequence-length", "2").refused(2, "no room for text")
    outlast(*line, "bert", "--mask-probability", "2").refused(2, "mask_probability", "less than 1")
    (tmp_path / "bad.tfrecord").write_bytes(b"nonsense and more of it")
    line = ("shards", "import-tfrecord", tmp_path / "bad.tfrecord", "--out", tmp_path / "out", "--tokenizer")
    outlast(*line, tokenizer).refused(1, "fails its checksum", "bad.tfrecord, byte 0")
    outlast(*line, tmp_path).refused(1, "no tokenizer here")
    outlast(*line, tokenizer, "--processes", "0").refused(2, "--processes")
