"""Batches of pairs: the right tokens in the right layout, pure functions of the position, on every store."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load as safetensors_load

from outlast.errors import ConfigError, ShardError
from outlast.prepare.pairs import add_pairs
from outlast.shards.config import PairsConfig
from outlast.shards.read import open_shard
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream, open_stream
from support.datasets import SPECIAL_IDS, draw_documents, write_sentence_data
from support.files import serving_folder

LENGTH = 24
NUM_PASSES = 2
SPLITS = {"train": [draw_documents(seed, 30) for seed in range(3)], "validation": [draw_documents(8, 7)]}
PAD, CLS, SEP = (SPECIAL_IDS[role] for role in ("pad", "cls", "sep"))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Shards whose tokens count up, so that every token tells where it was, and their pairs."""
    folder = tmp_path_factory.mktemp("data")
    write_sentence_data(LocalStore(folder), SPLITS)
    url = str(folder / "manifest.json")
    add_pairs(url, PairsConfig(lengths=(LENGTH, 64), num_passes=NUM_PASSES), num_processes=1)
    return url


def make_stream(manifest: str, **options: Any) -> TokenStream:
    processes = {name: options.pop(name) for name in ("process_index", "process_count") if name in options}
    split = options.pop("split", "train")
    values: dict[str, Any] = {
        "sequence_length": LENGTH,
        "global_batch_size": 6,
        "packing": "pairs",
        **options,
    }
    return TokenStream(StreamConfig(manifest=manifest, **values), seed=0, split=split, **processes)


def read_documents(manifest: str, split: str = "train") -> list[NDArray[Any]]:
    shards = [open_shard(path) for path in sorted(Path(manifest).parent.glob(f"{split}-*.safetensors"))]
    return [shard.document(index) for shard in shards for index in range(shard.num_documents)]


def whole_split(stream: TokenStream) -> dict[str, NDArray[Any]]:
    """Return every example of the split, in the order of the tables."""
    batches = list(stream.evaluation_batches())
    joined = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return {name: array[: stream.num_examples] for name, array in joined.items()}


def test_an_example_is_two_framed_segments(manifest: str) -> None:
    stream = make_stream(manifest)
    batch = stream.batch(0)
    assert {name: (array.dtype, array.shape) for name, array in batch.items()} == {
        "input_ids": (np.int32, (6, LENGTH)),
        "attention_mask": (np.int8, (6, LENGTH)),
        "token_type_ids": (np.int8, (6, LENGTH)),
        "next_sentence_label": (np.int32, (6,)),
    }
    examples = whole_split(stream)
    assert stream.num_examples > 500
    for ids, mask, types in zip(
        *(examples[name] for name in ("input_ids", "attention_mask", "token_type_ids")), strict=True
    ):
        num_ids = int(mask.sum())
        assert mask.tolist() == [1] * num_ids + [0] * (LENGTH - num_ids)
        assert ids[0] == CLS
        first, second = np.flatnonzero(ids == SEP)
        assert second == num_ids - 1
        assert (ids[num_ids:] == PAD).all()
        assert types.tolist() == [0] * (first + 1) + [1] * (second - first) + [0] * (LENGTH - num_ids)


def test_the_label_tells_whether_b_follows_a(manifest: str) -> None:
    documents = read_documents(manifest)
    owner = {int(token): number for number, document in enumerate(documents) for token in document}
    examples = whole_split(make_stream(manifest))
    for ids, label in zip(examples["input_ids"], examples["next_sentence_label"], strict=True):
        border, end = np.flatnonzero(ids == SEP)
        segments = ids[1:border], ids[border + 1 : end]
        for segment in segments:
            assert len(segment)
            assert (np.diff(segment) == 1).all(), "a segment is a run of one document's tokens"
            assert len({owner[int(token)] for token in segment}) == 1
        first, second = (owner[int(segment[0])] for segment in segments)
        assert (first == second) == (label == 0)
        assert label or segments[1][0] > segments[0][-1]
        if not label and end + 1 < LENGTH:
            assert segments[1][0] == segments[0][-1] + 1, "nothing was cut off, so B follows at once"
    assert 0 < examples["next_sentence_label"].mean() < 1


def test_examples_stand_in_the_order_of_the_tables(manifest: str) -> None:
    stream = make_stream(manifest)
    examples = whole_split(stream)
    starts, labels = [], []
    for number, table in enumerate(stream.manifest.pair_set(LENGTH).splits["train"]):
        arrays = safetensors_load((Path(manifest).parent / f"pairs-{LENGTH}" / table.name).read_bytes())
        shard = open_shard(Path(manifest).parent / f"train-{number:05d}-of-00003.safetensors")
        starts.append(shard.tokens[arrays["first_begin"]])
        labels.append(arrays["next_sentence_label"])
    assert np.array_equal(examples["input_ids"][:, 1], np.concatenate(starts))
    assert np.array_equal(examples["next_sentence_label"], np.concatenate(labels))


