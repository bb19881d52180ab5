"""Pair tables of a whole data set: the same bytes whoever builds them and however often it is killed."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.corpus.config import CorpusConfig
from outlast.errors import ConfigError, ShardError
from outlast.prepare.build import prepare_data
from outlast.prepare.pairs import add_pairs
from outlast.recipe import Recipe
from outlast.shards.config import PairsConfig, ShardsConfig
from outlast.shards.describe import describe_manifest
from outlast.shards.manifest import Manifest, read_manifest, write_manifest
from outlast.shards.offsets import open_offsets
from outlast.shards.pair_table import identity_of, read_pair_table
from outlast.shards.pairs import Offsets, PairCorpus, PairRules, Pairs, make_pairs
from outlast.shards.verify import verify_manifest
from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from support.datasets import draw_documents, write_counting_data, write_sentence_data
from support.hostile import resealed

CONFIG = PairsConfig(lengths=(32, 64), num_passes=3)
SPLITS = {
    "train": [draw_documents(seed, 60) for seed in range(3)],
    "validation": [draw_documents(9, 12)],
}


def make_data(folder: Path) -> str:
    write_sentence_data(LocalStore(folder), SPLITS)
    return str(folder / "manifest.json")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose pairs one process made in one go."""
    folder = tmp_path_factory.mktemp("data")
    assert add_pairs(make_data(folder), CONFIG, num_processes=1)
    return folder


def files_of(folder: Path) -> dict[str, str]:
    """The digest of every file, the leftovers of killed writers aside."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".tmp-")
    }


def test_the_tables_hold_the_pairs_of_every_pass(unbroken: Path) -> None:
    manifest, store = read_manifest(str(unbroken / "manifest.json"))
    assert [pair_set.sequence_length for pair_set in manifest.pairs or ()] == [32, 64]
    assert verify_manifest(str(unbroken / "manifest.json")) == []
    for split, entries in manifest.splits.items():
        corpus = PairCorpus(
            split=split,
            shard_documents=tuple(entry.num_documents for entry in entries),
            offsets_of=lambda shard, entries=entries: open_offsets(store, entries[shard]),
        )
        rules = PairRules(sequence_length=64, num_passes=3, short_probability=0.1, seed=0)
        for shard, pairs in enumerate(read_tables(str(unbroken / "manifest.json"), 64, split)):
            expected: list[Pairs] = []
            for number in range(3):
                expected += make_pairs(corpus, rules, shard=shard, pass_index=number)
            for found, columns in zip(pairs, zip(*expected, strict=True), strict=True):
                assert np.array_equal(found, np.concatenate(columns))


def test_a_build_that_is_done_changes_nothing(unbroken: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*") if path.is_file()}
    assert add_pairs(str(unbroken / "manifest.json"), CONFIG, num_processes=1)
    assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "lost", ["pairs-32/train-00001-of-00003.safetensors", "pairs-32/done/train-00001-of-00003.json"]
)
def test_a_table_without_its_record_is_built_again(tmp_path: Path, unbroken: Path, lost: str) -> None:
    """A kill between the two leaves a table alone; a record alone is what a careless person leaves."""
    url = make_data(tmp_path)
    add_pairs(url, CONFIG, num_processes=1)
    (tmp_path / lost).unlink()
    assert add_pairs(url, CONFIG, num_processes=1)
    assert files_of(tmp_path) == files_of(unbroken)


def test_a_length_can_be_added_and_disturbs_nothing(tmp_path: Path, unbroken: Path) -> None:
    url = make_data(tmp_path)
    fingerprint = read_manifest(url)[0].fingerprint
    for length in (64, 32):
        add_pairs(url, PairsConfig(lengths=(length,), num_passes=3), num_processes=1)
    assert files_of(tmp_path) == files_of(unbroken)
    assert read_manifest(url)[0].fingerprint == fingerprint


def test_the_number_of_processes_and_tasks_does_not_matter(tmp_path: Path, unbroken: Path) -> None:
    shared, tasks = tmp_path / "shared", tmp_path / "tasks"
    assert add_pairs(make_data(shared), CONFIG, num_processes=2)
    assert files_of(shared) == files_of(unbroken)
    url = make_data(tasks)
    done = [add_pairs(url, CONFIG, num_processes=1, task=(index, 3)) for index in (2, 0, 1)]
    assert done == [False, False, True]
    assert files_of(tasks) == files_of(unbroken)


def test_the_data_set_may_move(tmp_path: Path, unbroken: Path) -> None:
    (tmp_path / "data").mkdir()
    for path in unbroken.rglob("*"):
        if path.is_file():
            target = tmp_path / "data" / path.relative_to(unbroken)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    assert verify_manifest(str(tmp_path / "data" / "manifest.json")) == []


def test_other_values_for_a_length_that_is_there_are_refused(unbroken: Path) -> None:
    with pytest.raises(ShardError, match=r"num_passes: 3 there, 4 now[\s\S]*pairs-32"):
        add_pairs(str(unbroken / "manifest.json"), PairsConfig(lengths=(32,), num_passes=4), num_processes=1)


def test_a_split_of_one_document_has_no_other(tmp_path: Path) -> None:
    write_sentence_data(LocalStore(tmp_path), {"train": [[[5, 5]]]})
    with pytest.raises(ShardError, match="'train' has one document"):
        add_pairs(str(tmp_path / "manifest.json"), CONFIG, num_processes=1)


def test_documents_without_sentences_make_no_pairs(tmp_path: Path) -> None:
    write_counting_data(LocalStore(tmp_path), [[10, 20]])
    with pytest.raises(ShardError, match=r"sentences[\s\S]*corpus\.sentences"):
        add_pairs(str(tmp_path / "manifest.json"), CONFIG, num_processes=1)


@pytest.mark.parametrize("damage", ["one bit", "missing"])
def test_a_damaged_shard_is_named_and_the_others_are_kept(tmp_path: Path, damage: str) -> None:
    url = make_data(tmp_path)
    path = tmp_path / "train-00001-of-00003.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    if damage == "missing":
        path.unlink()
    config = PairsConfig(lengths=(32,), num_passes=3)
    with pytest.raises(ShardError, match=r"tables? failed[\s\S]*train-00001-of-00003"):
        add_pairs(url, config, num_processes=1)
    path.write_bytes(content)
    assert add_pairs(url, config, num_processes=1)
    assert verify_manifest(url) == []


def test_damaged_tables_are_found_by_the_check(tmp_path: Path) -> None:
    url = make_data(tmp_path)
    add_pairs(url, PairsConfig(lengths=(32,), num_passes=2), num_processes=1)
    first, second = (tmp_path / "pairs-32" / f"train-0000{number}-of-00003.safetensors" for number in (0, 1))
    first.write_bytes(first.read_bytes()[:-1] + b"\1")
    second.unlink()
    problems = verify_manifest(url)
    assert any(line.startswith(f"pairs-32/{first.name}: has sha256") for line in problems)
    assert f"pairs-32/{second.name}: is missing" in problems


def test_the_manifest_guards_its_tables(tmp_path: Path, unbroken: Path) -> None:
    document: dict[str, Any] = json.loads((unbroken / "manifest.json").read_text())
    document["pairs"][0]["splits"]["train"][0]["sha256"] = "0" * 64
    (tmp_path / "manifest.json").write_bytes(resealed(document))
    with pytest.raises(ShardError, match="fingerprint does not match"):
        read_manifest(str(tmp_path / "manifest.json"))


def test_builds_of_two_lengths_that_end_together_are_both_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them read the records before the other wrote its own, and replaces the manifest after it."""
    url = make_data(tmp_path)
    add_pairs(url, PairsConfig(lengths=(32,), num_passes=2), num_processes=1)
    late: list[Manifest] = [read_manifest(url)[0]]

    def write_late(store: Any, manifest: Manifest) -> None:
        write_manifest(store, manifest)
        while late:
            write_manifest(store, late.pop())  # the other build's manifest, which does not know of 64

    monkeypatch.setattr("outlast.prepare.pairs.write_manifest", write_late)
    add_pairs(url, PairsConfig(lengths=(64,), num_passes=2), num_processes=1)
    assert not late
    assert [pair_set.sequence_length for pair_set in read_manifest(url)[0].pairs or ()] == [32, 64]


