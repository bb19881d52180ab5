"""ResNets in Hugging Face's format: transformers' ``ResNetForImageClassification``, both ways.

In: a folder, or parameters with their running statistics. Out: our arrays, or a folder with ``config.json``,
``model.safetensors``, ``preprocessor_config.json``, ``README.md`` and ``outlast.json``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.huggingface.folder import check_finite, check_target, training_rows, write_folder, write_json
from outlast.huggingface.image_processor import PREPROCESSOR_NAME
from outlast.huggingface.load import CONFIG_NAME, ConfigReader, naming, read_config, read_tensors
from outlast.huggingface.names import NamedArrays, from_huggingface, to_huggingface
from outlast.models.resnet import param_table, state_table
from outlast.models.resnet_config import ResNetConfig, check_resnet

MODEL_TYPE = "resnet"

_FIXED: dict[str, Any] = {
    "hidden_act": "relu",
    "downsample_in_first_stage": False,
    "downsample_in_bottleneck": False,
}
"""Keys whose other values mean a computation we do not do. An absent key means the value here."""
_BATCHES = "num_batches_tracked"


class ImageModel(NamedTuple):
    """A model as its file has it: parameters and running statistics float32, flat, by our names."""

    config: ResNetConfig
    params: NamedArrays
    state: NamedArrays


def load_image_model(folder: Path) -> ImageModel:
    """Read a ResNet.

    Raises:
        OutlastError: files that are missing, pickled, damaged, quantised or do not fit each other.
        ConfigError: a model this package cannot compute exactly; the key is named.
    """
    config = read_resnet_config(folder)
    with naming(folder):
        tensors = read_tensors(folder)
        params = from_huggingface(param_table(config), tensors)
        return ImageModel(config, params, from_huggingface(state_table(config), tensors))


def read_class_names(folder: Path) -> tuple[str, ...] | None:
    """Return the names of the classes in the order of their labels, None where they are but numbered."""
    labels = read_config(folder).get("id2label")
    if not isinstance(labels, dict):
        return None
    found = cast(dict[str, Any], labels)
    names = tuple(found.get(f"{number}") for number in range(len(found)))
    if not all(isinstance(name, str) for name in names):
        raise ConfigError(
            "id2label does not name each class.",
            where=str(folder / CONFIG_NAME),
            expected=f'a text for each of "0" to "{len(found) - 1}"',
        )
    numbered = all(name == f"LABEL_{number}" for number, name in enumerate(names))
    return None if numbered else cast(tuple[str, ...], names)


def read_resnet_config(folder: Path) -> ResNetConfig:
    """Read ``config.json``. Raises OutlastError or ConfigError as ``load_image_model``."""
    where = str(folder / CONFIG_NAME)
    values = read_config(folder)
    read = ConfigReader(values, where)
    read.choice("model_type", None, (MODEL_TYPE,))
    for key, supported in _FIXED.items():
        read.choice(key, supported, (supported,))
    labels = values.get("id2label")
    config = ResNetConfig(
        block=read.choice("layer_type", "bottleneck", ("basic", "bottleneck")),
        depths=_sizes(values, "depths", where),
        widths=_sizes(values, "hidden_sizes", where),
        stem_width=read.number("embedding_size", int, 1),
        stem="large",
        num_channels=read.number("num_channels", int, 1),
        # transformers writes no labels where there are two without names.
        num_classes=len(cast(dict[str, Any], labels)) if isinstance(labels, dict) else 2,
    )
    check_resnet(config, where=where)
    return config


def export_image_model(
    params: Mapping[str, NDArray[Any]],
    state: Mapping[str, NDArray[Any]],
    config: ResNetConfig,
    folder: Path,
    *,
    classes: Sequence[str] | None,
    preprocessor: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Path:
    """Write a model folder and return its path.

    Args:
        params, state: float32, flat, by our names.
        classes: names of the classes in the order of their labels; None: numbers.
        preprocessor: what ``image_processor_config`` returns.
        provenance: what the model comes from, of JSON values.

    Raises:
        ConfigError: the target is taken, or a stem that the library's class does not have.
        OutlastError: values that do not fit the model or are not finite, or a disk that fails.
    """
    check_target(folder)
    if config.stem != "large":
        raise ConfigError(
            "transformers' ResNet has no stem for small images.",
            where="[model] stem",
            expected="large",
            remedy="the checkpoint's parts are safetensors files, and load as they are; "
            'or train with model.stem = "large"',
        )
    check_finite({**params, **state})
    tensors = to_huggingface(param_table(config), params)
    statistics = to_huggingface(state_table(config), state)
    num_parameters = sum(tensor.size for tensor in tensors.values())
    for name, tensor in statistics.items():
        tensors[name] = tensor
        if name.endswith("running_mean"):
            # The library counts batches here, and reads the count only where its momentum is None.
            tensors[name.removesuffix("running_mean") + _BATCHES] = np.zeros((), np.int64)

    def write_files(temporary: Path) -> None:
        write_json(temporary / CONFIG_NAME, _config(config, classes))
        write_json(temporary / PREPROCESSOR_NAME, dict(preprocessor))
        card = _model_card(folder.name, config, num_parameters, provenance)
        (temporary / "README.md").write_text(card, encoding="utf-8")

    return write_folder(folder, tensors, write_files, provenance=provenance)


def _config(config: ResNetConfig, classes: Sequence[str] | None) -> dict[str, Any]:
    names = list(classes or [f"LABEL_{number}" for number in range(config.num_classes)])[: config.num_classes]
    stages = len(config.depths)
    return {
        "architectures": ["ResNetForImageClassification"],
        "model_type": MODEL_TYPE,
        "layer_type": config.block,
        "depths": list(config.depths),
        "hidden_sizes": list(config.widths),
        "embedding_size": config.stem_width,
        "num_channels": config.num_channels,
        **_FIXED,
        "id2label": {f"{number}": name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
        "stage_names": ["stem", *(f"stage{number + 1}" for number in range(stages))],
        "out_features": [f"stage{stages}"],
        "out_indices": [stages],
        "problem_type": "single_label_classification",
        "dtype": "float32",
    }


def _sizes(values: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    found = values.get(key)
    numbers = cast(list[Any], found) if isinstance(found, list) else []
    if not 1 <= len(numbers) <= _MOST_STAGES or not all(
        type(number) is int and 1 <= number <= _MOST for number in numbers
    ):
        raise ConfigError(
            f"{key} is {str(found)[:100]}.",
            where=where,
            expected=f"a list of 1 to {_MOST_STAGES} integers, from 1 to {_MOST}",
        )
    return tuple(numbers)


_MOST_STAGES, _MOST = 16, 100_000
"""So that a damaged file costs neither time nor memory."""


def _model_card(name: str, config: ResNetConfig, num_parameters: int, provenance: Mapping[str, Any]) -> str:
    depth = sum(config.depths) * (2 if config.block == "basic" else 3) + 2
    return f"""---
library_name: transformers
pipeline_tag: image-classification
tags:
- {MODEL_TYPE}
- outlast
---

# {name}

A ResNet-{depth} of {config.block} blocks: {num_parameters:,} parameters, {config.num_classes:,} classes,
trained with Outlast.

```python
from transformers import pipeline

classify = pipeline("image-classification", model="{name}")
classify("image.jpg")
```

## Training

| field | value |
|---|---|
{training_rows(provenance)}

## Licence, uses and limits

Not stated. The licence depends on the images the model was trained on; state it here before you pass the
model on, with the uses it is meant for.
"""
