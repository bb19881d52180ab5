"""Batches by step: the right tokens, exact on resume, elastic over processes, loud about damage."""

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError, ShardError
from outlast.shards.document import MANIFEST_NAME
from outlast.shards.manifest import Manifest, TokenizerEntry, write_manifest
from outlast.shards.write import TokenShardWriter
from outlast.storage import LocalStore
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream, open_stream

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
VOCAB_SIZE = 5000


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three shards of documents whose tokens count up, so that every token tells where it was."""
    folder = tmp_path_factory.mktemp("data")
    store = LocalStore(folder)
    entries: dict[str, list[Any]] = {"train": [], "validation": []}
    token = itertools.count(5)
    for split, index, lengths in (
        ("train", 0, (30, 7, 44)),
        ("train", 1, (101,)),
        ("train", 2, (3, 3)),
        VALIDATION,
    ):
        with TokenShardWriter(vocab_size=VOCAB_SIZE, separator_id=3, tokenizer_fingerprint="f") as writer:
            for length in lengths:
                writer.add(np.array(list(itertools.islice(token, length)), np.int32))
            entries[split].append(writer.write(store, f"{split}-{index:05d}.safetensors"))
    tokenizer = TokenizerEntry(
        path="tokenizer", fingerprint="f", vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS
    )
    splits = {split: tuple(found) for split, found in entries.items()}
    write_manifest(store, Manifest(token_dtype="uint16", tokenizer=tokenizer, splits=splits, provenance={}))
    return str(folder / MANIFEST_NAME)


VALIDATION = ("validation", 0, (50, 20))


def make_stream(manifest: str, **options: Any) -> TokenStream:
    arguments: dict[str, Any] = {
        "sequence_length": 12,
        "global_batch_size": 6,
        "prefetch_batches": 3,
        **options,
    }
    seed, split = arguments.pop("seed", 0), arguments.pop("split", "train")
    processes = {
        name: arguments.pop(name) for name in ("process_index", "process_count") if name in arguments
    }
    return TokenStream(StreamConfig(manifest=manifest, **arguments), seed=seed, split=split, **processes)


def test_an_epoch_holds_every_token_once(manifest: str) -> None:
    stream = make_stream(manifest, global_batch_size=4)
    assert stream.num_examples == 9 + 11 + 1  # ceil of 84, 102 and 8 tokens by 10
    rows = [row for step in range(21) for row in rows_of(stream.batch(step))][: 4 * 21]
    first_epoch = rows[:21]
    tokens = sorted(token for row in first_epoch for token in row if token >= 5)
    assert tokens == list(range(5, 5 + 188))


def rows_of(batch: dict[str, Any]) -> list[list[int]]:
    return [
        ids[mask == 1].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]


def test_an_example_is_framed_and_the_last_of_a_shard_padded(manifest: str) -> None:
    batches = list(make_stream(manifest).evaluation_batches())
    ids = np.concatenate([batch["input_ids"] for batch in batches])
    mask = np.concatenate([batch["attention_mask"] for batch in batches])
    assert ids.dtype == np.int32
    assert mask.dtype == np.int8
    assert ids[0].tolist() == [2, *range(5, 15), 3]
    assert ids[3].tolist() == [
        2,
        3,
        *range(35, 42),
        3,
        42,
        3,
    ]  # 30 tokens, a separator, 7 tokens, a separator
    assert ids[8].tolist() == [2, *range(83, 86), 3, 3, 0, 0, 0, 0, 0, 0][:12]
    assert mask[8].tolist() == [1] * 6 + [0] * 6


def test_without_special_tokens_an_example_is_text_alone(manifest: str) -> None:
    batch = next(make_stream(manifest, special_tokens=False).evaluation_batches())
    assert batch["input_ids"][0].tolist() == list(range(5, 17))
    assert batch["attention_mask"].sum() == 72


@pytest.mark.parametrize("options", [{}, {"num_lanes": 3, "window_examples": 6}, {"reader_threads": 4}])
def test_every_position_restored_into_a_fresh_reader_gives_the_same_tail(
    manifest: str, options: dict[str, Any]
) -> None:
    steps = 12  # three epochs
    whole = [make_stream(manifest, **options).batch(step) for step in range(steps)]
    for start in range(steps):
        tail = list(itertools.islice(make_stream(manifest, **options).batches_from(start), steps - start))
        for expected, found in zip(whole[start:], tail, strict=True):
            assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("options", [{}, {"num_lanes": 4, "window_examples": 8}])
def test_every_position_restored_with_other_processes_gives_the_same_tail(
    manifest: str, options: dict[str, Any]
) -> None:
    """Fresh readers at each position, 1, 2, 3, 4 or 8 processes in turn, over the ends of many epochs."""
    steps = 12
    options = {"global_batch_size": 24, **options}
    whole = [make_stream(manifest, **options).batch(step) for step in range(steps)]
    for start in range(steps):
        process_count = (1, 2, 3, 4, 8)[start % 5]
        tails = [
            itertools.islice(
                make_stream(
                    manifest, process_index=index, process_count=process_count, **options
                ).batches_from(start),
                steps - start,
            )
            for index in range(process_count)
        ]
        for expected, parts in zip(whole[start:], zip(*tails, strict=True), strict=True):
            for name, array in expected.items():
                assert np.array_equal(array, np.concatenate([part[name] for part in parts]))


@pytest.mark.parametrize("prefetch", [1, 2, 9])
def test_prefetch_and_threads_do_not_change_the_order(manifest: str, prefetch: int) -> None:
    stream = make_stream(manifest, prefetch_batches=prefetch, reader_threads=3)
    expected = make_stream(manifest)
    for step, batch in enumerate(itertools.islice(stream.batches_from(0), 10)):
        assert np.array_equal(batch["input_ids"], expected.batch(step)["input_ids"])


@pytest.mark.parametrize("every", [1, 2, 50])
def test_batches_that_are_kept_stay_as_they_were(manifest: str, every: int) -> None:
    stream = make_stream(manifest, global_batch_size=2)
    kept = [
        (step, batch)
        for step, batch in enumerate(itertools.islice(stream.batches_from(0), 700))  # many times the stock
        if step % every == 0
    ]
    for step, batch in kept:
        expected = stream.batch(step)
        assert all(np.array_equal(expected[name], batch[name]) for name in expected)


@pytest.mark.parametrize("process_count", [1, 2, 3, 6])
def test_processes_together_read_the_global_batch(manifest: str, process_count: int) -> None:
    whole = make_stream(manifest)
    parts = [
        make_stream(manifest, process_index=index, process_count=process_count)
        for index in range(process_count)
    ]
    for step in range(8):
        joined = np.concatenate([part.batch(step)["input_ids"] for part in parts])
        assert np.array_equal(joined, whole.batch(step)["input_ids"])


def test_evaluation_counts_every_example_once(manifest: str) -> None:
    batches = list(make_stream(manifest, split="validation", global_batch_size=4).evaluation_batches())
    weights = np.concatenate([batch["example_weights"] for batch in batches])
    indices = np.concatenate([batch["example_index"] for batch in batches])
    assert [len(batch["input_ids"]) for batch in batches] == [4, 4]
    assert indices[weights == 1].tolist() == list(range(8))
    assert not batches[-1]["attention_mask"][3:].any() or weights.sum() == 8


def test_a_limited_evaluation_is_spread_over_the_split(manifest: str) -> None:
    batches = list(make_stream(manifest, global_batch_size=5).evaluation_batches(limit=7))
    weights = np.concatenate([batch["example_weights"] for batch in batches])
    indices = np.concatenate([batch["example_index"] for batch in batches])
    assert indices[weights == 1].tolist() == [0, 3, 6, 9, 12, 15, 18]


def test_open_stream_resumes_by_its_step(manifest: str) -> None:
    options: dict[str, Any] = {"global_batch_size": 6, "seed": 3, "sequence_length": 12}
    stream = open_stream(manifest, **options)
    skipped = [next(stream) for _ in range(5)]
    resumed = open_stream(manifest, **options, start_step=5)
    assert np.array_equal(next(stream)["input_ids"], next(resumed)["input_ids"])
    assert len(skipped) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"packing": "Blocks"}, "'blocks', 'pairs'"),
        ({"process_count": 0}, "process_count"),
        ({"process_index": 2, "process_count": 2}, "expected: 0 to 1"),
        ({"process_index": -1}, "process_index"),
        ({"start_step": -1}, "start_step"),
    ],
)
def test_an_argument_out_of_its_range_is_refused_at_the_call(
    manifest: str, options: dict[str, Any], message: str
) -> None:
    arguments: dict[str, Any] = {"global_batch_size": 6, "sequence_length": 12, **options}
    with pytest.raises(ConfigError, match=message):
        open_stream(manifest, **arguments)


def test_every_key_of_the_table_is_an_argument_and_others_are_refused(manifest: str) -> None:
    keys: dict[str, Any] = {"sequence_length": 12, "special_tokens": False, "num_lanes": 2, "verify": False}
    found = next(open_stream(Path(manifest), global_batch_size=6, window_examples=4, **keys))
    expected = make_stream(manifest, window_examples=4, **keys).batch(0)
    assert np.array_equal(found["input_ids"], expected["input_ids"])
    mistakes: dict[str, Any] = {"sequence_lenght": 12, "prefetch": 0, "reader_threads": 0}
    with pytest.raises(
        ConfigError, match=r"than 0[\s\S]*did you mean 'sequence_length'[\s\S]*'prefetch_batches'"
    ):
        open_stream(manifest, global_batch_size=6, **mistakes)


@pytest.mark.parametrize("process_count", [1, 2, 5])
def test_an_evaluation_shows_every_example_once(manifest: str, process_count: int) -> None:
    options: dict[str, Any] = {"global_batch_size": 10, "sequence_length": 12, "evaluation": True}
    shares = [
        list(open_stream(manifest, process_index=index, process_count=process_count, **options))
        for index in range(process_count)
    ]
    assert {len(share) for share in shares} == {3}
    parts = [part for share in shares for part in share]
    seen = np.concatenate([part["example_index"][part["example_weights"] == 1] for part in parts])
    assert sorted(seen) == list(range(21))
    assert {part["input_ids"].shape for part in parts} == {(10 // process_count, 12)}
    tokens = np.concatenate([part["input_ids"].ravel() for part in parts])
    assert sorted(tokens[tokens >= 5]) == list(range(5, 5 + 188))
    [rest] = open_stream(manifest, start_step=2, **options)
    assert rest["example_index"][0] == 20


def test_a_batch_larger_than_the_split_is_one_evaluation(manifest: str) -> None:
    [batch] = open_stream(manifest, global_batch_size=64, sequence_length=12, num_lanes=32, evaluation=True)
    assert batch["example_weights"].sum() == 21


def test_a_batch_of_no_step_is_refused(manifest: str) -> None:
    with pytest.raises(ConfigError, match="no step -1"):
        make_stream(manifest).batch(-1)


def test_a_stream_is_not_sent_to_another_process(manifest: str) -> None:
    with pytest.raises(ConfigError, match="open it there"):
        copy.copy(make_stream(manifest))


def test_no_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"no manifest.*\n.*\n.*outlast prepare"):
        make_stream(str(tmp_path / "manifest.json"))
    with pytest.raises(ConfigError, match=r"names no data.*\n.*stream.manifest"):
        TokenStream(StreamConfig(), seed=0)


def test_a_batch_that_processes_do_not_divide_names_the_nearest(manifest: str) -> None:
    with pytest.raises(ConfigError, match="4 or 8"):
        make_stream(manifest, process_count=4)


def test_a_sequence_without_room_for_text_is_refused(manifest: str) -> None:
    with pytest.raises(ConfigError, match="no room for text"):
        make_stream(manifest, sequence_length=2)


def test_a_shard_cut_short_is_found_before_its_tokens_are_used(manifest: str, tmp_path: Path) -> None:
    folder = copy_of(manifest, tmp_path)
    shard = folder / "train-00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    stream = make_stream(str(folder / MANIFEST_NAME))
    with pytest.raises(ShardError, match=r"fails the manifest's sha256 .*\n.*train-00001"):
        list(itertools.islice(stream.batches_from(0), 10))


def test_a_flipped_bit_is_found(manifest: str, tmp_path: Path) -> None:
    folder = copy_of(manifest, tmp_path)
    shard = folder / "train-00000.safetensors"
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ShardError, match="sha256"):
        list(make_stream(str(folder / MANIFEST_NAME)).evaluation_batches())


def test_a_missing_shard_is_named(manifest: str, tmp_path: Path) -> None:
    folder = copy_of(manifest, tmp_path)
    (folder / "train-00002.safetensors").unlink()
    with pytest.raises(ShardError, match=r"shard is missing.*\n.*train-00002"):
        list(make_stream(str(folder / MANIFEST_NAME)).evaluation_batches())


def copy_of(manifest: str, folder: Path) -> Path:
    for path in Path(manifest).parent.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder
