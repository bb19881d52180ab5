"""The plan of a run: where each phase begins, in steps and in the data; and what a recipe may say of it."""

from typing import Any

import pytest

from outlast.errors import ConfigError
from outlast.recipe import Recipe, make_recipe
from outlast.training.phase_plan import phase_behind, phase_index, plan_phases

TWO = [
    {"steps": 90, "sequence_length": 32, "global_batch_size": 16},
    {"steps": 10, "sequence_length": 128, "global_batch_size": 6},
]


def make(phases: list[dict[str, Any]], stream: dict[str, Any] | None = None, **training: Any) -> Recipe:
    return make_recipe({"stream": stream or {}, "training": {"phases": phases, **training}}, where="here")


def test_a_phase_begins_where_its_own_run_would_stand_after_as_many_tokens() -> None:
    recipe = make(TWO)
    first, second = plan_phases(recipe.training, recipe.stream)
    assert recipe.training.total_steps == 100
    assert (first.first_step, first.stop_step, first.first_data_step) == (0, 90, 0)
    assert (second.first_step, second.stop_step) == (90, 100)
    assert second.first_data_step == 60  # 90 * 32 * 16 tokens are 60 steps of 128 * 6
    assert second.data_step(93) == 63
    assert second.units_at(100) == 90 * 32 * 16 + 10 * 128 * 6
    assert second.examples_at(91) == 90 * 16 + 6


def test_a_part_of_a_step_is_left_out_not_read_again() -> None:
    recipe = make([{"steps": 1, "global_batch_size": 10}, {"steps": 1, "global_batch_size": 4}])
    assert plan_phases(recipe.training, recipe.stream)[1].first_data_step == 3


def test_phases_of_one_shape_follow_each_other_as_one() -> None:
    recipe = make([{"steps": 7}, {"steps": 5}, {"steps": 9}])
    assert [phase.first_data_step for phase in plan_phases(recipe.training, recipe.stream)] == [0, 7, 12]


def test_a_run_without_phases_is_one() -> None:
    recipe = make_recipe({"training": {"total_steps": 7}}, where="here")
    (phase,) = plan_phases(recipe.training, recipe.stream)
    assert (phase.first_step, phase.stop_step, phase.first_data_step) == (0, 7, 0)
    assert (phase.sequence_length, phase.global_batch_size) == (128, 32)


def test_a_step_at_the_border_was_made_by_the_phase_before_it() -> None:
    recipe = make(TWO)
    plan = plan_phases(recipe.training, recipe.stream)
    assert [phase_index(plan, step) for step in (0, 89, 90, 99, 100)] == [0, 0, 1, 1, 1]
    assert [phase_behind(plan, step) for step in (0, 89, 90, 91, 100)] == [0, 0, 0, 1, 1]


def test_total_steps_may_be_left_out_or_agree() -> None:
    assert make(TWO, total_steps=100).training.total_steps == 100
    with pytest.raises(ConfigError, match=r"phases have 100 steps together, total_steps is 99"):
        make(TWO, total_steps=99)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"training": {"num_microbatches": 4}},
            r"batch of 6 [\s\S]*num_microbatches = 4[\s\S]*training.phases",
        ),
        ({"stream": {"num_lanes": 4}}, r"batch of 6 [\s\S]*num_lanes = 4[\s\S]*global_batch_size to 4 or 8"),
        ({"model": {"max_positions": 64}}, r"sequence length 128 is longer than max_positions 64"),
        (
            {"training": {"phases": [{"step": 5}]}},
            r"training.phases.0.step: unknown key; did you mean 'steps'",
        ),
        ({"training": {"phases": [{}]}}, r"training.phases.0.steps: is required"),
    ],
)
def test_every_phase_must_fit(change: dict[str, Any], message: str) -> None:
    training = {"phases": TWO, **change.pop("training", {})}
    with pytest.raises(ConfigError, match=message):
        make_recipe({"training": training, **change}, where="here")


def test_pairs_are_wanted_for_the_length_of_each_phase() -> None:
    tables = {"stream": {"packing": "pairs"}, "model": {"architecture": "bert"}, "training": {"phases": TWO}}
    assert make_recipe(tables, where="here").shards.pairs.lengths == (32, 128)


def test_budgets_are_of_all_phases_together() -> None:
    sources = [{"manifest": "a/m.json", "tokens": 3000}, {"manifest": "b/m.json", "weight": 1}]
    make(TWO, stream={"sources": sources})
    sources[0]["tokens"] = 10**9
    with pytest.raises(ConfigError, match=r"reads 53,760 tokens, the budgets alone are 1,000,000,000"):
        make(TWO, stream={"sources": sources})
