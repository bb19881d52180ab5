"""BigBird against what transformers computes with the same weights, in training and in its own evaluation.

The references (OUTLAST_TEST_DATA/parity/bigbird_pretraining) hold the library's random blocks. In evaluation
it uses none and counts block 0 in their place; in training it draws them from NumPy's legacy generator.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from outlast.models.attention.random_blocks import random_block_table
from outlast.models.bert import encode, encode_all, predict_tokens
from outlast.models.next_sentence import predict_next_sentence
from outlast.models.params import Params
from outlast.models.randomness import row_keys
from support.parity import masked_lm_loss, next_sentence_loss, read_case

MODEL = "bigbird_pretraining"
FULL = "seq128_falls_back_to_full"
SPARSE = ["seq250_not_block_multiple", "seq256_padded"]


@pytest.mark.parametrize("name", SPARSE)
def test_the_librarys_random_blocks(test_data: Path, name: str) -> None:
    case = read_case(test_data, MODEL, name)
    assert case.config.sparse is not None
    found = random_block_table(
        case.config.sparse,
        num_layers=case.config.num_layers,
        num_heads=case.config.num_heads,
        num_blocks=16,
        max_positions=case.config.max_positions,
    )
    np.testing.assert_array_equal(found, case.arrays["train.random_block_table"])


@pytest.mark.parametrize("name", [FULL, "seq256_padded"])
def test_hidden_states_of_every_layer(test_data: Path, name: str) -> None:
    case = read_case(test_data, MODEL, name)
    states = jax.jit(encode_all, static_argnames="config")(case.params, case.inputs, config=case.config)
    for layer, found in enumerate(states):
        case.assert_close(found, f"eval.hidden_states.{layer}")


@pytest.mark.parametrize("name", [FULL, *SPARSE])
def test_logits_and_loss_in_evaluation(test_data: Path, name: str) -> None:
    case = read_case(test_data, MODEL, name)
    hidden = jax.jit(encode, static_argnames="config")(case.params, case.inputs, config=case.config)
    case.assert_close(predict_tokens(case.params, hidden, config=case.config), "eval.prediction_logits")
    # The floor of four numbers is one draw, in which the rounding of all layers can be smaller by chance than
    # on another processor. The layers are compared above; the head takes the library's own hidden states,
    # where they are stored, so that nothing but its own rounding is left.
    theirs = case.arrays.get(f"eval.hidden_states.{case.config.num_layers}")
    first = predict_next_sentence(case.params, (hidden if theirs is None else jnp.asarray(theirs))[:, 0])
    case.assert_close(first, "eval.seq_relationship_logits")


@pytest.mark.parametrize("name", [FULL, *SPARSE])
def test_training_loss_and_the_gradient_norm_of_every_parameter(test_data: Path, name: str) -> None:
    case = read_case(test_data, MODEL, name)

    def loss(params: Params) -> jax.Array:
        keys = row_keys(0, "train", 0, jnp.arange(len(case.arrays["in.input_ids"])))
        hidden = encode(params, case.inputs, config=case.config, dropout_keys=keys)
        return masked_lm_loss(params, hidden, case) + next_sentence_loss(params, hidden, case)

    value, gradients = jax.jit(jax.value_and_grad(loss))(case.params)
    case.assert_loss(value)
    case.assert_gradient_norms(gradients)
