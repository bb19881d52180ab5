"""Stored outputs and gradient norms of transformers' models (OUTLAST_TEST_DATA/parity), and comparisons with
them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from safetensors.numpy import load_file

from outlast.huggingface.load import load_weights
from outlast.huggingface.names import to_huggingface
from outlast.models.architectures import ARCHITECTURES
from outlast.models.bert import EncoderInputs
from outlast.models.config import EncoderConfig
from outlast.models.params import Params, flatten, unflatten
from outlast.objectives.mlm import cross_entropy

OUTPUT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    folder: Path
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

    def assert_close(self, found: Array, key: str) -> None:
        """Compare (rows, length, ...) with the stored array of that name, where positions are real."""
        np.testing.assert_allclose(
            np.asarray(found)[self.real], self.arrays[key][self.real], rtol=0, atol=OUTPUT_TOLERANCE
        )

    def assert_gradient_norms(self, gradients: Params) -> dict[str, NDArray[Any]]:
        """Compare the norm of every parameter's gradient; return the gradients under the library's names."""
        flat = {key: np.asarray(value) for key, value in flatten(gradients).items()}
        found = to_huggingface(ARCHITECTURES[self.config.architecture].param_table(self.config), flat)
        expected = self.expected["train_no_dropout"]["grad_norms_f64"]
        for key, gradient in found.items():
            # The absolute floor is for key biases, whose gradient is zero but for rounding.
            np.testing.assert_allclose(
                np.linalg.norm(gradient), expected[key], rtol=GRADIENT_TOLERANCE, atol=1e-7, err_msg=key
            )
        return found


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
    return Case(folder, config, params, inputs, arrays, json.loads((folder / f"{name}.json").read_text()))


def masked_lm_loss(params: Params, hidden: Array, case: Case) -> Array:
    """Return the mean cross-entropy of the stored labels."""
    labels = jnp.asarray(case.arrays["label.labels"], jnp.int32)
    weights = (labels != -100).astype(jnp.float32)
    architecture = ARCHITECTURES[case.config.architecture]
    logits = architecture.predict_tokens(params, hidden, config=case.config)
    loss_sum, _ = cross_entropy(logits, jnp.maximum(labels, 0), weights)
    return loss_sum / jnp.sum(weights)


def next_sentence_loss(first: Array, case: Case) -> Array:
    """Hugging Face's pooler and next-sentence head on the first positions, written out: the models here do
    not have them.
    """
    tensors = load_file(case.folder / "model.safetensors")
    labels = jnp.asarray(case.arrays["label.next_sentence_label"], jnp.int32)
    pooler = "bert.pooler" if case.config.architecture == "bigbird" else "bert.pooler.dense"
    weight, bias = tensors[f"{pooler}.weight"], tensors[f"{pooler}.bias"]
    pooled = jnp.tanh(first @ weight.T + bias[None, :])
    logits = pooled @ tensors["cls.seq_relationship.weight"].T + tensors["cls.seq_relationship.bias"][None, :]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -jnp.mean(picked)
