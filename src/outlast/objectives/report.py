"""What an objective reports of its loss: the names of its metrics, and how each follows from sums. No jax.

In: the sums of each term of a loss over many batches. Out: the fields of a line of metrics and of an
evaluation. Invariant: a field is a function of sums, so batches, parts of a batch and held-out sets add up to
the same number in any grouping.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Unit = Literal["examples", "tokens", "images"]


class Sums:
    """The terms of a loss over many batches. Sums are float64, so the order of many steps does not show."""

    def __init__(self) -> None:
        self._terms: dict[str, dict[str, float]] = {}

    def add(self, terms: Mapping[str, Any]) -> None:
        """Add ``LossOutput.terms``; their values may be of the host or of the device."""
        for name, term in terms.items():
            self._add(name, {"weight": term.weight_sum, "loss": term.loss_sum, **term.scores})

    def add_sums(self, other: "Sums") -> None:
        """Add what another one holds."""
        for name, values in other._terms.items():
            self._add(name, values)

    def _add(self, name: str, values: Mapping[str, Any]) -> None:
        sums = self._terms.setdefault(name, dict.fromkeys(values, 0.0))
        for key, value in values.items():
            sums[key] += float(value)

    def weight(self, term: str) -> float:
        """Return the summed weight of a term."""
        return self._terms[term]["weight"]

    def mean(self, term: str, name: str = "loss") -> float:
        """Return the mean of a term's loss, or of one of its ``scores``."""
        return self._terms[term][name] / max(self.weight(term), 1.0)

    @property
    def loss(self) -> float:
        """The sum of the means of all terms."""
        return sum((self.mean(term) for term in self._terms), 0.0)


class Metric(NamedTuple):
    """A field of metrics and evaluations.

    Attributes:
        of: its value.
        of_evaluations: whether evaluations alone have it.
    """

    name: str
    of: Callable[[Sums], float]
    of_evaluations: bool = False


LOSS = Metric("loss", lambda sums: sums.loss)


def mean_of(term: str, name: str = "loss") -> Callable[[Sums], float]:
    """Return the function of a metric that is the mean of a term."""
    return lambda sums: sums.mean(term, name)


def perplexity_of(term: str) -> Callable[[Sums], float]:
    """Return the function of a metric that is the exponential of a term's mean loss."""
    return lambda sums: math.exp(min(sums.mean(term), 700.0))


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an objective reports.

    Attributes:
        unit: what its examples are counted in, for rates and progress.
        predictions: the term whose weights count the predictions.
        best: the metric that says which checkpoint is the best, where the recipe does not.
    """

    unit: Unit
    predictions: str
    metrics: tuple[Metric, ...]
    best: str

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics of its evaluations: what ``checkpoint.best_metric`` may name."""
        return tuple(metric.name for metric in self.metrics)

    def of_steps(self, sums: Sums) -> dict[str, float]:
        """Return the metrics of training steps."""
        return {metric.name: metric.of(sums) for metric in self.metrics if not metric.of_evaluations}

    def of_evaluation(self, sums: Sums, num_examples: int) -> dict[str, float]:
        """Return the fields of an evaluation over so many examples."""
        fields = {metric.name: metric.of(sums) for metric in self.metrics}
        return {
            **fields,
            "num_predictions": int(sums.weight(self.predictions)),
            "num_examples": num_examples,
        }
