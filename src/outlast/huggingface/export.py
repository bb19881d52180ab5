"""A trained model as a folder that transformers, and our own inference, load.

In: parameters, the model's numbers, special ids, a function that writes the tokenizer's files. Out: a
folder with ``config.json``, ``model.safetensors``, the tokenizer, ``README.md`` and ``outlast.json``, which
holds where the model comes from and the sha256 of every file but the model card. The folder appears whole or
not at all: it is written beside its place and renamed.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.huggingface.folder import (
    check_finite,
    check_target,
    training_rows,
    write_folder,
    write_json,
)
from outlast.huggingface.load import CONFIG_NAME, PRETRAINING, SPARSE_KEY
from outlast.huggingface.names import to_huggingface
from outlast.huggingface.tokenizer_files import tokenizer_json
from outlast.models.architectures import ARCHITECTURES
from outlast.models.attention.random_blocks import BlockSparse, longest_in_full
from outlast.models.config import FAMILIES, Alternating, EncoderConfig
from outlast.tokenizer.encode import Tokenizer


def class_name(config: EncoderConfig) -> str:
    """Return transformers' class of the model with the heads it has."""
    heads = PRETRAINING if config.next_sentence else "ForMaskedLM"
    return FAMILIES[config.architecture].class_prefix + heads


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
    check_target(folder)
    _check_pad(config, special_ids)
    check_finite(params)
    tensors = to_huggingface(ARCHITECTURES[config.architecture].param_table(config), params)

    def write_files(temporary: Path) -> None:
        write_json(temporary / CONFIG_NAME, huggingface_config(config, special_ids))
        write_tokenizer(temporary)
        num_parameters = sum(tensor.size for tensor in tensors.values())
        card = model_card(folder.name, config, num_parameters, provenance)
        (temporary / "README.md").write_text(card, encoding="utf-8")

    return write_folder(folder, tensors, write_files, provenance=provenance, special_ids=special_ids)


def check_exportable(config: EncoderConfig, names: Collection[str], tokenizer: Tokenizer) -> None:
    """Check all that an export may be refused for, except its place and its values. It is done before a run
    trains for hours, and again before the export.

    Args:
        names: of the parameters there are, flat.

    Raises:
        ConfigError: an encoder without its masked-LM head, or another pad id than the one trained with.
        TokenizerError: a tokenizer that has no form in Hugging Face's format.
    """
    if not any(name.startswith("head/") for name in names):
        raise ConfigError(
            "There is no masked-LM head to export: the model was imported without one, as a classifier is.",
            expected=f"a {class_name(config)}",
            remedy="train it first: `outlast train RECIPE --run-dir NEW --initialize-from IMPORT` makes one",
        )
    _check_pad(config, tokenizer.manifest.special_ids)
    tokenizer_json(tokenizer, type_vocab_size=config.type_vocab_size)


def _check_pad(config: EncoderConfig, special_ids: Mapping[str, int]) -> None:
    if special_ids["pad"] != config.pad_id:
        raise ConfigError(
            f"The tokenizer pads with {special_ids['pad']}, the model was trained with {config.pad_id}.",
            remedy="export with the tokenizer the data was prepared with",
        )


def huggingface_config(config: EncoderConfig, special_ids: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of ``config.json``.

    transformers computes RoBERTa's positions from ``pad_token_id``, so that id and a table that begins
    behind it make it read the rows that were trained.
    """
    family = FAMILIES[config.architecture]
    common = {
        "architectures": [class_name(config)],
        "model_type": family.model_type,
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
        **dict.fromkeys(family.hidden_size_keys, config.hidden_size),
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
    rows = training_rows(provenance)
    sizes = (
        f"A {class_name(config)} with {num_parameters:,} parameters, trained with Outlast: "
        f"{config.num_layers} layers, hidden size {config.hidden_size}, {config.num_heads} heads, "
        f"{config.vocab_size:,} pieces, sequences of up to {config.max_positions} tokens."
    )
    return f"""---
library_name: transformers
pipeline_tag: fill-mask
tags:
- {FAMILIES[config.architecture].model_type}
- outlast
---

# {name}

{sizes}

```python
from transformers import pipeline

fill_mask = pipeline("fill-mask", model="{name}")
fill_mask(f"... {{fill_mask.tokenizer.mask_token}} ...")
```

{_TOKENIZER_SECTION}{_attention_section(config)}## Training

| field | value |
|---|---|
{rows}

## Licence, uses and limits

Not stated. The licence depends on the texts the model was trained on; state it here before you pass the
model on, with the uses it is meant for. A model of this kind repeats what is in its training text, errors
and biases included.
"""


_TOKENIZER_SECTION = """## Names of special tokens in text

transformers takes the name of a special token in a text ("[MASK]", "<unk>") for the token itself. In training
such names were text like any other; `tokenizer(text, split_special_tokens=True)` reads them so.

"""


def _attention_section(config: EncoderConfig) -> str:
    """What transformers computes otherwise of a BigBird's long texts, and the way out; "" for others."""
    sparse = config.sparse
    if sparse is None:
        return ""
    longest = longest_in_full(block_size=sparse.block_size, num_random_blocks=sparse.num_random_blocks)
    if longest >= config.max_positions:
        return ""
    return f"""## Attention to long texts

Texts of more than {longest:,} tokens are attended to sparsely: each block of {sparse.block_size} tokens to
the first and the last block, its neighbours and {sparse.num_random_blocks} random ones.
{_random_blocks_advice(sparse)}

Once transformers has read a text of up to {longest:,} tokens, it attends to longer ones in full, too, until
`model.bert.set_attention_type("block_sparse")` is called.

"""


def _random_blocks_advice(sparse: BlockSparse) -> str:
    if not sparse.num_random_blocks:
        return "transformers fails on such texts where there are none; `outlast.load_model` reads them."
    if sparse.evaluation_random_blocks == "first_block":
        advice = "This model is evaluated without the random ones, by Outlast and by transformers alike."
    else:
        advice = """The random ones are part of this model, in training and evaluation.
**transformers evaluates without them**, with the first block in their place: its answers to long texts are
not those of the model that was trained. `outlast.load_model` and `outlast fill-mask` compute the model
itself."""
    if sparse.random_blocks == "uniform":
        return f"{advice}\nIn training, transformers draws other random blocks."
    return advice if sparse.evaluation_random_blocks == "first_block" else f"{advice}\n{_DRAWING}"


_DRAWING = """So does transformers after this, which makes it draw the random blocks and changes nothing else
(again after `set_attention_type`):

```python
for module in model.modules():
    if type(module).__name__ == "BigBirdBlockSparseAttention":
        module.train()
```"""
