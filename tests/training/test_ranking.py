"""The one rule of what the best checkpoint is: the direction of each metric, and what does not compare."""

from typing import Any

import pytest

from outlast.stream.config import StreamConfig
from outlast.training.config import PhaseConfig, TrainingConfig
from outlast.training.phase_plan import plan_phases
from outlast.training.ranking import Ranking

EVALUATIONS = {
    10: {"loss": 1.0, "accuracy": 0.2},
    20: {"loss": 2.0, "accuracy": 0.9},
    30: {"loss": 4.0, "accuracy": 0.5},
    40: {"loss": 3.0, "accuracy": 0.5},
}


def test_a_loss_ranks_from_the_lowest_an_accuracy_from_the_highest() -> None:
    assert Ranking().best_first(EVALUATIONS) == [10, 20, 40, 30]
    assert Ranking(metric="accuracy").best_first(EVALUATIONS) == [20, 30, 40, 10]


def test_evaluations_of_another_length_rank_behind_the_newest() -> None:
    phases = tuple(PhaseConfig(steps=25, sequence_length=length) for length in (32, 64))
    plan = plan_phases(TrainingConfig(phases=phases), StreamConfig())
    assert Ranking(plan=plan).best_first(EVALUATIONS) == [40, 30, 10, 20]
    same = tuple(PhaseConfig(steps=25, global_batch_size=batch) for batch in (4, 8))
    plan = plan_phases(TrainingConfig(phases=same), StreamConfig())
    assert Ranking(plan=plan).best_first(EVALUATIONS) == [10, 20, 40, 30]


def test_evaluations_of_another_number_of_examples_rank_behind_the_newest() -> None:
    sizes = {10: 64, 20: 64, 30: 64, 40: 128}
    sized = {step: {**fields, "num_examples": sizes[step]} for step, fields in EVALUATIONS.items()}
    assert Ranking().best_first(sized) == [40, 10, 20, 30]


@pytest.mark.parametrize("wrong", [None, "high", float("nan")])
def test_an_evaluation_without_the_metric_does_not_rank(wrong: Any) -> None:
    assert Ranking(metric="accuracy").best_first({**EVALUATIONS, 20: {"loss": 1.0, "accuracy": wrong}}) == [
        30,
        40,
        10,
    ]
