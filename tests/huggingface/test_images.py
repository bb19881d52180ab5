"""ResNets in Hugging Face's format: what is written is read, and what transformers loads answers alike."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.images import (
    ImageModel,
    export_image_model,
    image_processor_config,
    load_image_model,
)
from outlast.models.params import flatten, init_params, unflatten
from outlast.models.resnet import classify, param_table, state_table
from outlast.models.resnet_config import ResNetModelConfig, StemName, resolve_resnet

PREPROCESSOR = image_processor_config(image_size=64, shorter_side=73, mean=(0.5,) * 3, deviation=(0.25,) * 3)


def make(stem: StemName = "large") -> ImageModel:
    config = resolve_resnet(
        ResNetModelConfig(preset="resnet50", stem=stem, depths=(1, 2), widths=(16, 32)), num_classes=3
    )
    tables = param_table(config), state_table(config)
    params, state = (
        {name: np.asarray(array) + 0.5 for name, array in flatten(init_params(table, 5)).items()}
        for table in tables
    )
    return ImageModel(config, params, state)


def export(model: ImageModel, folder: Path) -> Path:
    return export_image_model(
        model.params,
        model.state,
        model.config,
        folder,
        classes=("cat", "dog", "犬"),
        preprocessor=PREPROCESSOR,
        provenance={"step": 7},
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    model = make()
    found = load_image_model(export(model, tmp_path / "model"))
    assert found.config == model.config
    for ours, theirs in ((model.params, found.params), (model.state, found.state)):
        assert ours.keys() == theirs.keys()
        for name, array in ours.items():
            np.testing.assert_array_equal(theirs[name], array, err_msg=name)


def test_the_stored_checkpoint_is_read_and_written_with_the_same_tensors(
    test_data: Path, tmp_path: Path
) -> None:
    folder = test_data / "parity" / "resnet"
    written = load_file(export(load_image_model(folder), tmp_path / "model") / "model.safetensors")
    stored = load_file(folder / "model.safetensors")
    assert written.keys() == stored.keys()
    for name, array in stored.items():
        if not name.endswith("num_batches_tracked"):
            np.testing.assert_array_equal(written[name], array, err_msg=name)


def test_a_small_stem_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stem for small images"):
        export(make("small"), tmp_path / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "regnet", "model_type = 'regnet'"),
        ("hidden_act", "gelu", "hidden_act"),
        ("downsample_in_bottleneck", True, "downsample_in_bottleneck"),
        ("depths", [3, -1], "depths"),
        ("depths", [1], "make no ResNet"),
        ("hidden_sizes", "64", "hidden_sizes"),
        ("hidden_sizes", [10, 33], "do not divide"),
        ("embedding_size", None, "embedding_size"),
        ("hidden_sizes", [16, 64], "has shape"),
        ("depths", [1, 3], "lack"),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, key: str, value: Any, message: str) -> None:
    folder = export(make(), tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(OutlastError, match=message):
        load_image_model(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = export(make(), tmp_path / "model")
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
    with pytest.raises(OutlastError, match="pickled"):
        load_image_model(folder)


@pytest.mark.peers
def test_transformers_loads_it_and_answers_alike(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForImageClassification

    model = make()
    folder = export(model, tmp_path / "model")
    theirs: Any = AutoModelForImageClassification.from_pretrained(folder).eval()
    assert theirs.config.id2label == {0: "cat", 1: "dog", 2: "犬"}
    images = np.random.default_rng(0).standard_normal((2, 64, 64, 3), np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).logits.numpy()
    params, state = (
        unflatten({name: jnp.asarray(array) for name, array in part.items()})
        for part in (model.params, model.state)
    )
    found, _ = classify(params, state, jnp.asarray(images), config=model.config, train=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
