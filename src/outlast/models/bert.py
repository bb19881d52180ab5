"""BERT (Devlin et al., 2019), RoBERTa (Liu et al., 2019), BigBird (Zaheer et al., 2020): post-norm encoders
with learned positions.

In: ``input_ids`` and what goes with them. Out: hidden states, and logits over the vocabulary at chosen
positions. They differ in the numbers of ``EncoderConfig``, in Hugging Face's names, and BigBird in its
attention. Checked against transformers' ``modeling_bert.py``, ``modeling_roberta.py`` and
``modeling_big_bird.py`` (tests/parity). BigBird drops out its embeddings before their norm in the original,
after it here, as BERT.

Letters: b row, l position, d hidden, f intermediate, h head, k size of a head, p prediction, v vocabulary,
n layer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from outlast.models.attention.block_sparse import block_sparse_attend, simulated_sparse_attend
from outlast.models.attention.full import AttentionMask, attend
from outlast.models.attention.kernels import AttentionKernel
from outlast.models.attention.random_blocks import (
    Table,
    first_block_table,
    is_sparse,
    none_twice,
    random_block_table,
)
from outlast.models.config import EncoderConfig
from outlast.models.layers import ACTIVATIONS, dense, dropout, embedding, layer_norm
from outlast.models.next_sentence import next_sentence_table
from outlast.models.params import LAYERS_AXIS, Param, Params, ParamTable
from outlast.models.randomness import RowKeys, fold
from outlast.models.remat import Remat, kept, rematerialised
from outlast.models.slices import in_slices, whole_layer


class EncoderInputs(NamedTuple):
    """A batch as the encoder reads it. None: every position is real, of type 0, in natural order."""

    input_ids: Int[Array, "b l"]
    attention_mask: AttentionMask | None = None
    token_type_ids: Int[Array, "b l"] | None = None
    position_ids: Int[Array, "b l"] | None = None
    segment_ids: Int[Array, "b l"] | None = None
    """Which document of a packed row; None: one. Only ModernBERT keeps segments apart."""


def param_table(config: EncoderConfig) -> ParamTable:
    """Declare the parameters of an encoder with its heads: masked-LM, and next-sentence where it has one."""
    d, prefix = config.hidden_size, _PREFIXES.get(config.architecture, "bert")
    names = _HEAD_NAMES.get(config.architecture, _BERT_HEAD)
    return {
        "embeddings": {
            "word": _matrix(
                config, (config.vocab_size, d), ("vocab", "embed"), f"{prefix}.embeddings.word_embeddings"
            ),
            "position": _matrix(
                config,
                (config.num_position_rows, d),
                ("positions", "embed"),
                f"{prefix}.embeddings.position_embeddings",
            ),
            "token_type": _matrix(
                config,
                (config.type_vocab_size, d),
                ("types", "embed"),
                f"{prefix}.embeddings.token_type_embeddings",
            ),
            "norm": _norm((d,), ("embed",), f"{prefix}.embeddings.LayerNorm"),
        },
        "layers": _layer_table(config, f"{prefix}.encoder.layer.{{layer}}"),
        "head": {
            "dense": _dense(config, (d, d), ("embed", "head_embed"), names.dense),
            "norm": _norm((d,), ("head_embed",), names.norm),
            "bias": Param(shape=(config.vocab_size,), logical_axes=("vocab",), init="zeros", hf=names.bias),
        },
        **next_sentence_table(config),
    }


def encode(
    params: Params,
    inputs: EncoderInputs,
    *,
    config: EncoderConfig,
    dropout_keys: RowKeys | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: Remat = "selective",
    attention_kernel: AttentionKernel = "auto",
) -> Float[Array, "b l d"]:
    """Return the hidden states of the last layer, in the compute dtype.

    Args:
        dropout_keys: one key per row in training; None: no dropout.
        compute_dtype: of activations and products. Parameters, softmax and layer norm stay float32.
        remat: what is computed again in the backward pass to save memory.
        attention_kernel: what may compute attention beside the plain formula.
    """
    hidden, _ = _run(
        params, inputs, config, dropout_keys, compute_dtype, remat, attention_kernel, keep_all=False
    )
    return hidden


def encode_all(
    params: Params, inputs: EncoderInputs, *, config: EncoderConfig, compute_dtype: DTypeLike = jnp.float32
) -> Float[Array, "n+1 b l d"]:
    """Return the embeddings and the hidden states after each layer, without dropout."""
    first = _embed(params["embeddings"], inputs, config, None, compute_dtype)
    _, rest = _run(params, inputs, config, None, compute_dtype, "none", "auto", keep_all=True)
    assert rest is not None
    return jnp.concatenate([first[None], rest])


def predict_tokens(
    params: Params, hidden: Float[Array, "b p d"], *, config: EncoderConfig
) -> Float[Array, "b p v"]:
    """Return float32 logits over the vocabulary; the projection is the word embeddings' transpose."""
    head = params["head"]
    with jax.named_scope("head"):
        x = ACTIVATIONS[config.head_activation](dense(hidden, head["dense"]))
        x = layer_norm(x, head["norm"], config.layer_norm_epsilon)
        table = params["embeddings"]["word"].astype(x.dtype)
        logits = jnp.einsum("bpd,vd->bpv", x, table, preferred_element_type=jnp.float32)
        return logits + head["bias"][None, None, :]


