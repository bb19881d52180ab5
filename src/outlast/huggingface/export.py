"""A trained model as a folder that transformers, and our own inference, load.

In: parameters, the model's numbers, special ids, a function that writes the tokenizer's files. Out: a
folder with ``config.json``, ``model.safetensors``, the tokenizer, ``README.md`` and ``outlast.json``, which
holds where the model comes from and the sha256 of every other file. The folder appears whole or not at all:
it is written beside its place and renamed.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.load import CONFIG_NAME, MODEL_TYPES, SPARSE_KEY, WEIGHTS_NAME
from outlast.huggingface.names import to_huggingface
from outlast.models.architectures import ARCHITECTURES
from outlast.models.config import Alternating, ArchitectureName, BlockSparse, EncoderConfig

PROVENANCE_NAME = "outlast.json"
FORMAT = "outlast-export"
VERSION = 1

_CLASSES: dict[ArchitectureName, str] = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "bigbird": "BigBirdForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
}


def export_model(
    params: Mapping[str, NDArray[Any]],
    config: EncoderConfig,
    folder: Path,
    *,
    special_ids: Mapping[str, int],
    write_tokenizer: Callable[[Path], object],
    provenance: Mapping[str, Any],
) -> Path:
    """Write a model folder and return its path.

    Args:
        params: float32, flat, by our names.
        special_ids: ids by role (pad, cls, sep, mask, unk), from the tokenizer's manifest.
        write_tokenizer: writes the tokenizer's files into the folder it is given.
        provenance: what the model comes from, of JSON values; goes into the model card and ``outlast.json``.

    Raises:
        ConfigError: the target exists and is not an empty folder, or the pad id is not the one trained with.
        OutlastError: parameters that do not fit the model or are not finite, or a disk that fails.
    """
    _check_target(folder)
    if special_ids["pad"] != config.pad_id:
        raise ConfigError(
            f"The tokenizer pads with {special_ids['pad']}, the model was trained with {config.pad_id}.",
            remedy="export with the tokenizer the data was prepared with",
        )
    not_finite = [name for name, value in params.items() if not np.isfinite(value).all()]
    if not_finite:
        raise OutlastError("Some parameters are not finite: " + ", ".join(not_finite) + ".")
    tensors = to_huggingface(ARCHITECTURES[config.architecture].param_table(config), params)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.parent / f".{folder.name}.tmp-{uuid.uuid4().hex}"
        temporary.mkdir()
        try:
            save_file(tensors, temporary / WEIGHTS_NAME, metadata={"format": "pt"})
            _write_json(temporary / CONFIG_NAME, huggingface_config(config, special_ids))
            write_tokenizer(temporary)
            num_parameters = sum(tensor.size for tensor in tensors.values())
            card = model_card(folder.name, config, num_parameters, provenance)
            (temporary / "README.md").write_text(card, encoding="utf-8")
            _write_provenance(temporary, special_ids, provenance)
            _flush(temporary)
            os.rename(temporary, folder)  # replaces an empty folder, fails on any other
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise OutlastError(
            f"Cannot write the model: {error.strerror or error}.", where=str(folder)
        ) from error
    return folder


def huggingface_config(config: EncoderConfig, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of ``config.json``.

    transformers computes RoBERTa's positions from ``pad_token_id``, so that id and a table that begins
    behind it make it read the rows that were trained.
    """
    common = {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": MODEL_TYPES[config.architecture],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": config.num_position_rows,
        "initializer_range": config.initializer_range,
        "pad_token_id": config.pad_id,
        "bos_token_id": special_ids.get("cls"),
        "eos_token_id": special_ids.get("sep"),
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    if config.alternating is not None:
        return common | _modernbert_config(config, config.alternating, special_ids)
    bert = {
        "hidden_act": config.activation,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.layer_norm_epsilon,
    }
    return common | bert | (_bigbird_config(config.sparse) if config.architecture == "bigbird" else {})


def _modernbert_config(
    config: EncoderConfig, alternating: Alternating, special_ids: Mapping[str, int]
) -> dict[str, Any]:
    every, rope = alternating.global_every, {"rope_type": "default"}
    return {
        "hidden_activation": config.activation,
        "classifier_activation": config.activation,
        "embedding_dropout": config.dropout,
        "mlp_dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "norm_eps": config.layer_norm_epsilon,
        "layer_types": [
            "sliding_attention" if layer % every else "full_attention" for layer in range(config.num_layers)
        ],
        "local_attention": 2 * alternating.local_reach,
        "rope_parameters": {
            "full_attention": {**rope, "rope_theta": alternating.global_theta},
            "sliding_attention": {**rope, "rope_theta": alternating.local_theta},
        },
        "cls_token_id": special_ids.get("cls"),
        "sep_token_id": special_ids.get("sep"),
    }


def _bigbird_config(sparse: BlockSparse | None) -> dict[str, Any]:
    if sparse is None:
        return {"attention_type": "original_full"}
    return {
        "attention_type": "block_sparse",
        "block_size": sparse.block_size,
        "num_random_blocks": sparse.num_random_blocks,
        "rescale_embeddings": False,
        "use_bias": True,
        SPARSE_KEY: {
            "random_block_seed": sparse.random_block_seed,
            "random_blocks": sparse.random_blocks,
            "evaluation_random_blocks": sparse.evaluation_random_blocks,
        },
    }


def model_card(name: str, config: EncoderConfig, num_parameters: int, provenance: Mapping[str, Any]) -> str:
    """Return the text of README.md: what is known of the model, and what only its maker can say."""
    rows = "\n".join(f"| {key} | {value} |" for key, value in _flat_rows(provenance, ""))
    sizes = (
        f"A {_CLASSES[config.architecture]} with {num_parameters:,} parameters, trained with Outlast: "
        f"{config.num_layers} layers, hidden size {config.hidden_size}, {config.num_heads} heads, "
        f"{config.vocab_size:,} pieces, sequences of up to {config.max_positions} tokens."
    )
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
tags:
- {MODEL_TYPES[config.architecture]}
- outlast
---

# {name}

{sizes}

```python
from transformers import pipeline

fill_mask = pipeline("fill-mask", model="{name}")
fill_mask(f"... {{fill_mask.tokenizer.mask_token}} ...")
```

## Training

| field | value |
|---|---|
{rows}

## Licence, uses and limits

Not stated. The licence depends on the texts the model was trained on; state it here before you pass the
model on, with the uses it is meant for. A model of this kind repeats what is in its training text, errors
and biases included.
"""


def _flat_rows(value: Mapping[str, Any], prefix: str) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, item in value.items():
        if isinstance(item, Mapping):
            rows += _flat_rows(cast(Mapping[str, Any], item), f"{prefix}{key}.")
        elif item is not None:
            rows.append((f"{prefix}{key}", str(item).replace("|", "\\|").replace("\n", " ")))
    return rows


def _check_target(folder: Path) -> None:
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise ConfigError(
            "The place for the model is taken.",
            where=str(folder),
            expected="a name that does not exist, or an empty folder",
            remedy="choose another name, or remove what is there",
        )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_provenance(folder: Path, special_ids: Mapping[str, int], provenance: Mapping[str, Any]) -> None:
    files = {path.name: path for path in sorted(folder.iterdir())}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "special_ids": dict(special_ids),
        "provenance": dict(provenance),
        "sha256": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()},
    }
    _write_json(folder / PROVENANCE_NAME, document)


def _flush(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
