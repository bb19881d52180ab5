"""Our encoders against what transformers computes with the same weights: outputs, loss and gradients.

The references (OUTLAST_TEST_DATA/parity) were written by transformers 5.23.0 on torch 2.13.0 from random
weights with noise on every parameter. Tolerances: 1e-5 for outputs; gradient norms within 1e-4 relative of
the float64 reference.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax import Array

from outlast.models.bert import Remat, encode, encode_all, predict_tokens
from outlast.models.params import Params
from support.parity import OUTPUT_TOLERANCE, Case, masked_lm_loss, next_sentence_loss, read_case

MLM_CASES = [
    ("roberta_mlm", "padded"),
    ("roberta_mlm", "maxlen"),
    ("roberta_mlm", "pad_ids_without_mask"),
    ("bert_pretraining", "padded_tokentypes"),
    ("bert_pretraining", "nomask_maxlen"),
]
ENCODER_CASES = [*MLM_CASES, ("bert_seqcls_3way", "padded_tokentypes")]


@pytest.mark.parametrize(("model", "name"), ENCODER_CASES)
def test_hidden_states_of_every_layer(test_data: Path, model: str, name: str) -> None:
    case = read_case(test_data, model, name)
    states = jax.jit(encode_all, static_argnames="config")(case.params, case.inputs, config=case.config)
    assert len(states) == case.config.num_layers + 1
    for layer, found in enumerate(states):
        case.assert_close(found, f"eval.hidden_states.{layer}")


@pytest.mark.parametrize(("model", "name"), MLM_CASES)
def test_logits(test_data: Path, model: str, name: str) -> None:
    case = read_case(test_data, model, name)
    hidden = encode(case.params, case.inputs, config=case.config)
    logits = predict_tokens(case.params, hidden, config=case.config)
    case.assert_close(logits, "eval.logits" if model == "roberta_mlm" else "eval.prediction_logits")


def mlm_loss(params: Params, case: Case, remat: Remat) -> Array:
    hidden = encode(params, case.inputs, config=case.config, remat=remat)
    return masked_lm_loss(params, hidden, case)


@pytest.mark.parametrize(
    ("name", "remat"), [("padded", "selective"), ("maxlen", "none"), ("pad_ids_without_mask", "layer")]
)
def test_loss_and_the_gradient_norm_of_every_parameter(test_data: Path, name: str, remat: Remat) -> None:
    case = read_case(test_data, "roberta_mlm", name)
    loss, gradients = jax.jit(jax.value_and_grad(lambda params: mlm_loss(params, case, remat)))(case.params)
    np.testing.assert_allclose(loss, case.expected["loss_f64"], rtol=0, atol=OUTPUT_TOLERANCE)

    found = case.assert_gradient_norms(gradients)
    assert found.keys() == case.expected["train_no_dropout"]["grad_norms_f64"].keys()
    total = np.sqrt(sum(np.sum(np.square(value, dtype=np.float64)) for value in found.values()))
    np.testing.assert_allclose(total, case.expected["train_no_dropout"]["grad_global_norm_f64"], rtol=1e-5)


@pytest.mark.parametrize("name", ["padded_tokentypes", "nomask_maxlen"])
def test_bert_gradients_with_the_next_sentence_head_beside(test_data: Path, name: str) -> None:
    case = read_case(test_data, "bert_pretraining", name)

    def loss(params: Params) -> Array:
        pooled = encode(params, case.inputs, config=case.config)[:, 0]
        return mlm_loss(params, case, "selective") + next_sentence_loss(pooled, case)

    value, gradients = jax.jit(jax.value_and_grad(loss))(case.params)
    np.testing.assert_allclose(value, case.expected["loss_f64"], rtol=0, atol=OUTPUT_TOLERANCE)
    case.assert_gradient_norms(gradients)
