"""Exact evaluation: every held-out example once, with masks that never change.

In: parameters and the batches of the held-out split. Out: loss, perplexity and accuracy over the masked
tokens, and loss and accuracy of the loss's further terms. Two evaluations of the same parameters are equal to
the last bit; rows that fill up the last batch weigh nothing.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
from numpy.typing import NDArray

from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep, Measured
from outlast.training.sums import Sums


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
        ``num_examples``. With next-sentence prediction ``loss`` is the sum of ``mlm_loss`` and
        ``next_sentence_loss`` (nats per pair), and ``next_sentence_accuracy`` stands beside them;
        perplexity and accuracy are of the masked tokens.
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
    return {
        **fields,
        "perplexity": math.exp(min(fields.get("mlm_loss", fields["loss"]), 700.0)),
        "num_predictions": int(sums.weight_sum),
        "num_examples": num_examples,
    }
