"""Classification of images: the cross-entropy of one label for each.

In: pixels as they are stored (uint8) and labels. Out: the sum of the cross-entropy over the rows, and their
weight. Pixels are normalised here, on the device, so a batch travels as bytes.

Letters: b row, h and w pixel, c channel, k class.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, UInt8

from outlast.models import resnet
from outlast.models.params import Params, ParamTable
from outlast.models.randomness import RowKeys
from outlast.models.resnet_config import ResNetConfig
from outlast.objectives.config import CLASSES, ClassifyConfig
from outlast.objectives.loss import LossOutput, LossTerm, is_right, row_weights
from outlast.objectives.report import Report


@dataclass(frozen=True, kw_only=True)
class ClassifyObjective:
    """Classification with one ResNet."""

    model: ResNetConfig
    config: ClassifyConfig
    compute_dtype: DTypeLike
    remat: bool

    @property
    def report(self) -> Report:
        return self.config.report

    @property
    def param_table(self) -> ParamTable:
        return resnet.param_table(self.model)

    @property
    def state_table(self) -> ParamTable:
        return resnet.state_table(self.model)

    def loss(
        self,
        params: Params,
        model_state: resnet.ModelState,
        batch: Mapping[str, Array],
        *,
        row_keys: RowKeys,
        train: bool,
    ) -> LossOutput:
        """Return the summed cross-entropy of the rows, in nats, float32, and the running statistics.

        A row is right where ``is_right`` says so. Smoothed labels (Szegedy et al.,
        2016) count in training alone.

        Args:
            batch: ``images`` uint8 (b, h, w, c); ``labels`` int32 (b,); ``example_weights`` float (b,)
                optional, multiplies each row's loss. Rows of weight 0 enter the statistics of a batch norm
                in training all the same; evaluation does not take any.
            row_keys: not used: nothing here is random.
            train: norms use and move the statistics of the batch.
        """
        del row_keys
        images = self.normalise(batch["images"])
        logits, after = resnet.classify(
            params,
            model_state,
            images,
            config=self.model,
            train=train,
            compute_dtype=self.compute_dtype,
            remat=self.remat,
        )
        weights = row_weights(batch)
        with jax.named_scope("loss"):
            smoothing = self.config.label_smoothing if train else 0.0
            losses, right = (
                _cross_entropy(logits, batch["labels"], smoothing),
                is_right(logits, batch["labels"]),
            )
        loss_sum, correct = jnp.sum(losses * weights), jnp.sum(right * weights)
        term = LossTerm(loss_sum, jnp.sum(weights), {"accuracy": correct})
        return LossOutput({CLASSES: term}, after)

    def weight_sums(self, batch: Mapping[str, Array], *, row_keys: RowKeys) -> dict[str, Array]:
        """Return the summed weight of the rows."""
        del row_keys
        return {CLASSES: jnp.sum(row_weights(batch))}

    def normalise(self, images: UInt8[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        """Return pixels in units of the standard deviation about the mean of their channel."""
        mean = jnp.asarray(self.config.pixel_mean, jnp.float32) * 255
        deviation = jnp.asarray(self.config.pixel_deviation, jnp.float32) * 255
        return (images.astype(jnp.float32) - mean[None, None, None, :]) / deviation[None, None, None, :]


def _cross_entropy(logits: Float[Array, "b k"], labels: Array, smoothing: float) -> Float[Array, "b"]:
    """Return each row's loss.

    With smoothing, a share of each label is spread evenly over all classes.
    """
    of_label = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    total = jax.nn.logsumexp(logits, axis=1)
    target = (1 - smoothing) * of_label + smoothing * jnp.mean(logits, axis=1)
    return total - target