def position_ids(input_ids: Int[Array, "b l"], config: EncoderConfig) -> Int[Array, "b l"]:
    """Return rows of the position table.

    RoBERTa numbers the tokens that are no pads from pad_id + 1 on and gives pads the row pad_id, whatever the
    attention mask says (transformers' ``create_position_ids_from_input_ids``).
    """
    if config.position_rule == "index":
        return jax.lax.broadcasted_iota(jnp.int32, input_ids.shape, 1)
    real = (input_ids != config.pad_id).astype(jnp.int32)
    return jnp.cumsum(real, axis=1, dtype=jnp.int32) * real + config.pad_id


class _HeadNames(NamedTuple):
    dense: str
    norm: str
    bias: str


_BERT_HEAD = _HeadNames(
    "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"
)
_HEAD_NAMES = {
    "roberta": _HeadNames("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
}
_PREFIXES = {"roberta": "roberta"}


def _run(
    params: Params,
    inputs: EncoderInputs,
    config: EncoderConfig,
    dropout_keys: RowKeys | None,
    compute_dtype: DTypeLike,
    remat: Remat,
    attention_kernel: AttentionKernel,
    *,
    keep_all: bool,
) -> tuple[Float[Array, "b l d"], Float[Array, "n b l d"] | None]:
    hidden = _embed(params["embeddings"], inputs, config, dropout_keys, compute_dtype)
    table = _random_blocks(config, inputs.input_ids.shape[1], train=dropout_keys is not None)
    random_blocks = None if table is None else jnp.asarray(table)
    distinct = table is not None and none_twice(table)

    def layer(hidden: Array, scanned: tuple[Params, Array, Array | None]) -> tuple[Array, Array | None]:
        layer_params, index, layer_blocks = scanned
        layer_params = whole_layer(layer_params, compute_dtype)
        keys = None if dropout_keys is None else fold(fold(dropout_keys, "layer"), index)
        attention = _Attention(inputs.attention_mask, layer_blocks, distinct, attention_kernel)
        hidden = _layer(layer_params, hidden, attention, config, keys)
        return hidden, hidden if keep_all else None

    layers = params["layers"]
    layer = rematerialised(layer, remat, gathers=in_slices(layers))
    return jax.lax.scan(layer, hidden, (layers, jnp.arange(config.num_layers), random_blocks))


class _Attention(NamedTuple):
    """What a layer's attention depends on beside its input."""

    mask: AttentionMask | None
    random_blocks: Int[Array, "h n-2 r"] | None
    """None: full attention."""
    distinct: bool
    """No block stands twice in a row of the table."""
    kernel: AttentionKernel


def _random_blocks(config: EncoderConfig, length: int, *, train: bool) -> Table | None:
    """Return the random key blocks of every layer, (n, h, blocks - 2, r); None where attention is full."""
    sparse = config.sparse
    if sparse is None or not is_sparse(
        length, block_size=sparse.block_size, num_random_blocks=sparse.num_random_blocks
    ):
        return None
    num_blocks = -(-length // sparse.block_size)
    if not train and sparse.evaluation_random_blocks == "first_block":
        return first_block_table(
            (config.num_layers, config.num_heads, num_blocks - 2, sparse.num_random_blocks)
        )
    return random_block_table(
        sparse,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        num_blocks=num_blocks,
        max_positions=config.max_positions,
    )


def _embed(
    params: Params,
    inputs: EncoderInputs,
    config: EncoderConfig,
    keys: RowKeys | None,
    compute_dtype: DTypeLike,
) -> Float[Array, "b l d"]:
    ids = inputs.input_ids
    with jax.named_scope("embeddings"):
        places = position_ids(ids, config) if inputs.position_ids is None else inputs.position_ids
        frozen_position = config.pad_id if config.position_rule == "after_pad" else None
        x = embedding(params["word"], ids, config.pad_id)
        x = x + embedding(params["position"], places, frozen_position)
        types = params["token_type"]
        if inputs.token_type_ids is None:
            x = x + types[0][None, None, :]
        else:
            x = x + embedding(types, inputs.token_type_ids, None)
        x = layer_norm(x, params["norm"], config.layer_norm_epsilon).astype(compute_dtype)
        return dropout(x, None if keys is None else fold(keys, "embeddings"), config.dropout)


def _layer(
    params: Params,
    x: Float[Array, "b l d"],
    context: _Attention,
    config: EncoderConfig,
    keys: RowKeys | None,
) -> Float[Array, "b l d"]:
    """One layer; the norm follows each residual sum, as in the original BERT."""
    attention, feed_forward = params["attention"], params["feed_forward"]
    epsilon, heads = config.layer_norm_epsilon, (*x.shape[:2], config.num_heads, config.head_size)

    def drop(x: Array, site: str) -> Array:
        return dropout(x, None if keys is None else fold(keys, site), config.dropout)

    with jax.named_scope("attention"):
        query, key, value = (dense(x, attention[name]).reshape(heads) for name in ("query", "key", "value"))
        mixed = _mix(
            query, key, value, context, config, None if keys is None else fold(keys, "probabilities")
        )
        mixed = dense(kept(mixed.reshape(x.shape)), attention["output"])
        x = layer_norm(x + drop(mixed, "attention"), attention["norm"], epsilon)
    with jax.named_scope("feed_forward"):
        inner = ACTIVATIONS[config.activation](dense(x, feed_forward["inner"]))
        inner = dense(inner, feed_forward["output"])
        return layer_norm(x + drop(inner, "feed_forward"), feed_forward["norm"], epsilon)


def _mix(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    context: _Attention,
    config: EncoderConfig,
    keys: RowKeys | None,
) -> Float[Array, "b l h k"]:
    """The attention that the model's configuration and the length ask for."""
    if config.sparse is None or context.random_blocks is None:
        return attend(
            query,
            key,
            value,
            attention_mask=context.mask,
            dropout_keys=keys,
            dropout_rate=config.attention_dropout,
            kernel=context.kernel,
        )
    mask, blocks, block_size = context.mask, context.random_blocks, config.sparse.block_size
    if config.sparse.simulated:
        return simulated_sparse_attend(
            query, key, value, attention_mask=mask, random_blocks=blocks, block_size=block_size
        )
    return block_sparse_attend(
        query,
        key,
        value,
        attention_mask=mask,
        random_blocks=blocks,
        block_size=block_size,
        distinct=context.distinct,
        kernel=context.kernel,
    )


def _layer_table(config: EncoderConfig, hf: str) -> ParamTable:
    n, d, f = config.num_layers, config.hidden_size, config.intermediate_size

    def project(name: str) -> ParamTable:
        return _dense(config, (n, d, d), (LAYERS_AXIS, "embed", "heads"), f"{hf}.attention.self.{name}")

    return {
        "attention": {
            "query": project("query"),
            "key": project("key"),
            "value": project("value"),
            "output": _dense(
                config, (n, d, d), (LAYERS_AXIS, "heads", "embed"), f"{hf}.attention.output.dense"
            ),
            "norm": _norm((n, d), (LAYERS_AXIS, "embed"), f"{hf}.attention.output.LayerNorm"),
        },
        "feed_forward": {
            "inner": _dense(
                config, (n, d, f), (LAYERS_AXIS, "embed", "intermediate"), f"{hf}.intermediate.dense"
            ),
            "output": _dense(config, (n, f, d), (LAYERS_AXIS, "intermediate", "embed"), f"{hf}.output.dense"),
            "norm": _norm((n, d), (LAYERS_AXIS, "embed"), f"{hf}.output.LayerNorm"),
        },
    }


def _matrix(config: EncoderConfig, shape: tuple[int, ...], axes: tuple[str, ...], hf: str) -> Param:
    return Param(
        shape=shape, logical_axes=axes, init="normal", hf=f"{hf}.weight", scale=config.initializer_range
    )


def _dense(config: EncoderConfig, shape: tuple[int, ...], axes: tuple[str, ...], hf: str) -> ParamTable:
    bias_shape, bias_axes = (*shape[:-2], shape[-1]), (*axes[:-2], axes[-1])
    return {
        "kernel": Param(
            shape=shape,
            logical_axes=axes,
            init="normal",
            hf=f"{hf}.weight",
            hf_transposed=True,
            scale=config.initializer_range,
        ),
        "bias": Param(shape=bias_shape, logical_axes=bias_axes, init="zeros", hf=f"{hf}.bias"),
    }


def _norm(shape: tuple[int, ...], axes: tuple[str, ...], hf: str) -> ParamTable:
    return {
        "scale": Param(shape=shape, logical_axes=axes, init="ones", hf=f"{hf}.weight"),
        "bias": Param(shape=shape, logical_axes=axes, init="zeros", hf=f"{hf}.bias"),
    }
