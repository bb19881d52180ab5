"""Our encoders against what transformers computes with the same weights: outputs, loss and gradients.

The references (OUTLAST_TEST_DATA/parity) were written by transformers 5.23.0 on torch 2.13.0 from random
weights with noise on every parameter. Tolerances: 1e-5 for outputs; gradient norms within 1e-4 relative of
the float64 reference.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from outlast.huggingface.load import load_weights
from outlast.huggingface.names import to_huggingface
from outlast.models.bert import EncoderInputs, Remat, encode, encode_all, param_table, predict_tokens
from outlast.models.config import EncoderConfig
from outlast.models.params import Params, flatten, unflatten
from outlast.objectives.mlm import cross_entropy

MLM_CASES = [
    ("roberta_mlm", "padded"),
    ("roberta_mlm", "maxlen"),
    ("roberta_mlm", "pad_ids_without_mask"),
    ("bert_pretraining", "padded_tokentypes"),
    ("bert_pretraining", "nomask_maxlen"),
]
ENCODER_CASES = [*MLM_CASES, ("bert_seqcls_3way", "padded_tokentypes")]

OUTPUT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    config: EncoderConfig
    params: Params
    inputs: EncoderInputs
    arrays: dict[str, NDArray[Any]]
    expected: dict[str, Any]

    @property
    def real(self) -> NDArray[np.bool_]:
        """Where outputs are compared: positions that are not padding."""
        mask = self.arrays.get("in.attention_mask")
        shape = self.arrays["in.input_ids"].shape
        return np.ones(shape, np.bool_) if mask is None else mask.astype(np.bool_)


def read_case(test_data: Path, model: str, name: str) -> Case:
    folder = test_data / "parity" / model
    config, flat = load_weights(folder, with_head=model != "bert_seqcls_3way")
    with np.load(folder / f"{name}.npz") as file:
        arrays = dict(file)

    def read(key: str) -> Array | None:
        return jnp.asarray(arrays[f"in.{key}"], jnp.int32) if f"in.{key}" in arrays else None

    inputs = EncoderInputs(
        jnp.asarray(arrays["in.input_ids"], jnp.int32), read("attention_mask"), read("token_type_ids")
    )
    params = unflatten({key: jnp.asarray(value) for key, value in flat.items()})
    return Case(config, params, inputs, arrays, json.loads((folder / f"{name}.json").read_text()))


def assert_close(found: Array, expected: NDArray[Any], where: NDArray[np.bool_], tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(found)[where], expected[where], rtol=0, atol=tolerance)


@pytest.mark.parametrize(("model", "name"), ENCODER_CASES)
def test_hidden_states_of_every_layer(test_data: Path, model: str, name: str) -> None:
    case = read_case(test_data, model, name)
    states = jax.jit(encode_all, static_argnames="config")(case.params, case.inputs, config=case.config)
    assert len(states) == case.config.num_layers + 1
    for layer, found in enumerate(states):
        assert_close(found, case.arrays[f"eval.hidden_states.{layer}"], case.real, OUTPUT_TOLERANCE)


@pytest.mark.parametrize(("model", "name"), MLM_CASES)
def test_logits(test_data: Path, model: str, name: str) -> None:
    case = read_case(test_data, model, name)
    hidden = encode(case.params, case.inputs, config=case.config)
    logits = predict_tokens(case.params, hidden, config=case.config)
    key = "eval.logits" if model == "roberta_mlm" else "eval.prediction_logits"
    assert_close(logits, case.arrays[key], case.real, OUTPUT_TOLERANCE)


def mlm_loss(params: Params, case: Case, remat: Remat) -> Array:
    hidden = encode(params, case.inputs, config=case.config, remat=remat)
    labels = jnp.asarray(case.arrays["label.labels"], jnp.int32)
    weights = (labels != -100).astype(jnp.float32)
    logits = predict_tokens(params, hidden, config=case.config)
    loss_sum, _ = cross_entropy(logits, jnp.maximum(labels, 0), weights)
    return loss_sum / jnp.sum(weights)


@pytest.mark.parametrize(
    ("name", "remat"), [("padded", "selective"), ("maxlen", "none"), ("pad_ids_without_mask", "layer")]
)
def test_loss_and_the_gradient_norm_of_every_parameter(test_data: Path, name: str, remat: Remat) -> None:
    case = read_case(test_data, "roberta_mlm", name)
    loss, gradients = jax.jit(jax.value_and_grad(lambda params: mlm_loss(params, case, remat)))(case.params)
    np.testing.assert_allclose(loss, case.expected["loss_f64"], rtol=0, atol=OUTPUT_TOLERANCE)

    flat = {key: np.asarray(value) for key, value in flatten(gradients).items()}
    found = to_huggingface(param_table(case.config), flat)
    expected = case.expected["train_no_dropout"]["grad_norms_f64"]
    assert found.keys() == expected.keys()
    for key, norm in expected.items():
        # The absolute floor is for key biases, whose gradient is zero but for rounding.
        np.testing.assert_allclose(
            np.linalg.norm(found[key]), norm, rtol=GRADIENT_TOLERANCE, atol=1e-7, err_msg=key
        )
    total = np.sqrt(sum(np.sum(np.square(value, dtype=np.float64)) for value in found.values()))
    np.testing.assert_allclose(total, case.expected["train_no_dropout"]["grad_global_norm_f64"], rtol=1e-5)


def next_sentence_loss(pooled: Array, tensors: dict[str, NDArray[Any]], labels: Array) -> Array:
    """Hugging Face's pooler and next-sentence head, written out: the models here do not have them."""
    weight, bias = tensors["bert.pooler.dense.weight"], tensors["bert.pooler.dense.bias"]
    pooled = jnp.tanh(pooled @ weight.T + bias[None, :])
    logits = pooled @ tensors["cls.seq_relationship.weight"].T + tensors["cls.seq_relationship.bias"][None, :]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -jnp.mean(picked)


@pytest.mark.parametrize("name", ["padded_tokentypes", "nomask_maxlen"])
def test_bert_gradients_with_the_next_sentence_head_beside(test_data: Path, name: str) -> None:
    from safetensors.numpy import load_file

    case = read_case(test_data, "bert_pretraining", name)
    tensors = load_file(test_data / "parity" / "bert_pretraining" / "model.safetensors")
    labels = jnp.asarray(case.arrays["label.next_sentence_label"], jnp.int32)

    def loss(params: Params) -> Array:
        pooled = encode(params, case.inputs, config=case.config)[:, 0]
        return mlm_loss(params, case, "selective") + next_sentence_loss(pooled, tensors, labels)

    value, gradients = jax.jit(jax.value_and_grad(loss))(case.params)
    np.testing.assert_allclose(value, case.expected["loss_f64"], rtol=0, atol=OUTPUT_TOLERANCE)
    flat = {key: np.asarray(gradient) for key, gradient in flatten(gradients).items()}
    found = to_huggingface(param_table(case.config), flat)
    expected = case.expected["train_no_dropout"]["grad_norms_f64"]
    for key, gradient in found.items():
        np.testing.assert_allclose(
            np.linalg.norm(gradient), expected[key], rtol=GRADIENT_TOLERANCE, atol=1e-7, err_msg=key
        )
