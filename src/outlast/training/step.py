"""One update: pure functions from state and batch to state and measurements.

The gradient is that of the mean loss: of the loss summed over the whole batch, divided by the summed weight;
where the objective has several means, of their sum. Cutting the batch into microbatches and dividing it among
devices change rounding and nothing else. Masks and dropout are keyed by (seed, step, global row).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from outlast.models.params import Params
from outlast.models.randomness import row_keys
from outlast.models.slices import whole_but_layers
from outlast.objectives.loss import LossOutput, LossTerm, Objective, mean_loss
from outlast.objectives.report import Report
from outlast.training.mesh import ONE_DEVICE, ROWS, WHOLE, Layout
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


class _At(NamedTuple):
    """What the loss of a batch depends on beside the parameters."""

    step: Int[Array, ""]
    model_state: dict[str, Any]


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
    layout: Layout = ONE_DEVICE,
) -> TrainStep:
    """Return the compiled update. The state is donated: the caller's copy is gone after the call.

    Args:
        num_microbatches: must divide the rows of a device; the parts are computed one after the other.
        layout: where the state and the batch lie. Each device computes its own rows.
    """
    table = objective.param_table

    def loss(
        params: Params, at: _At, rows: Array, batch: Batch, weight_sums: dict[str, Array] | None
    ) -> tuple[Array, LossOutput]:
        """Return the mean loss of a batch. With the summed weights of a larger one, of which it is a part:
        what it adds to the mean loss of that one.
        """
        keys = row_keys(seed, "train", at.step, rows)
        params = whole_but_layers(params)
        output = objective.loss(params, at.model_state, batch, row_keys=keys, train=True)
        return mean_loss(output.terms, weight_sums), output

    gradient = jax.grad(loss, has_aux=True)

    def accumulate(params: Params, at: _At, rows: Array, batch: Batch) -> tuple[Params, LossOutput]:
        """Return the gradient of the mean loss of the batch, and sums over it. Each device comes with rows of
        its own, and all leave with the same.
        """
        params = layout.slices(params, table)
        if num_microbatches == layout.num_devices == 1:
            return gradient(params, at, rows, batch, None)
        # Each term has its own weight, so losses of parts are divided before they are added up, not their
        # gradients afterwards. The weights follow from the masks alone, which cost next to nothing.
        keys = row_keys(seed, "train", at.step, rows)
        weight_sums = layout.total(objective.weight_sums(batch, row_keys=keys))

        def part(rows: Array, batch: Batch) -> tuple[Params, LossOutput]:
            return gradient(params, at, rows, batch, weight_sums)

        total, output = _sum_of_parts(part, num_microbatches, rows, batch)
        return layout.total_gradient(total), output._replace(terms=layout.total(output.terms))

    specs = layout.param_specs(table)
    gradient_of = layout.on_each_device(accumulate, (specs, WHOLE, ROWS, ROWS), (specs, WHOLE))

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Measured]:
        rows = jnp.arange(jax.tree.leaves(batch)[0].shape[0], dtype=jnp.int32)
        at = _At(state.step, state.model_state)
        gradients, output = gradient_of(state.params, at, rows, dict(batch))
        updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        measured = Measured(output.terms, optax.tree.norm(gradients), schedule(state.step))
        after = TrainState(state.step + 1, params, output.model_state, opt_state)
        return layout.kept(after, table), measured

    return jax.jit(train_step, donate_argnums=0)


def _sum_of_parts(part: Callable[[Array, Batch], Any], num_parts: int, rows: Array, batch: Batch) -> Any:
    """Return the sum of what a function gives for each microbatch, one after the other.

    A microbatch is every M-th row: the same rows however many devices share the batch.
    """
    if num_parts == 1:
        return part(rows, batch)

    def strided(x: Array) -> Array:
        return x.reshape(-1, num_parts, *x.shape[1:]).swapaxes(0, 1)

    def add(total: Any, own: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, part(*own)), None

    parts = jax.tree.map(strided, (rows, dict(batch)))
    first = jax.tree.map(lambda x: x[0], parts)
    shapes = jax.eval_shape(lambda: part(*first))
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    return jax.lax.scan(add, zeros, parts)[0]


def make_evaluation_step(objective: Objective, *, seed: int, layout: Layout = ONE_DEVICE) -> EvaluationStep:
    """Return the compiled evaluation of a batch: no dropout, masks keyed by (seed, example index)."""
    table = objective.param_table

    def sums(params: Params, model_state: dict[str, Any], batch: Batch) -> dict[str, LossTerm]:
        keys = row_keys(seed, "evaluate", 0, batch["example_index"])
        params = whole_but_layers(layout.slices(params, table))
        output = objective.loss(params, model_state, batch, row_keys=keys, train=False)
        return layout.total(output.terms)

    specs = layout.param_specs(table)
    evaluation_step = jax.jit(layout.on_each_device(sums, (specs, WHOLE, ROWS), WHOLE))
    return EvaluationStep(
        lambda params, model_state, batch: evaluation_step(params, model_state, layout.placed(batch)),
        objective.report,
    )
