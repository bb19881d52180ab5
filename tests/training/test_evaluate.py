"""Means over several held-out sets, and what an evaluation has of each objective."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from outlast.objectives.config import CLASSES, MASKED, NEXT_SENTENCE, ClassifyConfig, MlmConfig
from outlast.objectives.loss import LossTerm
from outlast.objectives.report import Report
from outlast.training.evaluate import HeldOutSource, evaluate_sources
from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep

STATE = TrainState(jnp.int32(0), {}, {}, ())


def term(loss: float, weight: float, correct: float) -> LossTerm:
    return LossTerm(jnp.float32(loss), jnp.float32(weight), {"accuracy": jnp.float32(correct)})


def evaluate(report: Report, *sets: tuple[str | None, dict[str, LossTerm], int]) -> dict[str, Any]:
    """Evaluate sets of one batch each, of which the terms and the number of examples are given."""
    step = EvaluationStep(lambda params, model_state, batch: batch["terms"], report)
    batches: list[Any] = [{"terms": terms, "example_weights": np.ones(number)} for _, terms, number in sets]
    sources = [HeldOutSource(label, [batch]) for (label, *_), batch in zip(sets, batches, strict=True)]
    found = evaluate_sources(step, STATE, sources)
    assert found is not None
    return found


def test_a_mean_is_weighted_by_what_it_is_a_mean_of() -> None:
    one = {MASKED: term(60, 30, 15), NEXT_SENTENCE: term(4, 4, 4)}
    two = {MASKED: term(40, 10, 1), NEXT_SENTENCE: term(0, 12, 0)}
    report = MlmConfig(next_sentence=True).report
    both = evaluate(report, ("one", one, 4), ("two", two, 12))
    assert (both["mlm_loss"], both["next_sentence_loss"], both["loss"]) == (2.5, 0.25, 2.75)
    assert (both["accuracy"], both["next_sentence_accuracy"]) == (0.4, 0.25)
    assert both["perplexity"] == pytest.approx(math.exp(2.5), rel=1e-12)
    assert (both["num_predictions"], both["num_examples"]) == (40, 16)
    assert both["sources"] == {
        "one": evaluate(report, (None, one, 4)),
        "two": evaluate(report, (None, two, 12)),
    }


@pytest.mark.parametrize(
    ("report", "terms", "more"),
    [
        (MlmConfig().report, (MASKED,), {"perplexity"}),
        (
            MlmConfig(next_sentence=True).report,
            (MASKED, NEXT_SENTENCE),
            {"perplexity", "mlm_loss", "next_sentence_loss", "next_sentence_accuracy"},
        ),
        (ClassifyConfig().report, (CLASSES,), set[str]()),
    ],
    ids=["masked", "pairs", "images"],
)
def test_an_evaluation_has_the_metrics_that_its_objective_names(
    report: Report, terms: tuple[str, ...], more: set[str]
) -> None:
    found = evaluate(report, (None, {name: term(1, 1, 1) for name in terms}, 1))
    assert {name for name in found if not name.startswith("num_")} == {"loss", "accuracy", *more}
    assert set(report.names) == {"loss", "accuracy", *more}
