"""ResNets in Hugging Face's format: what is written is read, and what transformers loads answers alike."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.images import ImageModel, load_image_model, read_class_names
from outlast.models.params import unflatten
from outlast.models.resnet import classify
from outlast.models.resnet_config import StemName
from support.pretrained import resnet_folder, small_resnet

CLASSES = ("cat", "dog", "犬")


def export(model: ImageModel, folder: Path) -> Path:
    return resnet_folder(model, folder, CLASSES)


@pytest.mark.parametrize("stem", ["large", "small"])
def test_what_is_written_is_read(tmp_path: Path, stem: StemName) -> None:
    model = small_resnet(stem=stem)
    folder = export(model, tmp_path / "model")
    found = load_image_model(folder)
    assert found.config == model.config
    assert read_class_names(folder) == CLASSES
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


def test_a_small_stem_brings_its_code_and_is_no_ordinary_resnet(tmp_path: Path) -> None:
    folder = export(small_resnet(stem="small"), tmp_path / "model")
    values = json.loads((folder / "config.json").read_text())
    assert values["model_type"] == "outlast_resnet"
    (code,) = {name.partition(".")[0] for name in values["auto_map"].values()}
    source = (folder / f"{code}.py").read_text()
    for name in values["auto_map"].values():
        assert f"class {name.partition('.')[2]}(" in source
    compile(source, code, "exec")
    assert "trust_remote_code=True" in (folder / "README.md").read_text()
    assert f"{code}.py" in json.loads((folder / "outlast.json").read_text())["files"]
    assert not list(export(small_resnet(), tmp_path / "large").glob("*.py"))


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
    folder = export(small_resnet(), tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(OutlastError, match=message):
        load_image_model(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = export(small_resnet(), tmp_path / "model")
    shutil.move(folder / "model.safetensors", folder / "pytorch_model.bin")
    with pytest.raises(OutlastError, match="pickled"):
        load_image_model(folder)


def test_class_names_that_are_but_numbers_are_none_and_gaps_are_refused(tmp_path: Path) -> None:
    folder = resnet_folder(small_resnet(), tmp_path / "model", None)
    assert read_class_names(folder) is None
    path = folder / "config.json"
    for labels in ({"0": "a", "2": "b", "3": "c"}, {"0": "a", "1": 7, "2": "b"}):
        path.write_text(json.dumps({**json.loads(path.read_text()), "id2label": labels}))
        with pytest.raises(ConfigError, match="does not name each class"):
            read_class_names(folder)


def test_weights_that_are_no_floats_or_not_finite_are_refused(tmp_path: Path) -> None:
    folder = export(small_resnet(), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    for name, value, message in (
        ("classifier.1.bias", np.zeros(3, np.int8), "is I8"),
        ("classifier.1.bias", np.array([1, np.nan, 1], np.float32), r"not finite: classifier\.1\.bias"),
        (
            "resnet.embedder.embedder.normalization.running_var",
            np.full(4, np.inf, np.float32),
            r"not finite: .*running_var",
        ),
    ):
        save_file({**tensors, name: value}, folder / "model.safetensors")
        with pytest.raises(OutlastError, match=message):
            load_image_model(folder)


@pytest.mark.peers
@pytest.mark.parametrize("stem", ["large", "small"])
def test_transformers_loads_it_and_answers_alike(
    tmp_path: Path, stem: StemName, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers.dynamic_module_utils
    from transformers import AutoModelForImageClassification

    # Where the library copies code to before it runs it.
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = small_resnet(stem=stem)
    folder = export(model, tmp_path / "model")
    trust: dict[str, Any] = {"trust_remote_code": True} if stem == "small" else {}
    theirs: Any = AutoModelForImageClassification.from_pretrained(folder, **trust).eval()
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
