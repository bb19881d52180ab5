"""Weights in Hugging Face's format, into our parameters.

In: a folder with ``config.json`` and ``model.safetensors`` of a model that we have. Out: an
``EncoderConfig`` and a flat dict of numpy arrays. Pickled weights (``pytorch_model.bin``) are refused,
because reading a pickle runs whatever code is in it.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import safetensors
from numpy.typing import NDArray

from outlast.errors import ConfigError, OutlastError
from outlast.huggingface.names import NamedArrays, from_huggingface
from outlast.models.architectures import ARCHITECTURES
from outlast.models.config import (
    FAMILIES,
    ActivationName,
    Alternating,
    BlockSparse,
    EncoderConfig,
    EvaluationRandomBlocks,
    RandomBlocks,
    check_encoder,
)
from outlast.models.next_sentence import HEAD, POOLER
from outlast.models.params import ParamTable, flatten
from outlast.storage.regular import open_regular, read_whole

WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"

SPARSE_KEY = "outlast_random_blocks"
"""Key of ``config.json`` for what transformers has no key for; it ignores the key."""

HEADS = ("head", POOLER, HEAD)
"""The groups of parameters that an encoder can do without."""

PRETRAINING = "ForPreTraining"
"""How transformers' classes with a masked-LM and a next-sentence head end."""

_MOST_LAYERS = 10_000

_FLOATS = {"F16": "<f2", "BF16": "bfloat16", "F32": "<f4", "F64": "<f8"}
"""What weights may be, in the words of a safetensors file; numpy knows bfloat16 once jax is imported."""

_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids", ".num_batches_tracked")
"""How the names of tensors end that are no weights: numbers of positions, and counts."""

DECODERS = ("cls.predictions.decoder", "lm_head.decoder", "decoder")
"""The projection onto the vocabulary under a name of its own: the word embeddings, and the head's bias."""

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
        OutlastError: files that are missing, pickled, damaged, quantised or do not fit each other.
        ConfigError: a model this package cannot compute exactly; the key is named.
    """
    config = read_encoder_config(folder)
    table = ARCHITECTURES[config.architecture].param_table(config)
    kept = {group: params for group, params in table.items() if with_head or group not in HEADS}
    with naming(folder):
        tensors = read_tensors(folder)
        check_decoder(tensors, table)
        return config, from_huggingface(kept, tensors)


@contextmanager
def naming(folder: Path) -> Generator[None]:
    """Add the name of the file with the weights to the errors raised inside."""
    try:
        yield
    except OutlastError as error:
        where = str(folder / WEIGHTS_NAME)
        raise OutlastError(error.message, where=where, expected=error.expected, remedy=error.remedy) from None


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of ``config.json``. Raises OutlastError."""
    path = folder / CONFIG_NAME
    try:
        found = json.loads(read_whole(path))
    except FileNotFoundError:
        raise OutlastError(
            "There is no model here.", where=str(path), expected="a folder with config.json"
        ) from None
    except (ValueError, RecursionError, OSError) as error:
        raise OutlastError(f"Cannot read the configuration: {error}", where=str(path)) from None
    if not isinstance(found, dict):
        raise OutlastError("The configuration is not a JSON object.", where=str(path))
    return cast(dict[str, Any], found)


def read_encoder_config(folder: Path) -> EncoderConfig:
    """Read the configuration of an encoder. Raises OutlastError or ConfigError as ``load_weights``."""
    values, path = read_config(folder), folder / CONFIG_NAME
    model_type = values.get("model_type")
    architecture = _ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if architecture is None:
        raise ConfigError(
            f"The model type {model_type!r} is not known.",
            where=str(path),
            expected="one of " + ", ".join(_ARCHITECTURES),
        )
    _refuse_variants(values, str(path))
    return _encoder_config(values, architecture, str(path))


_ARCHITECTURES = {family.model_type: architecture for architecture, family in FAMILIES.items()}

_VARIANTS: dict[str, Any] = {
    "rescale_embeddings": False,
    "use_bias": True,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "norm_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
}
"""Keys whose other values mean a computation we do not do. An absent key means the value here."""


def _refuse_variants(values: Mapping[str, Any], where: str) -> None:
    for key, supported in _VARIANTS.items():
        if values.get(key, supported) != supported:
            raise ConfigError(
                f"{key} = {values[key]!r} is not supported.", where=where, expected=f"{supported!r}"
            )


