"""Exact evaluation: every held-out example once, with masks that never change.

In: parameters and the batches of each held-out split. Out: loss and accuracy over the predictions, of masked
tokens their perplexity, and loss and accuracy of the loss's further terms; of a mixture for every source by
itself and for all together, weighted by their predicted tokens. Two evaluations of the same parameters are
equal to the last bit; rows that fill up the last batch weigh nothing. A source's own means are what an
evaluation of that data set alone gives, and the weights of the mixture play no part.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep, Measured

_FIRST = "mlm"
_PER_PREDICTION = {"loss", "mlm_loss", "accuracy"}


class HeldOutSource(NamedTuple):
    """A held-out split to be read once.

    Attributes:
        label: of the source; None where it is the only one.
    """

    label: str | None
    batches: Iterable[dict[str, NDArray[Any]]]


def evaluate(
    evaluation_step: EvaluationStep,
    state: TrainState,
    batches: Iterable[dict[str, NDArray[Any]]],
    *,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Return the means over a split, or None where ``stop`` asked to leave in the middle.

    Returns:
        ``loss`` in nats per prediction, ``accuracy`` (of equal scores the lowest index is the answer),
        ``num_predictions``, ``num_examples``; where tokens are predicted also ``perplexity``. With
        next-sentence prediction ``loss`` is the sum of ``mlm_loss`` and ``next_sentence_loss`` (nats per
        pair), and ``next_sentence_accuracy`` stands beside them; perplexity and accuracy are of the masked
        tokens.
    """
    sums = Sums()
    num_examples = 0
    ahead: Measured | None = None
    for batch in batches:
        if stop():
            return None
        num_examples += int(batch["example_weights"].sum())
        measured = evaluation_step(state.params, state.model_state, batch)
        if ahead is not None:  # fetched one batch late, so that the device never waits for the host
            sums.add(jax.device_get(ahead))
        ahead = measured
    if ahead is not None:
        sums.add(jax.device_get(ahead))
    fields = sums.mean_fields()
    if evaluation_step.predicts_tokens:
        fields["perplexity"] = _perplexity(fields)
    return {**fields, "num_predictions": int(sums.weight_sum), "num_examples": num_examples}


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
    if "perplexity" in combined:
        combined["perplexity"] = _perplexity(combined)
    return combined


def _perplexity(fields: dict[str, float]) -> float:
    """Return the exponential of the loss of the masked tokens."""
    return math.exp(min(fields.get("mlm_loss", fields["loss"]), 700.0))


class Sums:
    """Summed loss, weight and right answers of every term of the loss, and the means they come to: one rule
    for metrics and evaluations. Sums are float64, so the order of many steps does not show.
    """

    def __init__(self) -> None:
        self._terms: dict[str, NDArray[np.float64]] = {}

    def add(self, measured: Any) -> None:
        """Add a ``Measured``; its values may be of the host or of the device."""
        first = (measured.loss_sum, measured.weight_sum, measured.correct)
        for name, term in {_FIRST: first, **measured.further}.items():
            values = np.array([float(value) for value in term])
            self._terms[name] = self._terms.get(name, 0.0) + values

    @property
    def weight_sum(self) -> float:
        """Predicted tokens."""
        return float(self._terms[_FIRST][1]) if self._terms else 0.0

    def mean_fields(self) -> dict[str, float]:
        """Return ``loss``, the sum of the means, and ``accuracy`` over predicted tokens.

        With further terms also ``mlm_loss``, and ``<term>_loss`` and ``<term>_accuracy`` of each.
        """
        terms = self._terms or {_FIRST: np.zeros(3)}
        means = {
            name: (loss / max(weight, 1.0), correct / max(weight, 1.0))
            for name, (loss, weight, correct) in ((name, term.tolist()) for name, term in terms.items())
        }
        total = sum((loss for loss, _ in means.values()), 0.0)
        fields: dict[str, float] = {"loss": total, "accuracy": means[_FIRST][1]}
        if len(means) > 1:
            fields[f"{_FIRST}_loss"] = means[_FIRST][0]
        for name, (loss, accuracy) in means.items():
            if name != _FIRST:
                fields |= {f"{name}_loss": loss, f"{name}_accuracy": accuracy}
        return fields
