"""Stored outputs and gradient norms of transformers' models (OUTLAST_TEST_DATA/parity), and comparisons with
them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from outlast.huggingface.load import load_weights
from outlast.huggingface.names import to_huggingface
from outlast.models.architectures import ARCHITECTURES
from outlast.models.bert import EncoderInputs
from outlast.models.config import EncoderConfig
from outlast.models.params import Params, flatten, unflatten
from outlast.objectives.mlm import cross_entropy
from outlast.objectives.next_sentence import next_sentence_term

EPSILON = float(np.finfo(np.float32).eps)
GRADIENT_EPSILONS = 8
"""Each case records how far the library's own float32 is from its float64: the floor below which a difference
says nothing. That is one draw of rounding (for two losses it is 0), so a unit in the last place is allowed
beside it, and to a gradient's norm, thousands of products added up in another order, eight (the most seen is
3.6)."""


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
        """Compare with the stored float32 array of that name: (rows, length, ...) where positions are real,
        (rows, classes) everywhere. Both are rounded, so two floors lie between them.
        """
        name = key.partition(".")[2]
        floor = self.expected["max_abs_diff_f32_vs_f64_at_real_tokens"][name]
        one = EPSILON * self.expected["max_abs_at_real_tokens"][name]
        real = self.real if found.ndim > 2 else ...
        np.testing.assert_allclose(
            np.asarray(found)[real], self.arrays[key][real], rtol=0, atol=2 * floor + one, err_msg=key
        )

    def assert_loss(self, found: Array) -> None:
        """Compare the training loss with the float64 reference."""
        train = self.expected["train_no_dropout"]
        floor = abs(train["loss_f32"] - train["loss_f64"])
        np.testing.assert_allclose(float(found), train["loss_f64"], rtol=EPSILON, atol=floor)

    def assert_gradient_norms(self, gradients: Params) -> None:
        """Compare the norm of every parameter's gradient, and of them all, with the float64 reference."""
        flat = {key: np.asarray(value) for key, value in flatten(gradients).items()}
        found = to_huggingface(ARCHITECTURES[self.config.architecture].param_table(self.config), flat)
        train = self.expected["train_no_dropout"]
        expected: dict[str, float] = train["grad_norms_f64"]
        assert found.keys() == expected.keys()
        norms = {key: np.linalg.norm(gradient.astype(np.float64)) for key, gradient in found.items()}
        norms["all"] = np.linalg.norm(np.array(list(norms.values())))
        floor = abs(train["grad_global_norm_f32"] - train["grad_global_norm_f64"])
        for key, norm in norms.items():
            np.testing.assert_allclose(
                norm,
                {**expected, "all": train["grad_global_norm_f64"]}[key],
                rtol=GRADIENT_EPSILONS * EPSILON,
                atol=floor,
                err_msg=key,
            )


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


def next_sentence_loss(params: Params, hidden: Array, case: Case) -> Array:
    """Return the mean next-sentence loss of the stored labels."""
    labels = {
        "input_ids": case.inputs.input_ids,
        "next_sentence_label": jnp.asarray(case.arrays["label.next_sentence_label"], jnp.int32),
    }
    term = next_sentence_term(params, hidden, labels)
    return term.loss_sum / term.weight_sum