def test_what_is_there_is_told(unbroken: Path) -> None:
    told = describe_manifest(str(unbroken / "manifest.json"))["pairs"]
    assert [pairs["sequence_length"] for pairs in told] == [32, 64]
    assert told[0]["examples"]["train"] > told[1]["examples"]["train"]
    assert 0.5 < told[0]["random_share"] < 0.8


BUILD = (
    "import sys; from outlast.shards.config import PairsConfig;"
    "from outlast.prepare.pairs import add_pairs;"
    "add_pairs(sys.argv[1], PairsConfig(lengths=(32, 64), num_passes=3), num_processes=int(sys.argv[2]))"
)


def kill_and_go_on(folder: Path, seed: int, *, kills: int, num_processes: int) -> int:
    """Kill builds of the tables at random moments, then let one end; return how many were killed at work."""
    rng = random.Random(seed)
    url, killed = make_data(folder), 0
    command = [sys.executable, "-c", BUILD, url, str(num_processes)]
    for _ in range(kills):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        # From the first plan on, which appears when the libraries are loaded.
        while not (folder / "pairs-32" / "plan.json").exists() and process.poll() is None:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert add_pairs(url, CONFIG, num_processes=1)
    return killed


def test_killed_and_continued_the_tables_are_the_same(tmp_path: Path, unbroken: Path) -> None:
    assert kill_and_go_on(tmp_path, 0, kills=3, num_processes=1)
    assert files_of(tmp_path) == files_of(unbroken)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_a_hundred_kills(tmp_path: Path, unbroken: Path, seed: int) -> None:
    assert kill_and_go_on(tmp_path, 1 + seed, kills=5, num_processes=1 + seed % 2)
    assert files_of(tmp_path) == files_of(unbroken)


