"""ModernBERT (Warner et al., 2024): a pre-norm encoder with rotary positions, gated feed-forward and
alternating global and local attention, without biases.

In: ``input_ids`` and what goes with them. Out: hidden states, and logits over the vocabulary at chosen
positions. Checked against transformers' ``modeling_modernbert.py`` (tests/parity). Two differences: where
``segment_ids`` are given, a position attends to its own segment only, as the original does by unpadding; and
the probabilities of a window are not dropped out, for they are few (the original's rate is 0).

Letters: b row, l position, d hidden, f intermediate, h head, k size of a head, p prediction, v vocabulary,
n layer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from outlast.models.attention.full import AttentionMask, attend
from outlast.models.attention.kernels import AttentionKernel
from outlast.models.attention.local import local_attend
from outlast.models.bert import EncoderInputs
from outlast.models.bert import predict_tokens as predict_tokens
from outlast.models.config import EncoderConfig
from outlast.models.layers import ACTIVATIONS, dense, dropout, embedding, layer_norm
from outlast.models.params import LAYERS_AXIS, Param, Params, ParamTable
from outlast.models.randomness import RowKeys, fold
from outlast.models.remat import Remat, kept, rematerialised
from outlast.models.slices import in_slices, whole_layer


class Turns(NamedTuple):
    """Cosine and sine of the angles by which positions turn the heads."""

    cos: Float[Array, "*kinds l k/2"]
    sin: Float[Array, "*kinds l k/2"]


class _Attention(NamedTuple):
    """What the attention of every layer depends on beside its input."""

    mask: AttentionMask | None
    segments: Int[Array, "b l"] | None
    turns: Turns
    """Of local layers and, behind them, of global ones."""
    kernel: AttentionKernel


def param_table(config: EncoderConfig) -> ParamTable:
    """Declare the parameters of an encoder with its masked-LM head. The first layer has no attention norm."""
    n, d, f, v = config.num_layers, config.hidden_size, config.intermediate_size, config.vocab_size
    into, out_of = config.initializer_range, config.initializer_range / (2 * n) ** 0.5
    layer = "model.layers.{layer}"
    axes = (LAYERS_AXIS, "embed")
    return {
        "embeddings": {
            "word": Param(
                shape=(v, d),
                logical_axes=("vocab", "embed"),
                init="normal",
                hf="model.embeddings.tok_embeddings.weight",
                scale=into,
            ),
            "norm": _norm((d,), ("embed",), "model.embeddings.norm"),
        },
        "layers": {
            "attention": {
                "norm": _norm((n - 1, d), axes, f"{layer}.attn_norm", first_layer=1),
                "qkv": _kernel((n, d, 3, d), (*axes, "qkv", "heads"), f"{layer}.attn.Wqkv", into),
                "output": _kernel((n, d, d), (LAYERS_AXIS, "heads", "embed"), f"{layer}.attn.Wo", out_of),
            },
            "feed_forward": {
                "norm": _norm((n, d), axes, f"{layer}.mlp_norm"),
                "inner": _kernel(
                    (n, d, 2, f), (*axes, "value_gate", "intermediate"), f"{layer}.mlp.Wi", into
                ),
                "output": _kernel(
                    (n, f, d), (LAYERS_AXIS, "intermediate", "embed"), f"{layer}.mlp.Wo", out_of
                ),
            },
        },
        "final_norm": _norm((d,), ("embed",), "model.final_norm"),
        "head": {
            "dense": _kernel((d, d), ("embed", "head_embed"), "head.dense", out_of),
            "norm": _norm((d,), ("head_embed",), "head.norm"),
            "bias": Param(shape=(v,), logical_axes=("vocab",), init="zeros", hf="decoder.bias"),
        },
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
    """Return the normed hidden states of the last layer. Arguments as for ``outlast.models.bert.encode``."""
    hidden, _ = _run(
        params, inputs, config, dropout_keys, compute_dtype, remat, attention_kernel, keep_all=False
    )
    return layer_norm(hidden, params["final_norm"], config.layer_norm_epsilon)


def encode_all(
    params: Params, inputs: EncoderInputs, *, config: EncoderConfig, compute_dtype: DTypeLike = jnp.float32
) -> Float[Array, "n+1 b l d"]:
    """Return the embeddings and the hidden states after each layer, the last one normed; no dropout."""
    first = _embed(params["embeddings"], inputs, config, None, compute_dtype)
    hidden, states = _run(params, inputs, config, None, compute_dtype, "none", "auto", keep_all=True)
    assert states is not None
    last = layer_norm(hidden, params["final_norm"], config.layer_norm_epsilon)
    return jnp.concatenate([first[None], states[:-1], last[None]])


def _run(
    params: Params,
    inputs: EncoderInputs,
    config: EncoderConfig,
    dropout_keys: RowKeys | None,
    compute_dtype: DTypeLike,
    remat: Remat,
    kernel: AttentionKernel,
    *,
    keep_all: bool,
) -> tuple[Float[Array, "b l d"], Float[Array, "n b l d"] | None]:
    """Return the hidden states of the last layer, before the final norm, and perhaps those of all layers."""
    hidden = _embed(params["embeddings"], inputs, config, dropout_keys, compute_dtype)
    turns = _turns_by_kind(config, hidden.shape[1])
    attention = _Attention(inputs.attention_mask, inputs.segment_ids, turns, kernel)

    def layer(hidden: Array, scanned: tuple[Params, Array]) -> tuple[Array, Array | None]:
        layer_params, index = scanned
        layer_params = whole_layer(layer_params, compute_dtype)
        keys = None if dropout_keys is None else fold(fold(dropout_keys, "layer"), index)
        hidden = _layer(layer_params, hidden, index, attention, config, keys)
        return hidden, hidden if keep_all else None

    layers = _with_first_norm(params["layers"])
    layer = rematerialised(layer, remat, gathers=in_slices(layers))
    return jax.lax.scan(layer, hidden, (layers, jnp.arange(config.num_layers)))


def _with_first_norm(layers: Params) -> Params:
    """Give the first layer a norm that is never used, so that all layers have the same parameters."""

    def with_first(scale: Array) -> Array:
        return jnp.concatenate([jnp.ones_like(scale, shape=(1, scale.shape[1])), scale])

    norm = jax.tree.map(with_first, layers["attention"]["norm"])
    return {**layers, "attention": {**layers["attention"], "norm": norm}}


def _embed(
    params: Params,
    inputs: EncoderInputs,
    config: EncoderConfig,
    keys: RowKeys | None,
    compute_dtype: DTypeLike,
) -> Float[Array, "b l d"]:
    with jax.named_scope("embeddings"):
        x = embedding(params["word"], inputs.input_ids, config.pad_id)
        x = layer_norm(x, params["norm"], config.layer_norm_epsilon).astype(compute_dtype)
        return dropout(x, None if keys is None else fold(keys, "embeddings"), config.dropout)


def _layer(
    params: Params,
    x: Float[Array, "b l d"],
    index: Int[Array, ""],
    attention: _Attention,
    config: EncoderConfig,
    keys: RowKeys | None,
) -> Float[Array, "b l d"]:
    """One layer; each half norms its own input and adds to the stream."""
    attend_params, feed_forward = params["attention"], params["feed_forward"]
    epsilon = config.layer_norm_epsilon
    with jax.named_scope("attention"):
        normed = jnp.where(index == 0, x, layer_norm(x, attend_params["norm"], epsilon))
        x = x + _mix(attend_params, normed, index, attention, config, keys)
    with jax.named_scope("feed_forward"):
        inner = dense(layer_norm(x, feed_forward["norm"], epsilon), feed_forward["inner"])
        # Without the axis of rows: XLA's CPU gives each core a part of the first axis, which may be 1.
        value, gate = jnp.moveaxis(inner.reshape(-1, *inner.shape[-2:]), 1, 0)
        gated = (ACTIVATIONS[config.activation](value) * gate).reshape(*x.shape[:2], -1)
        gated = dropout(gated, None if keys is None else fold(keys, "feed_forward"), config.dropout)
        return x + dense(gated, feed_forward["output"])


def _mix(
    params: Params,
    x: Float[Array, "b l d"],
    index: Int[Array, ""],
    attention: _Attention,
    config: EncoderConfig,
    keys: RowKeys | None,
) -> Float[Array, "b l d"]:
    """The attention of a layer, which its number makes a global or a local one."""
    alternating = config.alternating
    assert alternating is not None, "resolve_model sets it for this architecture"
    probability_keys = None if keys is None else fold(keys, "probabilities")

    def everywhere(query: Array, key: Array, value: Array) -> Array:
        return attend(
            query,
            key,
            value,
            attention_mask=attention.mask,
            segment_ids=attention.segments,
            dropout_keys=probability_keys,
            dropout_rate=config.attention_dropout,
            kernel=attention.kernel,
        )

    def in_window(query: Array, key: Array, value: Array) -> Array:
        return local_attend(
            query,
            key,
            value,
            attention_mask=attention.mask,
            segment_ids=attention.segments,
            reach=alternating.local_reach,
            kernel=attention.kernel,
        )

    is_global = index % alternating.global_every == 0

    def choose(query: Array, key: Array, value: Array) -> Array:
        return jax.lax.cond(is_global, everywhere, in_window, query, key, value)

    shape = (*x.shape[:2], 3, config.num_heads, config.head_size)
    query, key, value = jnp.moveaxis(dense(x, params["qkv"]).reshape(shape), 2, 0)
    turns = jax.tree.map(lambda by_kind: by_kind[is_global.astype(jnp.int32)], attention.turns)
    query, key = (rotate(heads, turns) for heads in (query, key))
    # What one branch keeps for the backward pass, the other would set aside in vain: so none keeps anything.
    mixed = jax.checkpoint(choose, prevent_cse=False)(query, key, value)
    mixed = dense(kept(mixed.reshape(x.shape)), params["output"])
    return dropout(mixed, None if keys is None else fold(keys, "attention"), config.attention_dropout)


def _turns_by_kind(config: EncoderConfig, length: int) -> Turns:
    """Return the turns of local layers (0) and of global ones (1)."""
    assert config.alternating is not None
    local, everywhere = (
        turns_of(length, config.head_size, theta)
        for theta in (config.alternating.local_theta, config.alternating.global_theta)
    )
    return Turns(*(jnp.stack(both) for both in zip(local, everywhere, strict=True)))


def turns_of(length: int, head_size: int, theta: float) -> Turns:
    """Return cosine and sine of the angles, which grow with the position; float32."""
    half = head_size // 2
    speeds = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * speeds[None, :]
    return Turns(jnp.cos(angles), jnp.sin(angles))


def rotate(heads: Float[Array, "b l h k"], turns: Turns) -> Float[Array, "b l h k"]:
    """Turn pairs of a head's numbers by the angles of their position.

    Su et al. (2021), section 3.4.2, in the form of transformers: number i goes with number i + k/2, and the
    turn is computed in float32.
    """
    cos, sin = (x[None, :, None, :] for x in turns)
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(heads.dtype)


def _kernel(shape: tuple[int, ...], axes: tuple[str, ...], hf: str, scale: float) -> ParamTable:
    return {
        "kernel": Param(
            shape=shape, logical_axes=axes, init="normal", hf=f"{hf}.weight", hf_transposed=True, scale=scale
        )
    }


def _norm(shape: tuple[int, ...], axes: tuple[str, ...], hf: str, *, first_layer: int = 0) -> ParamTable:
    return {
        "scale": Param(
            shape=shape, logical_axes=axes, init="ones", hf=f"{hf}.weight", first_layer=first_layer
        )
    }
