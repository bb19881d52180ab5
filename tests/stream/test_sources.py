"""Several data sets as one stream: the right tokens, exact on resume and over processes, refused where they
do not fit together.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError, ShardError
from outlast.prepare.pairs import add_pairs
from outlast.shards.config import PairsConfig
from outlast.shards.document import MANIFEST_NAME
from outlast.shards.manifest import Manifest, StaticExamples, TokenizerEntry, read_manifest, write_manifest
from outlast.storage import LocalStore
from outlast.stream.config import SourceConfig, StreamConfig
from outlast.stream.loader import TokenStream, open_stream
from support.datasets import SPECIAL_IDS, VOCAB_SIZE, draw_documents, write_counting_data, write_sentence_data

FIRST_TOKENS = {"a": 5, "b": 20_000, "c": 40_000}
LENGTHS = {"a": ((30, 7, 44), (101,), (3, 3)), "b": ((62,), (17, 20)), "c": ((398,), (9, 93), (5,))}
WEIGHTS = {"a": 0.5, "b": 0.2, "c": 0.3}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Three data sets whose tokens count up from different numbers: each tells its place. No example is a
    separator alone.
    """
    found: dict[str, str] = {}
    for name, first in FIRST_TOKENS.items():
        folder = tmp_path_factory.mktemp("data") / name
        write_counting_data(LocalStore(folder), LENGTHS[name], first_token=first)
        found[name] = str(folder / MANIFEST_NAME)
    return found


def make_stream(urls: dict[str, str], **options: Any) -> TokenStream:
    sources = tuple(
        SourceConfig(manifest=url, name=name, weight=WEIGHTS.get(name, 1)) for name, url in urls.items()
    )
    processes = {name: options.pop(name) for name in ("process_index", "process_count") if name in options}
    arguments: dict[str, Any] = {"sequence_length": 12, "global_batch_size": 24, **options}
    return TokenStream(StreamConfig(sources=sources, **arguments), seed=4, **processes)


def test_the_rows_of_a_source_are_those_of_its_own_stream(urls: dict[str, str]) -> None:
    """The first source keeps the seed of the run: what the mixture shows of it is its stream alone."""
    mixed = list(itertools.islice(make_stream(urls).batches_from(0), 20))
    mine = [row for batch in mixed for row in batch["input_ids"] if row.max() < 20_000]
    alone = TokenStream(
        StreamConfig(manifest=urls["a"], sequence_length=12, global_batch_size=len(mine)), seed=4
    )
    assert np.array_equal(np.stack(mine), alone.batch(0)["input_ids"])


def test_an_epoch_of_a_source_holds_its_tokens_once(urls: dict[str, str]) -> None:
    stream = make_stream(urls)
    rows = np.concatenate([stream.batch(step)["input_ids"] for step in range(12)])
    for name, first in FIRST_TOKENS.items():
        num_tokens = sum(map(sum, LENGTHS[name]))
        num_examples = TokenStream(
            StreamConfig(manifest=urls[name], sequence_length=12, global_batch_size=1), seed=0
        ).num_examples
        last = rows.max(axis=1)
        mine = rows[(last >= first) & (last < first + num_tokens)]
        assert len(mine) >= num_examples
        epoch = mine[:num_examples]
        assert sorted(epoch[epoch > 4].tolist()) == list(range(first, first + num_tokens))
    epochs = stream.epochs_of(12)
    assert list(epochs) == ["a", "b", "c"]
    assert epochs["a"] == pytest.approx(12 * 24 * 0.5 / 21, rel=0.02)


@pytest.mark.parametrize("options", [{}, {"num_lanes": 4, "window_examples": 8}])
def test_every_position_restored_with_other_processes_gives_the_same_tail(
    urls: dict[str, str], options: dict[str, Any]
) -> None:
    steps = 12
    whole = [make_stream(urls, **options).batch(step) for step in range(steps)]
    for start in range(steps):
        process_count = (1, 2, 3, 4, 8)[start % 5]
        tails = [
            itertools.islice(
                make_stream(urls, process_index=index, process_count=process_count, **options).batches_from(
                    start
                ),
                steps - start,
            )
            for index in range(process_count)
        ]
        for expected, parts in zip(whole[start:], zip(*tails, strict=True), strict=True):
            for name, array in expected.items():
                assert np.array_equal(array, np.concatenate([part[name] for part in parts]))


