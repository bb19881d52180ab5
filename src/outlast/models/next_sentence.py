"""BERT's second head (Devlin et al., 2019, section 3.1): does the second segment follow the first?

In: the last hidden states of the first positions, [CLS]. Out: two logits a row: 0, B follows A; 1, B comes
from elsewhere. A pooler (dense, tanh) and a dense layer, without dropout, as in the original ``modeling.py``
and in transformers' ``BertForPreTraining`` and ``BigBirdForPreTraining``.

Letters: b row, d hidden.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from outlast.models.config import EncoderConfig
from outlast.models.layers import dense
from outlast.models.params import Param, Params, ParamTable

POOLER = "pooler"
HEAD = "next_sentence"

_POOLER_NAMES = {"bert": "bert.pooler.dense", "bigbird": "bert.pooler"}


def next_sentence_table(config: EncoderConfig) -> ParamTable:
    """Declare pooler and head, nothing where the model has none. Both start as the other matrices do."""
    if not config.next_sentence:
        return {}
    d = config.hidden_size

    def layer(shape: tuple[int, int], axes: tuple[str, str], hf: str) -> ParamTable:
        scale = config.initializer_range
        kernel = Param(
            shape=shape,
            logical_axes=axes,
            init="normal",
            hf=f"{hf}.weight",
            hf_transposed=True,
            scale=scale,
        )
        bias = Param(shape=shape[1:], logical_axes=axes[1:], init="zeros", hf=f"{hf}.bias")
        return {"kernel": kernel, "bias": bias}

    return {
        POOLER: layer((d, d), ("embed", "head_embed"), _POOLER_NAMES[config.architecture]),
        HEAD: layer((d, 2), ("head_embed", "classes"), "cls.seq_relationship"),
    }


def predict_next_sentence(params: Params, first: Float[Array, "b d"]) -> Float[Array, "b 2"]:
    """Return float32 logits; index 1 stands for a second segment that does not follow."""
    with jax.named_scope("next_sentence"):
        pooled = jnp.tanh(dense(first, params[POOLER]))
        head = params[HEAD]
        kernel = head["kernel"].astype(pooled.dtype)
        logits = jnp.einsum("bd,dc->bc", pooled, kernel, preferred_element_type=jnp.float32)
        return logits + head["bias"][None, :]