class ConfigReader:
    """The values of a ``config.json``, checked as they are asked for."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def num_layers(self) -> int:
        """The number of layers. A bound keeps a damaged file from costing time and memory."""
        count: int = self.number("num_hidden_layers", int, 1)
        if count > _MOST_LAYERS:
            raise ConfigError(
                f"num_hidden_layers is {count}.", where=self.where, expected=f"at most {_MOST_LAYERS}"
            )
        return count

    def number(self, key: str, kind: type[int] | type[float], smallest: float) -> Any:
        value = self.values.get(key)
        right = isinstance(value, int | float) and not isinstance(value, bool)
        in_range = right and smallest <= cast(float, value) < float("inf")  # which NaN never is
        if not in_range or (kind is int and not isinstance(value, int)):
            raise ConfigError(
                f"{key} is {value!r}.", where=self.where, expected=f"{kind.__name__} of {smallest} or more"
            )
        return value

    def choice(self, key: str, default: Any, choices: tuple[Any, ...]) -> Any:
        value = self.values.get(key, default)
        if value not in choices:
            raise ConfigError(
                f"{key} = {value!r} is not supported.",
                where=self.where,
                expected="one of " + ", ".join(map(str, choices)),
            )
        return value


def _encoder_config(values: Mapping[str, Any], architecture: str, where: str) -> EncoderConfig:
    family, read = FAMILIES[architecture], ConfigReader(values, where)
    modern = "alternating" in family.attentions
    for key in family.hidden_size_keys:
        read.choice(key, None, (values.get("hidden_size"),))
    pad_id = read.number("pad_token_id", int, 0)
    offset = pad_id + 1 if family.position_rule == "after_pad" else 0
    activation = "hidden_activation" if modern else "hidden_act"
    config = EncoderConfig(
        architecture=architecture,
        vocab_size=read.number("vocab_size", int, 1),
        num_layers=read.num_layers(),
        hidden_size=read.number("hidden_size", int, 1),
        num_heads=read.number("num_attention_heads", int, 1),
        intermediate_size=read.number("intermediate_size", int, 1),
        max_positions=read.number("max_position_embeddings", int, offset + 1) - offset,
        type_vocab_size=1 if modern else read.number("type_vocab_size", int, 1),
        pad_id=pad_id,
        position_rule=family.position_rule,
        dropout=read.number("mlp_dropout" if modern else "hidden_dropout_prob", float, 0),
        attention_dropout=read.number(
            "attention_dropout" if modern else "attention_probs_dropout_prob", float, 0
        ),
        layer_norm_epsilon=read.number("norm_eps" if modern else "layer_norm_eps", float, 0),
        initializer_range=read.number("initializer_range", float, 0),
        activation=read.choice(activation, family.activation, get_args(ActivationName)),
        sparse=_sparse(read) if "block_sparse" in family.attentions else None,
        alternating=_alternating(read) if modern else None,
        next_sentence=family.has_next_sentence and _is_for_pretraining(values.get("architectures")),
    )
    check_encoder(config, where=where)
    return config


def _is_for_pretraining(classes: Any) -> bool:
    names = cast(list[Any], classes) if isinstance(classes, list) else []
    return any(isinstance(name, str) and name.endswith(PRETRAINING) for name in names)


def _alternating(read: ConfigReader) -> Alternating:
    """Return ModernBERT's pattern, from the keys of transformers 5 or those of the hub's older files."""
    values, where = read.values, read.where
    read.choice("embedding_dropout", values.get("mlp_dropout"), (values.get("mlp_dropout"),))
    # Of the masked-LM head, too; ours has one activation. An absent key means gelu, for each.
    read.choice("classifier_activation", "gelu", (values.get("hidden_activation", "gelu"),))
    num_layers = read.num_layers()
    kinds = values.get("layer_types")
    if kinds is None:
        every = read.number("global_attn_every_n_layers", int, 1)
    else:
        listed = cast(list[Any], kinds) if isinstance(kinds, list) else []
        every = next((i for i in range(1, num_layers) if listed[i : i + 1] == [_GLOBAL]), num_layers)
        if listed != [_LOCAL if i % every else _GLOBAL for i in range(num_layers)]:
            raise ConfigError(
                "layer_types is no regular pattern.",
                where=where,
                expected=f"{_GLOBAL} in the first of every so many layers, {_LOCAL} in the others",
            )
    return Alternating(
        global_every=every,
        local_reach=read.number("local_attention", int, 2) // 2,
        global_theta=_theta(read, _GLOBAL, "global_rope_theta"),
        local_theta=_theta(read, _LOCAL, "local_rope_theta"),
    )


_GLOBAL, _LOCAL = "full_attention", "sliding_attention"


def _theta(read: ConfigReader, kind: str, old_key: str) -> float:
    rope = read.values.get("rope_parameters")
    if rope is None:
        return float(read.number(old_key, float, 1))
    if not isinstance(rope, dict) or not isinstance(cast(dict[str, Any], rope).get(kind), dict):
        raise ConfigError(f"rope_parameters has no {kind}.", where=read.where)
    of_kind = ConfigReader(cast(dict[str, Any], rope)[kind], f"{read.where}: rope_parameters.{kind}")
    of_kind.choice("rope_type", "default", ("default",))
    return float(of_kind.number("rope_theta", float, 1))


_LIBRARY_BLOCKS = {
    "random_block_seed": 0,
    "random_blocks": "transformers",
    "evaluation_random_blocks": "first_block",
}


def _sparse(read: ConfigReader) -> BlockSparse | None:
    """Return BigBird's pattern: our own where ``outlast`` says so, else what transformers computes."""
    kind = read.choice("attention_type", "block_sparse", ("block_sparse", "original_full"))
    if kind == "original_full":
        return None
    ours = read.values.get(SPARSE_KEY, _LIBRARY_BLOCKS)
    if not isinstance(ours, dict) or cast(dict[str, Any], ours).keys() != _LIBRARY_BLOCKS.keys():
        raise ConfigError(
            f"{SPARSE_KEY} is {ours!r}.",
            where=read.where,
            expected="a table of " + ", ".join(_LIBRARY_BLOCKS),
        )
    blocks = ConfigReader(cast(dict[str, Any], ours), f"{read.where}: {SPARSE_KEY}")
    return BlockSparse(
        block_size=read.number("block_size", int, 1),
        num_random_blocks=read.number("num_random_blocks", int, 0),
        random_block_seed=blocks.number("random_block_seed", int, 0),
        random_blocks=blocks.choice("random_blocks", None, get_args(RandomBlocks)),
        evaluation_random_blocks=blocks.choice(
            "evaluation_random_blocks", None, get_args(EvaluationRandomBlocks)
        ),
        simulated=False,
    )


