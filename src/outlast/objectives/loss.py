"""What every objective gives: sums of its loss, so that parts of a batch and uneven data add up exactly.

In: parameters, state, a batch and a key for each row. Out: ``LossOutput``. An objective is a frozen value
with the functions of ``Objective``; the step and the evaluation know no more of it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from outlast.models.params import Params, ParamTable
from outlast.models.randomness import RowKeys


class LossTerm(NamedTuple):
    """One mean of a loss of several, as sums over the batch, float32."""

    loss_sum: Float[Array, ""]
    weight_sum: Float[Array, ""]
    correct: Float[Array, ""]


class LossOutput(NamedTuple):
    """Sums over the batch, so that microbatches and uneven data add up exactly."""

    loss_sum: Float[Array, ""]
    weight_sum: Float[Array, ""]
    metrics: dict[str, Float[Array, ""]]
    """Further sums, to be divided by ``weight_sum``: ``correct``."""
    model_state: dict[str, Any]
    further: dict[str, LossTerm]
    """Further means, by name: the loss is the sum of them all."""

    @property
    def sums(self) -> tuple[tuple[Array, Array], ...]:
        """The summed loss and the summed weight of every mean."""
        terms = self.further.values()
        return (self.loss_sum, self.weight_sum), *((term.loss_sum, term.weight_sum) for term in terms)


class Objective(Protocol):
    """A loss on a model."""

    @property
    def predicts_tokens(self) -> bool:
        """Whether the first mean is over tokens of text, whose exponential is a perplexity."""
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

    def weight_sums(self, batch: Mapping[str, Array], *, row_keys: RowKeys) -> tuple[Array, ...]:
        """Return the summed weight of every mean, in the order of ``LossOutput.sums``, without the model."""
        ...


def is_right(logits: Float[Array, "... k"], labels: Int[Array, "..."]) -> Float[Array, "..."]:
    """Return 1 where the label scores highest, else 0; of equal scores the lowest index is the answer.

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
