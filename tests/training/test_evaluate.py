"""Means over several held-out sets, and the ranking of evaluations of several phases."""

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.checkpoint.lineage import CommitKey
from outlast.storage import LocalStore
from outlast.training.evaluate import combine
from outlast.training.evaluations import RunEvaluations, evaluation_name


def test_a_mean_is_weighted_by_what_it_is_a_mean_of() -> None:
    one = {
        "loss": 2.0,
        "accuracy": 0.5,
        "num_predictions": 30,
        "num_examples": 4,
        "perplexity": 7.4,
        "x": 1.0,
    }
    two = {
        "loss": 4.0,
        "accuracy": 0.1,
        "num_predictions": 10,
        "num_examples": 12,
        "perplexity": 54.6,
        "x": 0.0,
    }
    both = combine([one, two])
    assert both["loss"] == 2.5
    assert both["accuracy"] == pytest.approx(0.4)
    assert both["perplexity"] == pytest.approx(12.1825, rel=1e-5)
    assert (both["num_predictions"], both["num_examples"]) == (40, 16)
    assert both["x"] == 0.25
    assert combine([one])["loss"] == 2.0


def test_evaluations_of_a_later_phase_rank_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for step, loss in ((10, 1.0), (20, 2.0), (30, 4.0), (40, 3.0)):
        store.replace(
            evaluation_name(CommitKey(step, 1)), [json.dumps({"step": step, "loss": loss}).encode()]
        )
    arguments: dict[str, Any] = {
        "commit_of": lambda step: CommitKey(step, 1),
        "total_steps": 50,
        "interval_steps": 10,
        "evaluation_step": None,
        "held_out": None,
        "stop": lambda: False,
        "keep": lambda steps: None,
    }
    assert RunEvaluations(store, **arguments).ranking == [10, 20, 40, 30]
    phased = RunEvaluations(store, **arguments, phase_of=lambda step: int(step > 25))
    assert phased.ranking == [40, 30, 10, 20]
