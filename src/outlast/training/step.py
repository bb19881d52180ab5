"""One update: pure functions from state and batch to state and measurements.

The gradient is that of the mean loss: of the loss summed over the whole batch, divided by the summed weight;
where the objective has several means, of their sum. Cutting the batch into microbatches changes rounding and
nothing else. Masks and dropout are keyed by (seed, step, global row).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from outlast.models.params import Params
from outlast.models.randomness import row_keys
from outlast.objectives.loss import LossOutput, LossTerm, Objective, mean_loss
from outlast.objectives.report import Report
from outlast.training.optimizer import Schedule
from outlast.training.state import TrainState

Batch = Mapping[str, Any]
"""Arrays of numpy or jax."""


class Measured(NamedTuple):
    """What a step measured: float32 scalars on the device."""

    terms: dict[str, LossTerm]
    """Of the loss, by name."""
    grad_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Measured]]


class EvaluationStep(NamedTuple):
    """The evaluation of a batch, and what is reported of it."""

    terms_of: Callable[[Params, dict[str, Any], Batch], dict[str, LossTerm]]
    """Compiled: the terms of the loss by parameters, model state and batch."""
    report: Report


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    seed: int,
    num_microbatches: int,
) -> TrainStep:
    """Return the compiled update. The state is donated: the caller's copy is gone after the call.

    Args:
        num_microbatches: must divide the batch; the parts are computed one after the other.
    """

    def loss(
        params: Params, state: TrainState, rows: Array, batch: Batch, weight_sums: dict[str, Array] | None
    ) -> tuple[Array, LossOutput]:
        """Return the mean loss of a batch. With the summed weights of a larger one, of which it is a part:
        what it adds to the mean loss of that one.
        """
        keys = row_keys(seed, "train", state.step, rows)
        output = objective.loss(params, state.model_state, batch, row_keys=keys, train=True)
        return mean_loss(output.terms, weight_sums), output

    gradient = jax.grad(loss, has_aux=True)

    def strided(x: Array) -> Array:
        """Return microbatches of every M-th row. Where the rows are divided over devices, each of them then
        lies on all devices; one of neighbouring rows would lie on a few, and be gathered by the others.
        """
        return x.reshape(-1, num_microbatches, *x.shape[1:]).swapaxes(0, 1)

    def accumulate(state: TrainState, batch: Batch) -> tuple[Params, LossOutput]:
        """Return the gradient of the mean loss, and sums over the batch."""
        rows = jnp.arange(jax.tree.leaves(batch)[0].shape[0], dtype=jnp.int32)
        if num_microbatches == 1:
            return gradient(state.params, state, rows, batch, None)
        # Each term has its own weight, so losses of microbatches are divided before they are added up, not
        # their gradients afterwards. The weights follow from the masks alone, which cost next to nothing.
        keys = row_keys(seed, "train", state.step, rows)
        weight_sums = objective.weight_sums(batch, row_keys=keys)

        def microbatch(total: Any, part: Any) -> tuple[Any, None]:
            added = gradient(state.params, state, *part, weight_sums)
            return jax.tree.map(jnp.add, total, added), None

        parts = jax.tree.map(strided, (rows, dict(batch)))
        first = jax.tree.map(lambda x: x[0], parts)
        shapes = jax.eval_shape(lambda: gradient(state.params, state, *first, weight_sums))
        zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
        (total, output), _ = jax.lax.scan(microbatch, zeros, parts)
        return total, output

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Measured]:
        gradients, output = accumulate(state, batch)
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        measured = Measured(output.terms, optax.tree.norm(gradients), schedule(state.step))
        return TrainState(state.step + 1, params, output.model_state, opt_state), measured

    return jax.jit(train_step, donate_argnums=0)


def make_evaluation_step(objective: Objective, *, seed: int) -> EvaluationStep:
    """Return the compiled evaluation of a batch: no dropout, masks keyed by (seed, example index)."""

    def evaluation_step(params: Params, model_state: dict[str, Any], batch: Batch) -> dict[str, LossTerm]:
        keys = row_keys(seed, "evaluate", 0, batch["example_index"])
        return objective.loss(params, model_state, batch, row_keys=keys, train=False).terms

    return EvaluationStep(jax.jit(evaluation_step), objective.report)
