"""The data of a run in phases: each batch is that of a run of its own shape, wherever a life begins."""

import itertools
from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.recipe import Recipe, make_recipe
from outlast.run.assemble import assemble
from outlast.run.kind import Parts
from outlast.shards.document import MANIFEST_NAME
from outlast.storage import LocalStore
from outlast.stream.loader import TokenStream
from outlast.training.identity import check_identity
from support.datasets import write_counting_data

PHASES = [
    {"steps": 5, "sequence_length": 12, "global_batch_size": 6},
    {"steps": 4, "sequence_length": 32},
    {"steps": 3, "sequence_length": 32, "global_batch_size": 2},
]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    found: list[str] = []
    for name, first in (("a", 5), ("b", 30_000)):
        folder = tmp_path_factory.mktemp("data") / name
        write_counting_data(LocalStore(folder), ((300, 70, 44), (501,), (23,)), first_token=first)
        found.append(str(folder / MANIFEST_NAME))
    return found


def make(urls: list[str], phases: list[dict[str, Any]] | None = None, **tables: dict[str, Any]) -> Recipe:
    stream: dict[str, Any] = {"sequence_length": 12, "global_batch_size": 4}
    if len(urls) == 1:
        stream["manifest"] = urls[0]
    else:
        stream["sources"] = [{"manifest": url, "weight": 2 + i} for i, url in enumerate(urls)]
    stream |= tables.pop("stream", {})
    training = {"phases": PHASES if phases is None else phases, **tables.pop("training", {})}
    model = {"preset": "tiny", "max_positions": 64}
    return make_recipe({"stream": stream, "training": training, "model": model, **tables}, where="here")


def whole_run(parts: Parts[Any, Any]) -> list[dict[str, Any]]:
    return list(itertools.islice(parts.phases.batches_from(0), parts.recipe.training.total_steps))


@pytest.mark.parametrize("num_sources", [1, 2])
def test_each_batch_is_that_of_a_run_of_its_shape(urls: list[str], num_sources: int) -> None:
    recipe = make(urls[:num_sources])
    parts = assemble(recipe)
    found = whole_run(parts)
    for phase in parts.phases.plan:
        alone = TokenStream(phase.stream(recipe.stream), seed=0)
        for step in range(phase.first_step, phase.stop_step):
            expected = alone.batch(phase.data_step(step))
            assert all(np.array_equal(found[step][name], expected[name]) for name in expected)
    assert [batch["input_ids"].shape for batch in found] == [(6, 12)] * 5 + [(4, 32)] * 4 + [(2, 32)] * 3


def test_every_step_restored_gives_the_same_tail(urls: list[str]) -> None:
    parts = assemble(make(urls))
    whole = whole_run(parts)
    for start in range(len(whole) + 1):
        tail = list(itertools.islice(parts.phases.batches_from(start), len(whole) - start))
        assert len(tail) == len(whole) - start
        for expected, found in zip(whole[start:], tail, strict=True):
            assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_a_run_cut_into_phases_of_one_shape_is_the_same_run(urls: list[str]) -> None:
    cut = whole_run(assemble(make(urls, [{"steps": 4}, {"steps": 5}, {"steps": 3}])))
    plain = whole_run(assemble(make(urls, [], training={"total_steps": 12})))
    for expected, found in zip(plain, cut, strict=True):
        assert np.array_equal(expected["input_ids"], found["input_ids"])


def test_a_run_measured_in_epochs_is_that_of_its_steps(urls: list[str]) -> None:
    in_epochs = assemble(make(urls[:1], [], training={"epochs": 1.5}, optimizer={"warmup_epochs": 0.5}))
    batches = in_epochs.stream.num_examples / in_epochs.recipe.stream.global_batch_size
    total, warmup = round(1.5 * batches), round(0.5 * batches)
    assert in_epochs.recipe.training.total_steps == total == in_epochs.phases.plan[-1].stop_step
    steps = {"training": {"total_steps": total}, "optimizer": {"warmup_steps": warmup}}
    assert in_epochs.identity == assemble(make(urls[:1], [], **steps)).identity


