"""The shape of an encoder: the recipe's ``[model]`` table and the plain numbers it resolves to.

In: a ``ModelConfig`` (a preset and what differs from it) and what only the data knows: vocabulary size,
special ids, sequence length. Out: an ``EncoderConfig``, which holds everything the model and its export
need. No jax here, so a recipe is checked on any machine.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field

from outlast.config import table
from outlast.errors import ConfigError
from outlast.models.attention.random_blocks import (
    DEFAULT_EVALUATION_RANDOM_BLOCKS,
    DEFAULT_RANDOM_BLOCKS,
    BlockSparse,
    EvaluationRandomBlocks,
    RandomBlocks,
    check_random_blocks,
    is_sparse,
)
from outlast.models.families import (
    FAMILIES,
    ActivationName,
    ArchitectureName,
    AttentionName,
    PositionRule,
    PresetName,
)

MOST_NUMBERED = 2**32 - 1
"""Elements of a row that random bits can be drawn for: they are numbered with 32 bits (``randomness``)."""


@table
class ModelConfig:
    architecture: ArchitectureName = "roberta"
    """Encoder family."""
    preset: PresetName = "base"
    """Sizes to start from; the keys below override single ones."""
    num_layers: int | None = Field(default=None, ge=1)
    """Layers, each of attention and a feed-forward network. The preset's where not given, as are the next
    three."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Width of the hidden states; a multiple of num_heads."""
    num_heads: int | None = Field(default=None, ge=1)
    """Heads of attention in a layer."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Width inside the feed-forward network."""
    vocab_size: int | None = Field(default=None, ge=1, le=2**24)
    """Rows of the embedding. As many as the tokenizer has ids where not given; imported models may have
    more."""
    type_vocab_size: int | None = Field(default=None, ge=1, le=2**24)
    """Token types: 2 tell the two segments of a pair apart. 2 for bert and bigbird, 1 for roberta where not
    given; modernbert has 1."""
    max_positions: int = Field(default=512, ge=2)
    """Longest sequence the model can read, special tokens included."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the embeddings and of both halves of each layer. 0 for modernbert, 0.1 for others where not
    given."""
    attention_dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout of the attention probabilities; for modernbert also of what attention adds. Defaults as
    dropout."""
    layer_norm_epsilon: float | None = Field(default=None, gt=0)
    """1e-5 for roberta and modernbert, 1e-12 for bert and bigbird where not given."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal the matrices start from."""
    activation: ActivationName | None = None
    """gelu is the exact (erf) form, gelu_new the tanh form. gelu_new for bigbird, gelu for others where not
    given. The masked-LM head of roberta has gelu in any case, as in transformers."""
    attention: AttentionName | None = None
    """bigbird: block_sparse (where not given), full, or simulated_sparse, the dense reference of it.
    modernbert: alternating. Others: full."""
    block_size: int = Field(default=64, ge=1)
    """bigbird: positions in a block."""
    num_random_blocks: int = Field(default=3, ge=0)
    """bigbird: key blocks drawn for each block of queries."""
    random_block_seed: int = Field(default=0, ge=0)
    """bigbird: of the draw, which is part of the model."""
    random_blocks: RandomBlocks | None = None
    """bigbird: transformers (where not given) draws as that library does in training, from the first 1,024 or
    fewer tokens; uniform draws from the whole sequence."""
    evaluation_random_blocks: EvaluationRandomBlocks | None = None
    """bigbird: first_block (where not given) puts block 0 in their place in evaluation, as transformers does;
    same uses the random blocks in evaluation too."""
    local_attention: int = Field(default=128, ge=2, multiple_of=2)
    """modernbert: width of a local layer's window; half of it lies on either side."""
    global_every: int = Field(default=3, ge=1)
    """modernbert: the first of so many layers sees the whole sequence, the others are local."""
    global_theta: float = Field(default=160_000.0, gt=1)
    """modernbert: base of the rotary positions in global layers."""
    local_theta: float = Field(default=10_000.0, gt=1)
    """modernbert: base of the rotary positions in local layers."""


