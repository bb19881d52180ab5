"""ModernBERT against what transformers computes with the same weights (OUTLAST_TEST_DATA/parity)."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from outlast.models.modernbert import encode, encode_all, predict_tokens
from outlast.models.params import Params
from outlast.models.randomness import row_keys
from support.parity import masked_lm_loss, read_case

MODEL = "modernbert_mlm"


def test_hidden_states_of_every_layer(test_data: Path) -> None:
    case = read_case(test_data, MODEL, "padded")
    states = jax.jit(encode_all, static_argnames="config")(case.params, case.inputs, config=case.config)
    assert len(states) == case.config.num_layers + 1
    for layer, found in enumerate(states):
        case.assert_close(found, f"eval.hidden_states.{layer}")


@pytest.mark.parametrize("name", ["padded", "maxlen"])
def test_logits(test_data: Path, name: str) -> None:
    case = read_case(test_data, MODEL, name)
    hidden = jax.jit(encode, static_argnames="config")(case.params, case.inputs, config=case.config)
    case.assert_close(predict_tokens(case.params, hidden, config=case.config), "eval.logits")


@pytest.mark.parametrize("name", ["padded", "maxlen"])
def test_loss_and_the_gradient_norm_of_every_parameter(test_data: Path, name: str) -> None:
    case = read_case(test_data, MODEL, name)

    def loss(params: Params) -> jax.Array:
        keys = row_keys(0, "train", 0, jnp.arange(len(case.arrays["in.input_ids"])))
        hidden = encode(params, case.inputs, config=case.config, dropout_keys=keys)
        return masked_lm_loss(params, hidden, case)

    value, gradients = jax.jit(jax.value_and_grad(loss))(case.params)
    case.assert_loss(value)
    case.assert_gradient_norms(gradients)
