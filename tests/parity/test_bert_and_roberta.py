"""Our encoders against what transformers computes with the same weights: outputs, loss and gradients.

The references (OUTLAST_TEST_DATA/parity) were written by transformers 5.23.0 on torch 2.13.0 from random
weights with noise on every parameter. Tolerances: the floors of float32 that stand beside the references.
"""

from pathlib import Path

import jax
import pytest
from jax import Array

from outlast.models.bert import encode, encode_all, predict_tokens
from outlast.models.next_sentence import predict_next_sentence
from outlast.models.params import Params
from outlast.models.remat import Remat
from support.parity import Case, masked_lm_loss, next_sentence_loss, read_case

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
    case.assert_loss(loss)
    case.assert_gradient_norms(gradients)


@pytest.mark.parametrize("name", ["padded_tokentypes", "nomask_maxlen"])
def test_next_sentence_logits(test_data: Path, name: str) -> None:
    case = read_case(test_data, "bert_pretraining", name)
    first = encode(case.params, case.inputs, config=case.config)[:, 0]
    case.assert_close(predict_next_sentence(case.params, first), "eval.seq_relationship_logits")


@pytest.mark.parametrize("name", ["padded_tokentypes", "nomask_maxlen"])
def test_both_objectives_loss_and_the_gradient_norm_of_every_parameter(test_data: Path, name: str) -> None:
    case = read_case(test_data, "bert_pretraining", name)

    def loss(params: Params) -> Array:
        hidden = encode(params, case.inputs, config=case.config)
        return masked_lm_loss(params, hidden, case) + next_sentence_loss(params, hidden, case)

    value, gradients = jax.jit(jax.value_and_grad(loss))(case.params)
    case.assert_loss(value)
    case.assert_gradient_norms(gradients)