@dataclass(frozen=True, kw_only=True)
class Alternating:
    """ModernBERT's global and local layers."""

    global_every: int
    local_reach: int
    """Positions that a local layer sees on either side."""
    global_theta: float
    local_theta: float


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
    """``index``: 0, 1, 2, ... ; ``after_pad``: pad_id + 1, pad_id + 2, ... over what is no pad; ``rotary``:
    no table."""
    dropout: float
    attention_dropout: float
    layer_norm_epsilon: float
    initializer_range: float
    activation: ActivationName
    sparse: BlockSparse | None = None
    """BigBird's pattern; None: full attention."""
    alternating: Alternating | None = None
    """ModernBERT's pattern."""
    next_sentence: bool = False
    """With pooler and next-sentence head."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EncoderConfig":
        """Return the configuration that ``to_dict`` wrote."""
        kinds = {"sparse": BlockSparse, "alternating": Alternating}
        nested: dict[str, Any] = {
            key: kind(**values[key]) for key, kind in kinds.items() if values.get(key) is not None
        }
        return cls(**{**values, **nested})

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def head_activation(self) -> ActivationName:
        """Activation of the masked-LM head."""
        return FAMILIES[self.architecture].head_activation or self.activation

    @property
    def position_offset(self) -> int:
        """Rows of the position table before the first real position."""
        return self.pad_id + 1 if self.position_rule == "after_pad" else 0

    @property
    def num_position_rows(self) -> int:
        """Rows of the position table; Hugging Face calls it ``max_position_embeddings``."""
        return self.max_positions + self.position_offset


def resolve_model(
    config: ModelConfig,
    *,
    vocab_size: int,
    special_ids: Mapping[str, int],
    sequence_length: int,
    next_sentence: bool = False,
) -> EncoderConfig:
    """Combine the recipe's table with what the data says.

    Args:
        config: the ``[model]`` table.
        vocab_size: number of ids of the tokenizer.
        special_ids: the tokenizer manifest's names and ids; ``pad`` is needed.
        sequence_length: tokens per example, special tokens included.
        next_sentence: whether the objective needs the next-sentence head.

    Raises:
        ConfigError: sizes that do not fit together, or attention that cannot be trained at this length.
    """
    family = FAMILIES[config.architecture]
    preset = family.presets[config.preset]
    _check_belongs(config)
    if "pad" not in special_ids:
        raise ConfigError(
            "The tokenizer has no pad id.",
            where="special ids: " + ", ".join(special_ids),
            expected="pad among them",
            remedy="prepare the data with a tokenizer that has a pad piece",
        )
    if config.vocab_size is not None and config.vocab_size < vocab_size:
        raise ConfigError(
            f"The tokenizer has {vocab_size} ids, the model rows for {config.vocab_size}.",
            where="[model] vocab_size",
            remedy="leave it out, or prepare the data with the model's own tokenizer",
        )
    encoder = EncoderConfig(
        architecture=config.architecture,
        vocab_size=config.vocab_size or vocab_size,
        num_layers=config.num_layers or preset.num_layers,
        hidden_size=config.hidden_size or preset.hidden_size,
        num_heads=config.num_heads or preset.num_heads,
        intermediate_size=config.intermediate_size or preset.intermediate_size,
        max_positions=config.max_positions,
        type_vocab_size=config.type_vocab_size or family.type_vocab_size,
        pad_id=special_ids["pad"],
        position_rule=family.position_rule,
        dropout=family.dropout if config.dropout is None else config.dropout,
        attention_dropout=family.dropout if config.attention_dropout is None else config.attention_dropout,
        layer_norm_epsilon=config.layer_norm_epsilon or family.layer_norm_epsilon,
        initializer_range=config.initializer_range,
        activation=config.activation or family.activation,
        sparse=_resolve_sparse(config),
        alternating=_resolve_alternating(config),
        next_sentence=next_sentence,
    )
    check_encoder(encoder, where="[model]")
    if sequence_length > encoder.max_positions:
        raise ConfigError(
            f"The sequence length {sequence_length} is longer than max_positions {encoder.max_positions}.",
            where="[model] max_positions",
            remedy=f"set model.max_positions to {sequence_length} or more, or use shorter sequences",
        )
    _check_attention(encoder, sequence_length)
    return encoder


def _check_attention(config: EncoderConfig, length: int) -> None:
    """Check that attention over so many tokens can be trained. Raises ConfigError."""
    sparse = config.sparse
    if sparse is not None and is_sparse(
        length, block_size=sparse.block_size, num_random_blocks=sparse.num_random_blocks
    ):
        num_blocks = -(-length // sparse.block_size)
        check_random_blocks(sparse, num_blocks=num_blocks, max_positions=config.max_positions)
    elif config.attention_dropout > 0:
        check_attention_dropout(config.num_heads, length)


def check_attention_dropout(num_heads: int, length: int) -> None:
    """Check that the attention probabilities of a row can be dropped out, all heads. Raises ConfigError."""
    if num_heads * length**2 > MOST_NUMBERED:
        raise ConfigError(
            f"{num_heads} heads of full attention over {length} tokens have 2**32 probabilities a row or "
            "more, which is more than dropout can number.",
            where="[model] attention_dropout",
            expected=f"up to {math.isqrt(MOST_NUMBERED // num_heads)} tokens with so many heads",
            remedy="set model.attention_dropout to 0, or take block-sparse attention: "
            'model.architecture = "bigbird"',
        )


_BELONGS: dict[str, ArchitectureName] = {
    "block_size": "bigbird",
    "num_random_blocks": "bigbird",
    "random_block_seed": "bigbird",
    "random_blocks": "bigbird",
    "evaluation_random_blocks": "bigbird",
    "local_attention": "modernbert",
    "global_every": "modernbert",
    "global_theta": "modernbert",
    "local_theta": "modernbert",
}


_FORMER_DEFAULTS = {"random_blocks": "uniform", "evaluation_random_blocks": "same"}
"""What the descriptions of runs from before say of models that do not read these keys."""


def _check_belongs(config: ModelConfig) -> None:
    """Refuse a key that the architecture does not read: it would be ignored in silence."""
    plain = ModelConfig()
    for key, owner in _BELONGS.items():
        ignored = (getattr(plain, key), _FORMER_DEFAULTS.get(key))
        if owner != config.architecture and getattr(config, key) not in ignored:
            raise ConfigError(
                f"{key} belongs to {owner}, and the architecture is {config.architecture}.",
                where=f"[model] {key}",
                remedy=f'leave it out, or set model.architecture to "{owner}"',
            )
    attentions = FAMILIES[config.architecture].attentions
    if config.attention is not None and config.attention not in attentions:
        raise ConfigError(
            f"attention = {config.attention!r} is not one that {config.architecture} has.",
            where="[model] attention",
            expected="one of " + ", ".join(attentions),
        )


def _resolve_sparse(config: ModelConfig) -> BlockSparse | None:
    attention = config.attention or FAMILIES[config.architecture].attentions[0]
    if attention not in ("block_sparse", "simulated_sparse"):
        return None
    return BlockSparse(
        block_size=config.block_size,
        num_random_blocks=config.num_random_blocks,
        random_block_seed=config.random_block_seed,
        random_blocks=config.random_blocks or DEFAULT_RANDOM_BLOCKS,
        evaluation_random_blocks=config.evaluation_random_blocks or DEFAULT_EVALUATION_RANDOM_BLOCKS,
        simulated=attention == "simulated_sparse",
    )


def _resolve_alternating(config: ModelConfig) -> Alternating | None:
    if "alternating" not in FAMILIES[config.architecture].attentions:
        return None
    return Alternating(
        global_every=config.global_every,
        local_reach=config.local_attention // 2,
        global_theta=config.global_theta,
        local_theta=config.local_theta,
    )


def check_encoder(config: EncoderConfig, *, where: str) -> None:
    """Check that the sizes of an encoder fit together. Raises ConfigError."""
    if config.hidden_size % config.num_heads:
        raise ConfigError(
            f"The hidden size {config.hidden_size} does not divide into {config.num_heads} heads.",
            where=where,
            expected="hidden_size a multiple of num_heads",
        )
    if config.alternating is not None and config.type_vocab_size != 1:
        raise ConfigError(
            f"A ModernBERT has no {config.type_vocab_size} token types: no table of its says which is which.",
            where=where,
            expected="type_vocab_size = 1",
        )
    if config.alternating is not None and (config.num_layers < 2 or config.head_size % 2):
        raise ConfigError(
            f"{config.num_layers} layers with heads of size {config.head_size} make no ModernBERT.",
            where=where,
            expected="at least 2 layers, and hidden_size / num_heads even, for the rotary positions",
        )
    if config.next_sentence and not FAMILIES[config.architecture].has_next_sentence:
        having = [name for name, family in FAMILIES.items() if family.has_next_sentence]
        raise ConfigError(
            f"A {config.architecture} model has no next-sentence head.",
            where="[objective] next_sentence",
            expected="model.architecture one of " + ", ".join(having),
            remedy="leave next_sentence out, or change the architecture",
        )
    if not 0 <= config.pad_id < config.vocab_size:
        raise ConfigError(
            f"The pad id {config.pad_id} is outside the vocabulary of {config.vocab_size} ids.",
            where=where,
            expected=f"an id from 0 to {config.vocab_size - 1}",
        )
