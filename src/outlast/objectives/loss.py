"""What every objective returns: its loss as sums, which add up exactly over parts of a batch and uneven data.

In: parameters, state, a batch and a key for each row. Out: ``LossOutput``. An objective is a frozen value
with the functions of ``Objective``; the step and the evaluation know no more of it.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from outlast.models.params import Params, ParamTable
from outlast.models.randomness import RowKeys
from outlast.objectives.report import Report


class LossTerm(NamedTuple):
    """One mean of a loss as sums over the batch, float32, so that parts and uneven data add up exactly."""

    loss_sum: Float[Array, ""]
    weight_sum: Float[Array, ""]
    scores: dict[str, Float[Array, ""]]
    """Further sums of the same weight, by the name of their mean: ``accuracy``."""


class LossOutput(NamedTuple):
    """What a batch comes to."""

    terms: dict[str, LossTerm]
    """By name; the loss is the sum of their means."""
    model_state: dict[str, Any]


def mean_loss(terms: Mapping[str, LossTerm], weight_sums: Mapping[str, Array] | None = None) -> Array:
    """Return the sum of the means of all terms; for a part of a batch, what it adds to that sum.

    Args:
        weight_sums: of the whole batch, where the terms are of a part of it.
    """
    means = [
        term.loss_sum / jnp.maximum(term.weight_sum if weight_sums is None else weight_sums[name], 1.0)
        for name, term in terms.items()
    ]
    return reduce(jnp.add, means)


class ModelShape(Protocol):
    """The plain numbers of a model."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them; ``architecture`` is one of them."""
        ...


class Objective(Protocol):
    """A loss on a model."""

    @property
    def model(self) -> ModelShape: ...

    @property
    def report(self) -> Report:
        """Its metrics, and what it counts in."""
        ...

    @property
    def param_table(self) -> ParamTable:
        """The parameters of the model."""
        ...

    @property
    def state_table(self) -> ParamTable:
        """What a step moves beside the parameters: the running statistics of batch norms. Mostly empty."""
        ...

    def loss(
        self,
        params: Params,
        model_state: dict[str, Any],
        batch: Mapping[str, Array],
        *,
        row_keys: RowKeys,
        train: bool,
    ) -> LossOutput:
        """Return the loss of a batch as sums, and the model's state after it."""
        ...

    def weight_sums(self, batch: Mapping[str, Array], *, row_keys: RowKeys) -> dict[str, Array]:
        """Return the summed weight of every term of ``LossOutput.terms``, without the model."""
        ...


def is_right(logits: Float[Array, "... k"], labels: Int[Array, "..."]) -> Float[Array, "..."]:
    """Return 1 where the label has the highest score, else 0; of equal scores the lowest index counts.

    It is ``argmax(logits) == labels`` of numpy and transformers in one reduction, so that a model whose
    scores are all alike answers 0 everywhere and is right as often as 0 is. Where a score is NaN, nothing is.
    """
    labels = labels[..., None]
    of_label = jnp.take_along_axis(logits, labels, axis=-1)
    behind = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) >= labels
    first = (logits < of_label) | ((logits == of_label) & behind)
    return jnp.all(first, axis=-1).astype(jnp.float32)


def row_weights(batch: Mapping[str, Array]) -> Float[Array, "b"]:
    """Return how much each row counts: its ``example_weights``, else 1."""
    if "example_weights" in batch:
        return batch["example_weights"].astype(jnp.float32)
    return jnp.ones(next(iter(batch.values())).shape[0], jnp.float32)