def test_an_epoch_is_all_passes_and_each_example_once(manifest: str) -> None:
    stream = make_stream(manifest, global_batch_size=1)
    tables = stream.manifest.pair_set(LENGTH).splits["train"]
    assert stream.num_examples == sum(table.num_examples for table in tables)
    epoch = [stream.batch(step)["input_ids"][0].tolist() for step in range(stream.num_examples)]
    assert epoch != (everything := whole_split(stream)["input_ids"].tolist())
    assert sorted(epoch) == sorted(everything)


def test_every_position_restored_into_a_fresh_reader_gives_the_same_tail(manifest: str) -> None:
    steps = 12
    whole = [make_stream(manifest).batch(step) for step in range(steps)]
    for start in range(0, steps, 5):
        tail = itertools.islice(make_stream(manifest, reader_threads=3).batches_from(start), steps - start)
        for expected, found in zip(whole[start:], tail, strict=True):
            assert expected.keys() == found.keys()
            assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_the_public_stream_gives_the_same(manifest: str) -> None:
    stream = open_stream(manifest, global_batch_size=6, sequence_length=LENGTH, packing="pairs", start_step=2)
    expected = make_stream(manifest).batch(2)
    assert all(np.array_equal(found, expected[name]) for name, found in next(stream).items())


@pytest.mark.parametrize("process_count", [2, 3, 6])
def test_processes_together_read_the_global_batch(manifest: str, process_count: int) -> None:
    whole = make_stream(manifest)
    parts = [
        make_stream(manifest, process_index=index, process_count=process_count)
        for index in range(process_count)
    ]
    for step in range(4):
        found = [part.batch(step) for part in parts]
        for name, expected in whole.batch(step).items():
            assert np.array_equal(np.concatenate([batch[name] for batch in found]), expected)


def test_evaluation_fills_the_last_batch_with_rows_of_no_weight(manifest: str) -> None:
    stream = make_stream(manifest, split="validation", global_batch_size=500)
    (batch,) = stream.evaluation_batches()
    assert batch["example_weights"].sum() == stream.num_examples
    assert batch["attention_mask"][stream.num_examples :].sum() == 0
    assert batch["next_sentence_label"].shape == (500,)


def test_a_remote_set_gives_the_same_batches(manifest: str, tmp_path: Path) -> None:
    local = make_stream(manifest)
    with serving_folder(Path(manifest).parent) as url:
        remote = make_stream(f"{url}/manifest.json", cache_dir=str(tmp_path))
        for step in range(3):
            for name, expected in local.batch(step).items():
                assert np.array_equal(remote.batch(step)[name], expected)


def test_the_tables_are_part_of_what_a_run_is(manifest: str, tmp_path: Path) -> None:
    blocks = make_stream(manifest, packing="blocks").identity
    pairs = make_stream(manifest).identity
    assert "pairs" not in blocks
    write_sentence_data(LocalStore(tmp_path), SPLITS)
    other = str(tmp_path / "manifest.json")
    add_pairs(other, PairsConfig(lengths=(LENGTH,), num_passes=NUM_PASSES, seed=1), num_processes=1)
    changed = make_stream(other).identity
    assert {name for name in pairs if pairs[name] != changed[name]} - {"window_examples"} == {"pairs"}


def test_a_length_without_tables_is_an_error_with_the_way_out(manifest: str) -> None:
    found = r"no pairs of 32 tokens[\s\S]*set stream.sequence_length to 24 or 64[\s\S]*--length 32"
    with pytest.raises(ShardError, match=found):
        make_stream(manifest, sequence_length=32)
    with pytest.raises(ConfigError, match="special tokens"):
        make_stream(manifest, special_tokens=False)


@pytest.mark.parametrize("verify", [True, False])
def test_a_damaged_table_is_an_error(tmp_path: Path, verify: bool) -> None:
    write_sentence_data(LocalStore(tmp_path), SPLITS)
    url = str(tmp_path / "manifest.json")
    add_pairs(url, PairsConfig(lengths=(LENGTH,), num_passes=1), num_processes=1)
    for path in (tmp_path / f"pairs-{LENGTH}").glob("train-*"):
        content = bytearray(path.read_bytes())
        content[-1] = 2  # a label, which is checked also where no digest is
        path.write_bytes(content)
    with pytest.raises(ShardError, match="sha256" if verify else "next_sentence_label holds 2"):
        make_stream(url, verify=verify).batch(0)
