"""ResNets in Hugging Face's format: transformers' ``ResNetForImageClassification``, both ways.

In: a folder, or parameters with their running statistics. Out: our arrays, or a folder with ``config.json``,
``model.safetensors``, ``preprocessor_config.json``, ``README.md`` and ``outlast.json``; of a small stem with
the file of code that computes it there (``small_stem``).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.huggingface import small_stem
from outlast.huggingface.folder import check_finite, check_target, training_rows, write_folder, write_json
from outlast.huggingface.image_processor import PREPROCESSOR_NAME
from outlast.huggingface.load import CONFIG_NAME, ConfigReader, naming, read_config, read_tensors
from outlast.huggingface.names import NamedArrays, from_huggingface, to_huggingface
from outlast.models.resnet import param_table, state_table
from outlast.models.resnet_config import ResNetConfig, StemName, check_resnet

MODEL_TYPE = "resnet"
MODEL_TYPES: Mapping[str, StemName] = {MODEL_TYPE: "large", small_stem.MODEL_TYPE: "small"}
"""The stem of each model type that is a ResNet."""

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
    model_type = read.choice("model_type", None, tuple(MODEL_TYPES))
    for key, supported in _FIXED.items():
        read.choice(key, supported, (supported,))
    labels = values.get("id2label")
    config = ResNetConfig(
        block=read.choice("layer_type", "bottleneck", ("basic", "bottleneck")),
        depths=_sizes(values, "depths", where),
        widths=_sizes(values, "hidden_sizes", where),
        stem_width=read.number("embedding_size", int, 1),
        stem=MODEL_TYPES[model_type],
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
    differences: str = "",
    provenance: Mapping[str, Any],
) -> Path:
    """Write a model folder and return its path.

    Args:
        params, state: float32, flat, by our names.
        classes: names of the classes in the order of their labels; None: numbers.
        preprocessor: what ``image_processor_config`` returns.
        differences: how far the pictures that it shows are from those of our evaluation, in words, for the
            model card.
        provenance: what the model comes from, of JSON values.

    Raises:
        ConfigError: the target is taken.
        OutlastError: values that do not fit the model or are not finite, or a disk that fails.
    """
    check_target(folder)
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
        if config.stem == "small":
            (temporary / small_stem.FILE_NAME).write_text(small_stem.SOURCE, encoding="utf-8")
        card = _model_card(folder.name, config, num_parameters, differences, provenance)
        (temporary / "README.md").write_text(card, encoding="utf-8")

    return write_folder(folder, tensors, write_files, provenance=provenance)


def _config(config: ResNetConfig, classes: Sequence[str] | None) -> dict[str, Any]:
    names = list(classes or [f"LABEL_{number}" for number in range(config.num_classes)])[: config.num_classes]
    stages = len(config.depths)
    kind: dict[str, Any] = {"architectures": ["ResNetForImageClassification"], "model_type": MODEL_TYPE}
    if config.stem == "small":
        kind = {
            "architectures": [small_stem.CLASS_NAME],
            "model_type": small_stem.MODEL_TYPE,
            "auto_map": small_stem.AUTO_MAP,
        }
    return {
        **kind,
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


def _model_card(
    name: str, config: ResNetConfig, num_parameters: int, differences: str, provenance: Mapping[str, Any]
) -> str:
    depth = sum(config.depths) * (2 if config.block == "basic" else 3) + 2
    is_small = config.stem == "small"
    trust = ", trust_remote_code=True" if is_small else ""
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

classify = pipeline("image-classification", model="{name}"{trust})
classify("image.jpg")
```
{_STEM_NOTE if is_small else ""}
## Pictures

{differences or _NOT_MEASURED}

## Training

| field | value |
|---|---|
{training_rows(provenance)}

## Licence, uses and limits

Not stated. The licence depends on the images the model was trained on; state it here before you pass the
model on, with the uses it is meant for.
"""


_STEM_NOTE = f"""
Its stem is one convolution of 3 x 3, for small pictures, which transformers' own class does not have:
`{small_stem.FILE_NAME}` beside the weights has it, and `trust_remote_code=True` lets it run.
"""
_NOT_MEASURED = """Where a picture is resized, transformers does it by another filter than the evaluation of
the training run did. By how much its pixels are others was not measured: the data set was not at hand."""