def read_tensors(folder: Path) -> NamedArrays:
    """Return the weights of a folder by Hugging Face's names.

    Raises:
        OutlastError: no weights, pickled or damaged ones, or a tensor that is no float: it would be another
            model.
    """
    path = folder / WEIGHTS_NAME
    if not path.exists():
        raise _no_weights(folder)
    try:
        with open_regular(path) as file:  # and not mapped: a file cut short under a mapping ends the process
            stored = safetensors.deserialize(file.read())
        tensors = {name: _as_array(name, entry) for name, entry in stored if not name.endswith(_BUFFERS)}
    except (safetensors.SafetensorError, OSError, TypeError) as error:
        raise OutlastError(f"Cannot read the weights: {error}") from None
    for old, new in _OLD_NAMES.items():
        tensors = {
            name.removesuffix(old) + new if name.endswith(old) else name: tensors[name] for name in tensors
        }
    return tensors


def _as_array(name: str, entry: dict[str, Any]) -> NDArray[Any]:
    if entry["dtype"] not in _FLOATS:
        raise OutlastError(
            f"{name} is {entry['dtype']}.",
            expected="one of " + ", ".join(_FLOATS),
            remedy="take the weights from before they were quantised",
        )
    return np.frombuffer(entry["data"], _FLOATS[entry["dtype"]]).reshape(entry["shape"])


def check_decoder(tensors: NamedArrays, table: ParamTable) -> None:
    """Check that a projection stored beside the embeddings is theirs, as ``tie_word_embeddings`` says.

    Raises:
        OutlastError: it is another.
    """
    flat = flatten(table)
    for part, tied in (("weight", "embeddings/word"), ("bias", "head/bias")):
        for decoder in DECODERS:
            own, other = tensors.get(f"{decoder}.{part}"), tensors.get(flat[tied].hf)
            if own is not None and other is not None and not _same(own, other):
                raise OutlastError(
                    f"{decoder}.{part} differs from {flat[tied].hf}.",
                    expected="a model whose projection onto the vocabulary is its word embeddings",
                )


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other))


def _no_weights(folder: Path) -> OutlastError:
    if (folder / "pytorch_model.bin").exists():
        return OutlastError(
            "The weights are pickled (pytorch_model.bin), and reading a pickle runs whatever code is in it.",
            expected=f"{WEIGHTS_NAME}",
            remedy="where you trust the file, let transformers write it anew: "
            "AutoModel.from_pretrained(FOLDER).save_pretrained(NEW), with the class that has its heads",
        )
    if (folder / f"{WEIGHTS_NAME}.index.json").exists():
        return OutlastError("The weights are cut into several files.", expected=f"one {WEIGHTS_NAME}")
    return OutlastError("There are no weights here.", expected=WEIGHTS_NAME)