def test_open_stream_takes_manifests_with_weights(urls: dict[str, str]) -> None:
    weights = {urls[name]: weight for name, weight in WEIGHTS.items()}
    options: dict[str, Any] = {"global_batch_size": 24, "sequence_length": 12, "seed": 4}
    expected = make_stream(urls)
    batches = open_stream(weights, **options, start_step=3)
    assert np.array_equal(next(batches)["input_ids"], expected.batch(3)["input_ids"])
    with pytest.raises(ConfigError, match=r"weight of .* is -1"):
        open_stream({urls["a"]: -1.0}, **options)


def test_the_identity_names_every_source_and_its_share(urls: dict[str, str]) -> None:
    identity = make_stream(urls).identity
    assert [fields["share"] for fields in identity["sources"].values()] == ["1/2", "1/5", "3/10"]
    fingerprints = [read_manifest(url)[0].fingerprint for url in urls.values()]
    assert [fields["manifest"] for fields in identity["sources"].values()] == fingerprints


def test_pairs_are_mixed_with_their_random_segments(tmp_path: Path) -> None:
    """A second segment may lie in another shard of its own data set, and of no other."""
    urls: dict[str, str] = {}
    for index, name in enumerate("ab"):
        store = LocalStore(tmp_path / name)
        documents = [draw_documents(10 * index + shard, 12) for shard in range(3)]
        write_sentence_data(store, {"train": documents})
        urls[name] = f"{store.url}/{MANIFEST_NAME}"
        add_pairs(urls[name], PairsConfig(lengths=(32,), num_passes=2), num_processes=1)
    options: dict[str, Any] = {"packing": "pairs", "sequence_length": 32}
    mixed = make_stream(urls, **options)
    first, second = mixed.sources
    num_first = sum(table.num_examples for table in first.manifest.pair_set(32).splits["train"])
    for source, offset in ((first, 0), (second, num_first)):
        alone = TokenStream(StreamConfig(manifest=source.url, global_batch_size=24, **options), seed=0)
        indices = np.arange(alone.num_examples)
        expected, found = alone.examples(indices), mixed.examples(indices + offset)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert np.array_equal(found[name], array), name


def test_sources_that_do_not_fit_are_refused_with_both_names(urls: dict[str, str], tmp_path: Path) -> None:
    def changed(name: str, change: Callable[[Manifest], dict[str, Any]]) -> str:
        manifest, _ = read_manifest(urls["b"])
        fields = {key: getattr(manifest, key) for key in ("token_dtype", "tokenizer", "splits", "provenance")}
        write_manifest(LocalStore(tmp_path / name), Manifest(**{**fields, **change(manifest)}))
        return str(tmp_path / name / MANIFEST_NAME)

    other = TokenizerEntry(path="t", fingerprint="g", vocab_size=VOCAB_SIZE, special_ids=SPECIAL_IDS)
    url = changed("tokenizer", lambda _: {"tokenizer": other})
    with pytest.raises(ConfigError, match=r"different tokenizers[\s\S]*tokenizer.path=FIRST") as caught:
        make_stream({"a": urls["a"], "b": url})
    assert f"{urls['a']}: f\n    {url}: g" in str(caught.value)

    with pytest.raises(ConfigError, match="are the same data set"):
        make_stream({"a": urls["a"], "again": urls["a"]})
    with pytest.raises(ConfigError, match="names no data"):
        make_stream({})
    with pytest.raises(ShardError, match=r"no split 'validation'[\s\S]*manifest.json"):
        open_stream({urls["a"]: 1.0}, global_batch_size=2, split="validation")

    arrays = ("input_ids", "attention_mask")
    fixed = StaticExamples(sequence_length=12, num_predictions=0, arrays=arrays)
    url = changed("fixed", lambda manifest: {"examples": fixed, "splits": as_examples(manifest)})
    with pytest.raises(ConfigError, match=r"holds token shards, .* fixed examples[\s\S]*--as tokens"):
        make_stream({"a": urls["a"], "b": url})
    longer = StaticExamples(sequence_length=16, num_predictions=0, arrays=arrays)
    second = changed("longer", lambda manifest: {"examples": longer, "splits": as_examples(manifest)})
    with pytest.raises(ConfigError, match="differ in their shapes"):
        make_stream({"b": url, "c": second})


def as_examples(manifest: Manifest) -> dict[str, Any]:
    return {
        split: tuple(replace(entry, num_examples=1) for entry in entries)
        for split, entries in manifest.splits.items()
    }
