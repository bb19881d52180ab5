"""Evaluation of a mixture: every source by itself, then all together, weighted by their predicted tokens.

In: the held-out batches of each source. Out: the means of ``evaluate``; of several sources those of each as
well. Invariant: a source's own means are what an evaluation of that data set alone gives, and the weights of
the mixture play no part.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from outlast.training.evaluate import evaluate
from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep

_PER_PREDICTION = {"loss", "mlm_loss", "accuracy"}


class HeldOutSource(NamedTuple):
    """A held-out split to be read once.

    Attributes:
        label: of the source; None where it is the only one.
    """

    label: str | None
    batches: Iterable[dict[str, NDArray[Any]]]


def evaluate_sources(
    evaluation_step: EvaluationStep,
    state: TrainState,
    sources: Sequence[HeldOutSource],
    *,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Return the means over the sources, or None where ``stop`` asked to leave in the middle.

    Returns:
        what ``evaluate`` returns; of a mixture over all sources, and in ``sources`` by label for each.
    """
    results: dict[str, dict[str, float]] = {}
    for label, batches in sources:
        result = evaluate(evaluation_step, state, batches, stop=stop)
        if result is None or label is None:
            return result
        results[label] = result
    return {**combine(list(results.values())), "sources": results}


def combine(results: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the means over several sets from those over each.

    Counts (``num_...``) add up; loss and accuracy of masked tokens are weighted by predictions, all else by
    examples. A loss of several terms is their sum.
    """
    combined: dict[str, float] = {}
    for name in results[0]:
        if name.startswith("num_"):
            combined[name] = sum(result[name] for result in results)
            continue
        unit = "num_predictions" if name in _PER_PREDICTION else "num_examples"
        weight = max(sum(result[unit] for result in results), 1)
        combined[name] = sum(result[name] * result[unit] for result in results) / weight
    terms = [value for name, value in combined.items() if name.endswith("_loss")]
    if terms:
        combined["loss"] = sum(terms)
    combined["perplexity"] = math.exp(min(combined.get("mlm_loss", combined["loss"]), 700.0))
    return combined
