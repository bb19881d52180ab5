"""Next-sentence prediction (Devlin et al., 2019, section 3.1): a second term of the loss, on pairs.

In: hidden states, and the labels of the batch (0: B follows A, 1: it comes from elsewhere; the tables of
pairs, the original's records and transformers agree). Out: sums over the rows. The mean is over rows, that of
masked language modelling over predicted tokens; the loss of the original ``run_pretraining.py`` is the sum of
the two means.

Letters: b row, l position, d hidden.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from outlast.errors import ConfigError
from outlast.models.next_sentence import predict_next_sentence
from outlast.models.params import Params
from outlast.objectives.loss import LossTerm, is_right, row_weights

LABEL = "next_sentence_label"


def next_sentence_term(params: Params, hidden: Float[Array, "b l d"], batch: Mapping[str, Array]) -> LossTerm:
    """Return the summed cross-entropy of the rows, in nats, their weight, and how many are right.

    Args:
        params: with pooler and next-sentence head.
        hidden: of the last layer.
        batch: ``next_sentence_label`` int32 (b,); ``example_weights`` optional.

    Raises:
        ConfigError: examples without labels.
    """
    if LABEL not in batch:
        raise ConfigError(
            "The examples do not say whether their second segment follows the first.",
            where="objective.next_sentence",
            expected=f"{LABEL} in the data set",
            remedy='prepare the data with stream.packing = "pairs", or set objective.next_sentence to false',
        )
    logits = predict_next_sentence(params, hidden[:, 0])
    labels = batch[LABEL].astype(jnp.int32)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]
    right, weights = is_right(logits, labels), row_weights(batch)
    return LossTerm(jnp.sum(losses * weights), jnp.sum(weights), {"accuracy": jnp.sum(right * weights)})
