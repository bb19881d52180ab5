"""ResNet against what transformers computes with the same weights (OUTLAST_TEST_DATA/parity).

On such small images the training mode is ill-conditioned: the library's own float32 and float64 differ by
more than 1e-4. So outputs are compared in float32 by what the library's float32 is off, and gradients in
float64.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray
from safetensors.numpy import load_file

from outlast.huggingface.names import from_huggingface, to_huggingface
from outlast.models.params import Params, ParamTable, flatten, unflatten
from outlast.models.resnet import ModelState, classify, param_table, stage_outputs, state_table
from outlast.models.resnet_config import ResNetConfig, ResNetModelConfig, resolve_resnet

CASES = ("img64", "img97x75")


class Case:
    """A stored case: weights, images, and what the library computed."""

    def __init__(self, test_data: Path, name: str) -> None:
        folder = test_data / "parity" / "resnet"
        values = json.loads((folder / "config.json").read_text())
        self.config = ResNetConfig(
            block=values["layer_type"],
            depths=tuple(values["depths"]),
            widths=tuple(values["hidden_sizes"]),
            stem_width=values["embedding_size"],
            stem="large",
            num_channels=3,
            num_classes=len(values["id2label"]),
        )
        self.tensors = load_file(folder / "model.safetensors")
        with np.load(folder / f"{name}.npz") as file:
            self.arrays: dict[str, NDArray[Any]] = dict(file)
        self.expected: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
        self.images = channels_last(self.arrays["in.pixel_values"])
        self.labels = self.arrays["label.labels"].astype(np.int32)

    def tree(self, table: ParamTable, dtype: type[np.floating[Any]] = np.float32) -> Params:
        return read_tree(table, self.tensors, dtype)

    def floor(self, output: str) -> float:
        """How far the library's float32 is from its float64."""
        return self.expected["max_abs_diff_f32_vs_f64_at_real_tokens"][output]

    def loss(
        self, params: Params, state: ModelState, images: Array
    ) -> tuple[Array, tuple[Array, ModelState]]:
        logits, after = classify(
            params, state, images, config=self.config, train=True, compute_dtype=images.dtype
        )
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(self.labels)[:, None], axis=1)
        return -jnp.mean(chosen), (logits, after)


def channels_last(images: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1))


def read_tree(
    table: ParamTable, tensors: dict[str, NDArray[Any]], dtype: type[np.floating[Any]] = np.float32
) -> Params:
    flat = from_huggingface(table, tensors)
    return unflatten({name: jnp.asarray(array.astype(dtype)) for name, array in flat.items()})


def under_their_names(table: ParamTable, tree: Params) -> dict[str, NDArray[Any]]:
    return to_huggingface(table, {name: np.asarray(array) for name, array in flatten(tree).items()})


@pytest.mark.parametrize("name", CASES)
def test_every_stage_and_the_logits(test_data: Path, name: str) -> None:
    case = Case(test_data, name)
    params, state = case.tree(param_table(case.config)), case.tree(state_table(case.config))
    found = stage_outputs(params, state, jnp.asarray(case.images), config=case.config)
    assert len(found) == len(case.config.depths) + 1
    for number, output in enumerate(found):
        key = f"hidden_states.{number}"
        expected = channels_last(case.arrays[f"eval.{key}"])
        np.testing.assert_allclose(output, expected, rtol=0, atol=case.floor(key))
    logits, after = classify(params, state, jnp.asarray(case.images), config=case.config, train=False)
    np.testing.assert_allclose(logits, case.arrays["eval.logits"], rtol=0, atol=case.floor("logits"))
    for name_, kept in flatten(after).items():
        np.testing.assert_array_equal(kept, flatten(state)[name_], err_msg=name_)


@pytest.mark.parametrize("name", CASES)
def test_training_loss_running_statistics_and_every_gradient(test_data: Path, name: str) -> None:
    case = Case(test_data, name)
    with jax.enable_x64(True):
        params = case.tree(param_table(case.config), np.float64)
        state = case.tree(state_table(case.config), np.float64)
        images = jnp.asarray(case.images, jnp.float64)
        step = jax.jit(jax.value_and_grad(case.loss, has_aux=True))
        (loss, (_, after)), gradients = step(params, state, images)
        found = under_their_names(param_table(case.config), gradients)
        statistics = under_their_names(state_table(case.config), after)
    expected = case.expected["train_no_dropout"]
    np.testing.assert_allclose(float(loss), expected["loss_f64"], rtol=1e-9)
    norms = {key: float(np.linalg.norm(gradient)) for key, gradient in found.items()}
    assert norms.keys() == expected["grad_norms_f64"].keys()
    for key, norm in norms.items():
        np.testing.assert_allclose(norm, expected["grad_norms_f64"][key], rtol=1e-6, err_msg=key)
    stored = {key for key in case.arrays if key.startswith("train.buffer_after.") and "running" in key}
    assert stored == {f"train.buffer_after.{key}" for key in statistics}
    for key, value in statistics.items():
        # The stored ones are float32.
        np.testing.assert_allclose(
            value, case.arrays[f"train.buffer_after.{key}"], rtol=1e-4, atol=1e-4, err_msg=key
        )


def test_the_whole_resnet50(test_data: Path) -> None:
    folder = test_data / "parity" / "resnet50_full_recipe"
    recipe = json.loads((folder / "eval.json").read_text())
    config = resolve_resnet(ResNetModelConfig(preset="resnet50"), num_classes=1000)

    def drawn(name: str, shape: list[int]) -> NDArray[np.float32]:
        generator = np.random.RandomState(zlib.crc32(name.encode()) ^ recipe["BASE"])
        size = int(np.prod(shape))
        if name.endswith("running_mean"):
            values = 0.1 * generator.standard_normal(size)
        elif name.endswith("running_var"):
            values = 0.5 + generator.random_sample(size)
        elif name.endswith("normalization.weight"):
            values = 0.5 + 0.5 * generator.random_sample(size)
        elif len(shape) == 1:
            values = 0.05 * generator.standard_normal(size)
        else:
            values = generator.standard_normal(size) * np.sqrt(2 / np.prod(shape[1:]))
        return values.reshape(shape).astype(np.float32)

    tensors = {name: drawn(name, shape) for name, shape in recipe["names"].items() if shape}
    with np.load(folder / "eval.npz") as file:
        images = channels_last((file["in.pixel_values_u8"].astype(np.float32) / 255 - 0.5) / np.float32(0.25))
        expected, exact = file["eval.logits"], file["eval.logits_f64"]

    def logits(dtype: type[np.floating[Any]]) -> NDArray[Any]:
        params = read_tree(param_table(config), tensors, dtype)
        state = read_tree(state_table(config), tensors, dtype)
        found, _ = classify(
            params, state, jnp.asarray(images, dtype), config=config, train=False, compute_dtype=dtype
        )
        return np.asarray(found)

    np.testing.assert_allclose(logits(np.float32), expected, rtol=0, atol=1e-4)
    with jax.enable_x64(True):
        np.testing.assert_allclose(logits(np.float64), exact, rtol=0, atol=1e-9)
