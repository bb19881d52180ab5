"""Exact evaluation: every held-out example once, with masks that never change.

In: parameters and the batches of each held-out split. Out: what the objective reports; of a mixture, for
every source by itself and for all together, each mean over all that it is taken of. Two evaluations of the
same parameters are equal to the last bit; rows that fill up the last batch weigh nothing. A source's own
means are what an evaluation of that data set alone gives, and the weights of the mixture play no part.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from numpy.typing import NDArray

from outlast.objectives.report import Sums
from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep


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
    """Return what is reported of the sources, or None where ``stop`` asked to leave in the middle.

    Returns:
        the metrics of ``Report`` (``loss`` in nats per prediction; of equal scores the lowest index is the
        answer), ``num_predictions``, ``num_examples``; of a mixture over all sources, and in ``sources`` by
        label for each.
    """
    report = evaluation_step.report
    everything, num_examples = Sums(), 0
    results: dict[str, dict[str, float]] = {}
    for label, batches in sources:
        found = _sum_up(evaluation_step, state, batches, stop)
        if found is None:
            return None
        everything.add_sums(found[0])
        num_examples += found[1]
        if label is not None:
            results[label] = report.of_evaluation(*found)
    fields: dict[str, Any] = report.of_evaluation(everything, num_examples)
    return {**fields, "sources": results} if results else fields


def _sum_up(
    evaluation_step: EvaluationStep,
    state: TrainState,
    batches: Iterable[dict[str, NDArray[Any]]],
    stop: Callable[[], bool],
) -> tuple[Sums, int] | None:
    """Return the sums over a split and its number of examples, or None where ``stop`` asked to leave."""
    sums, num_examples = Sums(), 0
    ahead: Any = None
    for batch in batches:
        if stop():
            return None
        num_examples += int(batch["example_weights"].sum())
        terms = evaluation_step.terms_of(state.params, state.model_state, batch)
        if ahead is not None:  # fetched one batch late, so that the device never waits for the host
            sums.add(jax.device_get(ahead))
        ahead = terms
    if ahead is not None:
        sums.add(jax.device_get(ahead))
    return sums, num_examples