def test_another_batch_goes_on_in_the_same_epoch(urls: list[str]) -> None:
    """With one length, phases of 6 and then 3 examples read each example once: an epoch passes the border."""
    phases = [{"steps": 9, "global_batch_size": 6}, {"steps": 14, "global_batch_size": 3}]
    parts = assemble(make(urls[:1], phases))
    num_examples = parts.stream.num_examples
    assert 9 * 6 < num_examples <= 96
    rows = np.concatenate([batch["input_ids"] for batch in whole_run(parts)])[:num_examples]
    assert len(np.unique(rows, axis=0)) == num_examples


def test_tokens_and_epochs_are_counted_as_they_were_read(urls: list[str]) -> None:
    parts = assemble(make(urls))
    places = [parts.phases.place_of(step) for step in range(13)]
    assert [place.units for place in places[:7]] == [0, 72, 144, 216, 288, 360, 360 + 128]
    assert places[12].units == 5 * 72 + 4 * 128 + 3 * 64
    assert places[12].examples == 30 + 16 + 6
    epochs = [place.epoch for place in places]
    assert epochs == sorted(epochs)
    assert places[12].source_epochs.keys() == {"a", "b"}


def identity(urls: list[str], phases: list[dict[str, Any]] | None = None, **tables: Any) -> dict[str, Any]:
    return assemble(make(urls, phases, optimizer={"schedule": "constant"}, **tables)).identity


def check(checkpoint: dict[str, Any], run: dict[str, Any]) -> None:
    check_identity(checkpoint, run, step=7, run_dir="run")


def test_changed_phases_are_refused_with_both_values(urls: list[str]) -> None:
    was = identity(urls)
    check(was, identity(urls))
    for index, field, value, told in (
        (0, "steps", 6, "phases.1.steps: the checkpoint has 5, the recipe 6"),
        (2, "steps", 9, "phases.3.steps: the checkpoint has 3, the recipe 9"),
        (1, "sequence_length", 24, "phases.2.sequence_length: the checkpoint has 32, the recipe 24"),
        (2, "global_batch_size", 8, "phases.3.global_batch_size: the checkpoint has 2, the recipe 8"),
    ):
        phases = [{**phase, field: value} if i == index else phase for i, phase in enumerate(PHASES)]
        with pytest.raises(ConfigError, match=told):
            check(was, identity(urls, phases))
    with pytest.raises(ConfigError, match=r"phases.3: the checkpoint has .*, the recipe None"):
        check(was, identity(urls, PHASES[:2]))
    with pytest.raises(ConfigError, match=r"phases: the checkpoint has .*, the recipe None"):
        check(was, identity(urls, [], training={"total_steps": 12}))


def test_a_changed_weight_is_refused_with_both_values(urls: list[str]) -> None:
    sources = [{"manifest": url, "weight": weight} for url, weight in zip(urls, (1, 3), strict=True)]
    for phases in (None, []):
        total = {} if phases is None else {"training": {"total_steps": 12}}
        was, now = (identity(urls, phases, stream=stream, **total) for stream in ({}, {"sources": sources}))
        with pytest.raises(
            ConfigError, match=r"data.sources.0.share: the checkpoint has '2/5', the recipe '1/4'"
        ):
            check(was, now)


def test_a_run_gets_longer_by_another_phase(urls: list[str]) -> None:
    was, longer = identity(urls), identity(urls, [*PHASES, {"steps": 5, "sequence_length": 48}])
    check(was, longer)
    with pytest.raises(ConfigError, match=r"phases.4: the checkpoint has .*, the recipe None"):
        check(longer, was)
    linear = [assemble(make(urls, phases)).identity for phases in (PHASES, [*PHASES, {"steps": 5}])]
    with pytest.raises(ConfigError, match="'linear' schedule has other rates"):
        check(*linear)


def test_a_run_without_phases_has_the_identity_it_always_had(urls: list[str]) -> None:
    found = identity(urls[:1], [], training={"total_steps": 12})
    assert found.keys() == {"seed", "data", "model", "objective", "optimizer", "total_steps"}
    assert found["data"].keys() == {
        *("manifest", "split", "sequence_length", "special_tokens", "global_batch_size"),
        *("num_lanes", "window_examples", "order_version", "tokenizer"),
    }
