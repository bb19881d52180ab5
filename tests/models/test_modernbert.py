"""ModernBERT's layers, scanned with a choice between two attentions, equal the same layers one by one.

Parity with transformers is in tests/parity.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from outlast.models.attention.full import attend
from outlast.models.attention.local import local_attend
from outlast.models.bert import EncoderInputs
from outlast.models.config import EncoderConfig, ModelConfig, resolve_model
from outlast.models.layers import ACTIVATIONS, dense, dropout, layer_norm
from outlast.models.modernbert import encode, param_table, rotate, turns_of
from outlast.models.params import Params, init_params
from outlast.models.randomness import RowKeys, fold, row_keys
from outlast.models.remat import Remat

RATE = 0.1


def make(num_layers: int, global_every: int, length: int) -> tuple[EncoderConfig, Params, EncoderInputs]:
    config = resolve_model(
        ModelConfig(
            architecture="modernbert",
            preset="tiny",
            hidden_size=32,
            num_heads=2,
            intermediate_size=48,
            num_layers=num_layers,
            global_every=global_every,
            local_attention=16,
            dropout=RATE,
            attention_dropout=RATE,
        ),
        vocab_size=97,
        special_ids={"cls": 0, "pad": 3, "sep": 2, "unk": 1, "mask": 4},
        sequence_length=length,
    )
    ids = jax.random.randint(jax.random.key(1), (2, length), 5, 97, dtype=jnp.int32)
    mask = (jnp.arange(length)[None] < jnp.array([[length], [length - 7]])).astype(jnp.int8)
    segments = jnp.tile(jnp.arange(length) // 29, (2, 1))
    params = init_params(param_table(config), 0)
    # Norms of ones would hide which layer they belong to.
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    return config, params, EncoderInputs(jnp.where(mask, ids, 3), mask, segment_ids=segments)


def one_by_one(params: Params, inputs: EncoderInputs, config: EncoderConfig, keys: RowKeys) -> Array:
    """The same model without a scan: each layer is what its number makes it before anything is traced."""
    assert config.alternating is not None
    epsilon, every = config.layer_norm_epsilon, config.alternating.global_every
    x = params["embeddings"]["word"][inputs.input_ids]
    x = dropout(layer_norm(x, params["embeddings"]["norm"], epsilon), fold(keys, "embeddings"), RATE)
    for n in range(config.num_layers):
        own = fold(fold(keys, "layer"), jnp.asarray(n))
        norms = params["layers"]["attention"]["norm"]["scale"]
        attention, feed_forward = (
            {name: {"kernel": params["layers"][half][name]["kernel"][n]} for name in names}
            for half, names in (("attention", ("qkv", "output")), ("feed_forward", ("inner", "output")))
        )
        normed = layer_norm(x, {"scale": norms[n - 1]}, epsilon) if n else x
        heads = dense(normed, attention["qkv"]).reshape(*x.shape[:2], 3, config.num_heads, -1)
        theta = config.alternating.local_theta if n % every else config.alternating.global_theta
        turns = turns_of(x.shape[1], config.head_size, theta)
        query, key, value = rotate(heads[:, :, 0], turns), rotate(heads[:, :, 1], turns), heads[:, :, 2]
        seen = inputs.attention_mask, inputs.segment_ids
        if n % every:
            reach = config.alternating.local_reach
            mixed = local_attend(query, key, value, attention_mask=seen[0], segment_ids=seen[1], reach=reach)
        else:
            mixed = attend(
                query,
                key,
                value,
                attention_mask=seen[0],
                segment_ids=seen[1],
                dropout_keys=fold(own, "probabilities"),
                dropout_rate=RATE,
            )
        x = x + dropout(dense(mixed.reshape(x.shape), attention["output"]), fold(own, "attention"), RATE)
        scale = {"scale": params["layers"]["feed_forward"]["norm"]["scale"][n]}
        value, gate = jnp.moveaxis(dense(layer_norm(x, scale, epsilon), feed_forward["inner"]), 2, 0)
        gated = dropout(ACTIVATIONS[config.activation](value) * gate, fold(own, "feed_forward"), RATE)
        x = x + dense(gated, feed_forward["output"])
    return layer_norm(x, params["final_norm"], epsilon)


@pytest.mark.parametrize(
    ("num_layers", "global_every", "length", "remat"),
    [(4, 3, 40, "selective"), (2, 1, 40, "none"), (2, 4, 40, "layer"), (2, 2, 300, "selective")],
)
def test_scanned_layers_equal_the_same_one_by_one(
    num_layers: int, global_every: int, length: int, remat: Remat
) -> None:
    """300 tokens: a CPU takes the heads of a global layer one after the other, inside the choice."""
    config, params, inputs = make(num_layers, global_every, length)
    keys = row_keys(0, "train", 0, jnp.arange(2))
    weight = jax.random.normal(jax.random.key(2), (2, length, config.hidden_size))
    assert inputs.attention_mask is not None
    weight = weight * inputs.attention_mask[:, :, None].astype(jnp.float32)

    def scanned(params: Params) -> Array:
        hidden = encode(params, inputs, config=config, dropout_keys=keys, remat=remat)
        return jnp.sum(hidden * weight)

    def plain(params: Params) -> Array:
        return jnp.sum(one_by_one(params, inputs, config, keys) * weight)

    (found, found_gradients), (expected, gradients) = (
        jax.jit(jax.value_and_grad(loss))(params) for loss in (scanned, plain)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert jax.tree.structure(found_gradients) == jax.tree.structure(gradients)
    for one, other in zip(jax.tree.leaves(found_gradients), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(other)) + 1e-3))
