"""Reading models in Hugging Face's format, and the ones that are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.load import load_weights, read_encoder_config
from outlast.huggingface.names import from_huggingface, to_huggingface
from outlast.models.bert import param_table

ABSENT = object()
RANDOM_BLOCKS = {
    "random_block_seed": 0,
    "random_blocks": "uniform",
    "evaluation_random_blocks": "same",
}


@pytest.fixture
def roberta(test_data: Path, tmp_path: Path) -> Path:
    """A writable copy of a RoBERTa model that transformers saved."""
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(test_data / "parity" / "roberta_mlm" / name, tmp_path / name)
    return tmp_path


def set_config(folder: Path, **values: Any) -> None:
    """Set keys; ABSENT takes one away."""
    path = folder / "config.json"
    changed = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not ABSENT}))


def test_numbers_come_from_the_configuration(roberta: Path) -> None:
    config = read_encoder_config(roberta)
    assert (config.num_layers, config.hidden_size, config.num_heads, config.vocab_size) == (3, 64, 4, 600)
    assert (config.pad_id, config.max_positions, config.num_position_rows) == (1, 64, 66)


def test_names_there_and_back_give_the_same_tensors(roberta: Path) -> None:
    config, params = load_weights(roberta)
    back = to_huggingface(param_table(config), params)
    original = load_file(roberta / "model.safetensors")
    assert back.keys() == original.keys()
    for name, tensor in original.items():
        np.testing.assert_array_equal(back[name], tensor)
    for name, array in from_huggingface(param_table(config), back).items():
        np.testing.assert_array_equal(array, params[name])


def test_old_names_of_layer_norms_are_read(roberta: Path) -> None:
    _, expected = load_weights(roberta)
    tensors = load_file(roberta / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    assert old.keys() != tensors.keys()
    save_file(old, roberta / "model.safetensors")
    _, params = load_weights(roberta)
    for name, array in expected.items():
        np.testing.assert_array_equal(params[name], array)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_widened(roberta: Path, dtype: Any) -> None:
    tensors = load_file(roberta / "model.safetensors")
    save_file({name: tensor.astype(dtype) for name, tensor in tensors.items()}, roberta / "model.safetensors")
    _, params = load_weights(roberta)
    expected = tensors["lm_head.bias"].astype(dtype).astype(np.float32)
    assert params["head/bias"].dtype == np.float32
    np.testing.assert_array_equal(params["head/bias"], expected)


def test_an_encoder_with_another_head_loads_without_it(test_data: Path) -> None:
    folder = test_data / "parity" / "bert_seqcls_3way"
    _, params = load_weights(folder, with_head=False)
    assert not any(name.startswith("head/") for name in params)
    with pytest.raises(OutlastError, match=r"lack 5 tensors: cls\.predictions"):
        load_weights(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "t5"}, "model type 't5' is not known"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu' is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"is_decoder": True}, "is_decoder"),
        ({"num_attention_heads": 5}, "does not divide into 5 heads"),
        ({"pad_token_id": None}, "pad_token_id is None"),
        ({"pad_token_id": 9999}, "max_position_embeddings is 66"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"layer_norm_eps": True}, "layer_norm_eps is True"),
    ],
)
def test_models_that_are_not_exactly_ours_are_refused(
    roberta: Path, values: dict[str, Any], message: str
) -> None:
    set_config(roberta, **values)
    with pytest.raises(ConfigError, match=message) as caught:
        load_weights(roberta)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("model", "values", "message"),
    [
        ("bigbird_pretraining", {"block_size": 2.7}, "block_size is 2.7"),
        ("bigbird_pretraining", {"num_random_blocks": "3"}, "num_random_blocks is '3'"),
        ("bigbird_pretraining", {"attention_type": "full"}, "attention_type = 'full'"),
        (
            "bigbird_pretraining",
            {"outlast_random_blocks": {"random_block_seed": 0}},
            "outlast_random_blocks is",
        ),
        (
            "bigbird_pretraining",
            {"outlast_random_blocks": {**RANDOM_BLOCKS, "random_blocks": "none"}},
            "random_blocks = 'none'",
        ),
        ("modernbert_mlm", {"layer_types": 5}, "layer_types is no regular pattern"),
        ("modernbert_mlm", {"hidden_activation": "gelu_new"}, "classifier_activation = 'gelu'"),
        (
            "modernbert_mlm",
            {"hidden_activation": "gelu_new", "classifier_activation": ABSENT},
            "classifier_act",
        ),
    ],
)
def test_patterns_and_activations_that_are_not_ours_are_refused(
    test_data: Path, tmp_path: Path, model: str, values: dict[str, Any], message: str
) -> None:
    shutil.copyfile(test_data / "parity" / model / "config.json", tmp_path / "config.json")
    set_config(tmp_path, **values)
    with pytest.raises(ConfigError, match=message):
        read_encoder_config(tmp_path)


def test_weights_that_do_not_fit_the_configuration_are_named(roberta: Path) -> None:
    set_config(roberta, num_hidden_layers=4)
    with pytest.raises(OutlastError, match=r"lack 16 tensors: roberta\.encoder\.layer\.3"):
        load_weights(roberta)
    set_config(roberta, num_hidden_layers=3, intermediate_size=256)
    with pytest.raises(OutlastError, match=r"intermediate\.dense\.weight has shape \(128, 64\)"):
        load_weights(roberta)


def test_pickled_weights_are_refused_with_the_reason(roberta: Path) -> None:
    (roberta / "model.safetensors").rename(roberta / "pytorch_model.bin")
    with pytest.raises(OutlastError, match="reading a pickle runs whatever code is in it"):
        load_weights(roberta)


def test_weights_in_several_files_and_no_weights_are_refused(roberta: Path) -> None:
    (roberta / "model.safetensors").unlink()
    with pytest.raises(OutlastError, match="There are no weights here"):
        load_weights(roberta)
    (roberta / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(OutlastError, match="cut into several files"):
        load_weights(roberta)


@pytest.mark.parametrize("keep", [0, 7, 8, 1000, -1])
def test_weights_cut_short_are_refused(roberta: Path, keep: int) -> None:
    path = roberta / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(OutlastError, match="Cannot read the weights"):
        load_weights(roberta)


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass")])
def test_configurations_that_are_none_are_refused(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(OutlastError, match="onfiguration"):
        load_weights(tmp_path)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(OutlastError, match="There is no model here"):
        load_weights(tmp_path / "nowhere")
