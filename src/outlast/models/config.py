"""The shape of an encoder: the recipe's ``[model]`` table and the plain numbers it resolves to.

In: a ``ModelConfig`` (a preset and what differs from it) and what only the data knows: vocabulary size,
special ids, sequence length. Out: an ``EncoderConfig``, which holds everything the model and its export
need. No jax here, so a recipe is checked on any machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from outlast.config import table
from outlast.errors import ConfigError

ArchitectureName = Literal["roberta", "bert"]
PresetName = Literal["tiny", "small", "base", "large"]
ActivationName = Literal["gelu"]
PositionRule = Literal["index", "after_pad"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int


PRESETS: dict[PresetName, Preset] = {
    "tiny": Preset(num_layers=2, hidden_size=128, num_heads=2, intermediate_size=512),
    "small": Preset(num_layers=4, hidden_size=256, num_heads=4, intermediate_size=1024),
    "base": Preset(num_layers=12, hidden_size=768, num_heads=12, intermediate_size=3072),
    "large": Preset(num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096),
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """What distinguishes the architectures before any size is chosen."""

    position_rule: PositionRule
    type_vocab_size: int
    layer_norm_epsilon: float


FAMILIES: dict[ArchitectureName, Family] = {
    "roberta": Family(position_rule="after_pad", type_vocab_size=1, layer_norm_epsilon=1e-5),
    "bert": Family(position_rule="index", type_vocab_size=2, layer_norm_epsilon=1e-12),
}


@table
class ModelConfig:
    architecture: ArchitectureName = "roberta"
    """Encoder family."""
    preset: PresetName = "base"
    """Sizes to start from; the keys below override single ones."""
    num_layers: int | None = Field(default=None, ge=1)
    hidden_size: int | None = Field(default=None, ge=1)
    num_heads: int | None = Field(default=None, ge=1)
    intermediate_size: int | None = Field(default=None, ge=1)
    max_positions: int = Field(default=512, ge=2)
    """Longest sequence the model can read, special tokens included."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the embeddings and of both halves of each layer."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the attention probabilities."""
    layer_norm_epsilon: float | None = Field(default=None, gt=0)
    """1e-5 for roberta and 1e-12 for bert where not given."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal the matrices start from."""
    activation: ActivationName = "gelu"
    """The exact (erf) form."""


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Everything an encoder needs, as plain numbers. Hashable, so it can be a static argument of jit."""

    architecture: ArchitectureName
    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    type_vocab_size: int
    pad_id: int
    position_rule: PositionRule
    """``index``: 0, 1, 2, ... ; ``after_pad``: pad_id + 1, pad_id + 2, ... over what is no pad."""
    dropout: float
    attention_dropout: float
    layer_norm_epsilon: float
    initializer_range: float
    activation: ActivationName

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def position_offset(self) -> int:
        """Rows of the position table before the first real position."""
        return self.pad_id + 1 if self.position_rule == "after_pad" else 0

    @property
    def num_position_rows(self) -> int:
        """Rows of the position table; Hugging Face calls it ``max_position_embeddings``."""
        return self.max_positions + self.position_offset


def resolve_model(
    config: ModelConfig, *, vocab_size: int, special_ids: Mapping[str, int], sequence_length: int
) -> EncoderConfig:
    """Combine the recipe's table with what the data says.

    Args:
        config: the ``[model]`` table.
        vocab_size: number of ids of the tokenizer.
        special_ids: the tokenizer manifest's names and ids; ``pad`` is needed.
        sequence_length: tokens per example, special tokens included.

    Raises:
        ConfigError: sizes that do not fit together.
    """
    preset, family = PRESETS[config.preset], FAMILIES[config.architecture]
    if "pad" not in special_ids:
        raise ConfigError(
            "The tokenizer has no pad id.",
            where="special ids: " + ", ".join(special_ids),
            expected="pad among them",
            remedy="prepare the data with a tokenizer that has a pad piece",
        )
    encoder = EncoderConfig(
        architecture=config.architecture,
        vocab_size=vocab_size,
        num_layers=config.num_layers or preset.num_layers,
        hidden_size=config.hidden_size or preset.hidden_size,
        num_heads=config.num_heads or preset.num_heads,
        intermediate_size=config.intermediate_size or preset.intermediate_size,
        max_positions=config.max_positions,
        type_vocab_size=family.type_vocab_size,
        pad_id=special_ids["pad"],
        position_rule=family.position_rule,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        layer_norm_epsilon=config.layer_norm_epsilon or family.layer_norm_epsilon,
        initializer_range=config.initializer_range,
        activation=config.activation,
    )
    check_encoder(encoder, where="[model]")
    if sequence_length > encoder.max_positions:
        raise ConfigError(
            f"The sequence length {sequence_length} is longer than max_positions {encoder.max_positions}.",
            where="[model] max_positions",
            remedy=f"set model.max_positions to {sequence_length} or more, or use shorter sequences",
        )
    return encoder


def check_encoder(config: EncoderConfig, *, where: str) -> None:
    """Check that the sizes of an encoder fit together. Raises ConfigError."""
    if config.hidden_size % config.num_heads:
        raise ConfigError(
            f"The hidden size {config.hidden_size} does not divide into {config.num_heads} heads.",
            where=where,
            expected="hidden_size a multiple of num_heads",
        )
    if not 0 <= config.pad_id < config.vocab_size:
        raise ConfigError(
            f"The pad id {config.pad_id} is outside the vocabulary of {config.vocab_size} ids.",
            where=where,
            expected=f"an id from 0 to {config.vocab_size - 1}",
        )
