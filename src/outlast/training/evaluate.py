"""Exact evaluation: every held-out example once, with masks that never change.

In: parameters and the batches of the held-out split. Out: loss, perplexity and accuracy over the masked
tokens. Two evaluations of the same parameters are equal to the last bit; rows that fill up the last batch
weigh nothing.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep, Measured


def evaluate(
    evaluation_step: EvaluationStep,
    state: TrainState,
    batches: Iterable[dict[str, NDArray[Any]]],
    *,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Return the means over a split, or None where ``stop`` asked to leave in the middle.

    Returns:
        ``loss`` in nats per predicted token, ``perplexity``, ``accuracy``, ``num_predictions``,
        ``num_examples``.
    """
    sums = np.zeros(3)
    num_examples = 0
    ahead: Measured | None = None
    for batch in batches:
        if stop():
            return None
        num_examples += int(batch["example_weights"].sum())
        measured = evaluation_step(state.params, state.model_state, batch)
        if ahead is not None:  # fetched one batch late, so that the device never waits for the host
            sums += _fetch(ahead)
        ahead = measured
    if ahead is not None:
        sums += _fetch(ahead)
    loss_sum, weight_sum, correct = sums.tolist()
    loss = loss_sum / max(weight_sum, 1.0)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "accuracy": correct / max(weight_sum, 1.0),
        "num_predictions": int(weight_sum),
        "num_examples": num_examples,
    }


def _fetch(measured: Measured) -> NDArray[np.float64]:
    host = jax.device_get((measured.loss_sum, measured.weight_sum, measured.correct))
    return np.array(host, np.float64)