@pytest.mark.parametrize("sentences", ["lines", "rules"])
def test_pairs_of_real_text(test_data: Path, tmp_path: Path, sentences: Literal["lines", "rules"]) -> None:
    """Japanese articles, from text to tables by the real stages: borders, shares, every token of a pass."""
    corpus = CorpusConfig(
        path=str(test_data / "text-ja-kyoto-wikipedia"),
        include="train-00.jsonl",
        format="jsonl",
        validation_fraction=0.05,
        sentences=sentences,
    )
    pairs = PairsConfig(lengths=(128, 512), num_passes=2, short_probability=0.0)
    shards = ShardsConfig(num_shards=3, num_processes=1, pairs=pairs)
    tokenizer = TokenizerConfig(library="tokenizers", kind="bpe", vocab_size=4000)
    url = prepare_data(Recipe(corpus=corpus, tokenizer=tokenizer, shards=shards), tmp_path)
    assert url
    assert verify_manifest(url) == []
    manifest, store = read_manifest(url)
    for length in (128, 512):
        offsets = [open_offsets(store, entry) for entry in manifest.shards("train")]
        divided: list[NDArray[np.uint8]] = []
        for shard, (own, pairs) in enumerate(zip(offsets, read_tables(url, length, "train"), strict=True)):
            assert_whole_segments(offsets, shard, pairs)
            end = np.searchsorted(own.sentences, pairs.first_begin, side="right")
            # A document's last sentence, and one that reaches the target by itself, are chunks alone.
            is_single = np.isin(own.sentences[end], own.documents)
            is_single |= np.diff(own.sentences)[end - 1] >= length - 3
            assert (pairs.next_sentence_label[is_single] == 1).all()
            divided.append(pairs.next_sentence_label[~is_single])
        labels = np.concatenate(divided)
        assert abs(labels.mean() - 0.5) < 0.02 + 2 / len(labels) ** 0.5


def assert_whole_segments(offsets: list[Offsets], shard: int, pairs: Pairs) -> None:
    """No segment leaves its document or holds a separator, and the label tells whether B is of another."""
    first = document_of(offsets[shard], pairs.first_begin, pairs.first_length)
    second = np.empty_like(first)
    for other, there in enumerate(offsets):
        rows = pairs.second_shard == other
        second[rows] = document_of(there, pairs.second_begin[rows], pairs.second_length[rows])
    same = (pairs.second_shard == shard) & (first == second)
    assert (same == (pairs.next_sentence_label == 0)).all()
    follows = pairs.next_sentence_label == 0
    assert (pairs.first_begin + pairs.first_length <= pairs.second_begin)[follows].all()


def document_of(offsets: Offsets, begin: NDArray[np.uint32], length: NDArray[np.uint16]) -> NDArray[np.int64]:
    document = np.searchsorted(offsets.documents, begin, side="right") - 1
    assert (begin.astype(np.int64) + length < offsets.documents[document + 1]).all()
    return document


def read_tables(url: str, length: int, split: str) -> list[Pairs]:
    manifest, store = read_manifest(url)
    pair_set = manifest.pair_set(length)
    folder = Path(store.url) / pair_set.path
    return [
        read_pair_table(
            (folder / table.name).read_bytes(),
            table,
            identity=identity_of(manifest, pair_set, split, shard),
            shard_tokens=[entry.num_tokens for entry in manifest.shards(split)],
            where=table.name,
        )
        for shard, table in enumerate(pair_set.splits[split])
    ]


SENTENCES = ("One word.", "Seven wizards quietly mix.", "What a lazy dog!", "The fox jumps over it again.")
TOKENIZER = TokenizerConfig(library="tokenizers", kind="bpe", byte_level=True, vocab_size=280)
ONE_PROCESS = ShardsConfig(num_shards=2, num_processes=1)


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    documents = [" ".join(SENTENCES[number % 4] for number in range(size)) for size in range(1, 60)]
    (tmp_path / "a.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return CorpusConfig(path=str(tmp_path / "a.txt"), validation_fraction=0.1)


def test_pairs_are_made_with_the_shards_or_added_later(corpus: CorpusConfig, tmp_path: Path) -> None:
    divided = replace(corpus, sentences="rules")
    first, second = (
        replace(ONE_PROCESS, pairs=PairsConfig(lengths=lengths, num_passes=2))
        for lengths in ((32,), (32, 48))
    )
    at_once, later = tmp_path / "at once", tmp_path / "later"
    prepare_data(Recipe(corpus=divided, tokenizer=TOKENIZER, shards=second), at_once)
    for shards in (ONE_PROCESS, first, second):
        prepare_data(Recipe(corpus=divided, tokenizer=TOKENIZER, shards=shards), later)
    assert files_of(later) == files_of(at_once)
    assert verify_manifest(f"{later}/manifest.json") == []


def test_pairs_without_sentences_are_refused_before_any_work(corpus: CorpusConfig, tmp_path: Path) -> None:
    shards = replace(ONE_PROCESS, pairs=PairsConfig(lengths=(32,)))
    with pytest.raises(ConfigError, match=r"corpus\.sentences"):
        prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=shards), tmp_path / "data")
    assert not (tmp_path / "data").exists()
