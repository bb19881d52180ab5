"""Weights in Hugging Face's format, into our parameters.

In: a folder with ``config.json`` and ``model.safetensors`` of a BERT or RoBERTa model. Out: an
``EncoderConfig`` and a flat dict of numpy arrays. Pickled weights (``pytorch_model.bin``) are refused,
because reading a pickle runs whatever code is in it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors

from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.names import NamedArrays, from_huggingface
from outlast.models.architectures import ARCHITECTURES
from outlast.models.config import FAMILIES, ArchitectureName, EncoderConfig, check_encoder

WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"

_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
"""Layer norms in checkpoints converted from TensorFlow before 2020."""


def load_weights(folder: Path, *, with_head: bool = True) -> tuple[EncoderConfig, NamedArrays]:
    """Read a model.

    Args:
        folder: as ``save_pretrained`` and our export write it.
        with_head: also the masked-LM head; False for a model that has another head or none, whose own head
            (and pooler) is left out.

    Returns:
        The configuration, and float32 parameters by name (flat; ``unflatten`` makes the tree).

    Raises:
        OutlastError: files that are missing, pickled, damaged or do not fit each other.
        ConfigError: a model this package cannot compute exactly; the key is named.
    """
    config = read_encoder_config(folder)
    table = ARCHITECTURES[config.architecture].param_table(config)
    if not with_head:
        del table["head"]
    try:
        return config, from_huggingface(table, _read_tensors(folder))
    except OutlastError as error:
        raise OutlastError(error.message, where=str(folder / WEIGHTS_NAME), expected=error.expected) from None


def read_encoder_config(folder: Path) -> EncoderConfig:
    """Read ``config.json``. Raises OutlastError or ConfigError as ``load_weights``."""
    path = folder / CONFIG_NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OutlastError(
            "There is no model here.", where=str(path), expected="a folder with config.json"
        ) from None
    except (ValueError, RecursionError, OSError) as error:
        raise OutlastError(f"Cannot read the configuration: {error}", where=str(path)) from None
    if not isinstance(found, dict):
        raise OutlastError("The configuration is not a JSON object.", where=str(path))
    values = cast(dict[str, Any], found)
    family = values.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(
            f"The model type {family!r} is not known.",
            where=str(path),
            expected="one of " + ", ".join(FAMILIES),
        )
    _refuse_variants(values, str(path))
    return _encoder_config(values, family, str(path))


_VARIANTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""Keys whose other values mean a computation we do not do. An absent key means the value here."""


def _refuse_variants(values: Mapping[str, Any], where: str) -> None:
    for key, supported in _VARIANTS.items():
        if values.get(key, supported) != supported:
            raise ConfigError(
                f"{key} = {values[key]!r} is not supported.", where=where, expected=f"{supported!r}"
            )


def _encoder_config(values: Mapping[str, Any], architecture: ArchitectureName, where: str) -> EncoderConfig:
    def number(key: str, kind: type[int] | type[float], smallest: float) -> Any:
        value = values.get(key)
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or (kind is int and not isinstance(value, int)) or cast(float, value) < smallest:
            raise ConfigError(
                f"{key} is {value!r}.", where=where, expected=f"{kind.__name__} of {smallest} or more"
            )
        return value

    family = FAMILIES[architecture]
    pad_id = number("pad_token_id", int, 0)
    offset = pad_id + 1 if family.position_rule == "after_pad" else 0
    config = EncoderConfig(
        architecture=architecture,
        vocab_size=number("vocab_size", int, 1),
        num_layers=number("num_hidden_layers", int, 1),
        hidden_size=number("hidden_size", int, 1),
        num_heads=number("num_attention_heads", int, 1),
        intermediate_size=number("intermediate_size", int, 1),
        max_positions=number("max_position_embeddings", int, offset + 1) - offset,
        type_vocab_size=number("type_vocab_size", int, 1),
        pad_id=pad_id,
        position_rule=family.position_rule,
        dropout=number("hidden_dropout_prob", float, 0),
        attention_dropout=number("attention_probs_dropout_prob", float, 0),
        layer_norm_epsilon=number("layer_norm_eps", float, 0),
        initializer_range=number("initializer_range", float, 0),
        activation="gelu",
    )
    check_encoder(config, where=where)
    return config


def _read_tensors(folder: Path) -> NamedArrays:
    path = folder / WEIGHTS_NAME
    if not path.exists():
        raise _no_weights(folder)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            names = file.keys()
            tensors = {name: np.asarray(file.get_tensor(name)) for name in names}
    except (safetensors.SafetensorError, OSError, TypeError) as error:
        raise OutlastError(f"Cannot read the weights: {error}") from None
    for old, new in _OLD_NAMES.items():
        tensors = {
            name.removesuffix(old) + new if name.endswith(old) else name: tensors[name] for name in tensors
        }
    return tensors


def _no_weights(folder: Path) -> OutlastError:
    if (folder / "pytorch_model.bin").exists():
        return OutlastError(
            "The weights are pickled (pytorch_model.bin), and reading a pickle runs whatever code is in it.",
            expected=f"{WEIGHTS_NAME}",
        )
    if (folder / f"{WEIGHTS_NAME}.index.json").exists():
        return OutlastError("The weights are cut into several files.", expected=f"one {WEIGHTS_NAME}")
    return OutlastError("There are no weights here.", expected=WEIGHTS_NAME)
