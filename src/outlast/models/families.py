"""The one table of encoders: what each architecture is before a recipe chooses its sizes. No jax here.

In: the name that a recipe gives. Out: a ``Family``: its presets, its own numbers, the module that computes it
and what Hugging Face calls it. Adding an architecture is a file and an entry (docs/guides/new_model.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

PresetName = Literal["tiny", "small", "base", "large"]
ActivationName = Literal["gelu", "gelu_new"]
PositionRule = Literal["index", "after_pad", "rotary"]
AttentionName = Literal["full", "block_sparse", "simulated_sparse", "alternating"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    num_layers: int
    hidden_size: int
    num_heads: int
    intermediate_size: int


_BERT_PRESETS: Mapping[PresetName, Preset] = {
    "tiny": Preset(num_layers=2, hidden_size=128, num_heads=2, intermediate_size=512),
    "small": Preset(num_layers=4, hidden_size=256, num_heads=4, intermediate_size=1024),
    "base": Preset(num_layers=12, hidden_size=768, num_heads=12, intermediate_size=3072),
    "large": Preset(num_layers=24, hidden_size=1024, num_heads=16, intermediate_size=4096),
}

# base and large: Warner et al. (2024), table 3; the others are ours.
_MODERNBERT_PRESETS: Mapping[PresetName, Preset] = {
    "tiny": Preset(num_layers=4, hidden_size=128, num_heads=2, intermediate_size=192),
    "small": Preset(num_layers=7, hidden_size=256, num_heads=4, intermediate_size=384),
    "base": Preset(num_layers=22, hidden_size=768, num_heads=12, intermediate_size=1152),
    "large": Preset(num_layers=28, hidden_size=1024, num_heads=16, intermediate_size=2624),
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """What distinguishes an architecture."""

    module: str
    """File of ``outlast.models`` with its functions, those of ``Architecture``."""
    model_type: str
    """Hugging Face's name, in ``config.json``."""
    class_prefix: str
    """How transformers' classes begin: ``Bert`` of ``BertForMaskedLM``."""
    position_rule: PositionRule
    type_vocab_size: int
    layer_norm_epsilon: float
    presets: Mapping[PresetName, Preset]
    activation: ActivationName = "gelu"
    head_activation: ActivationName | None = None
    """Of the masked-LM head, where that has its own whatever the layers have."""
    attentions: tuple[AttentionName, ...] = ("full",)
    """Those it can compute, the default first."""
    dropout: float = 0.1
    mask_probability: float = 0.15
    """Share of the tokens that masked language modelling predicts, where the recipe does not say."""
    has_next_sentence: bool = False
    """Whether the original has a next-sentence head."""
    hidden_size_keys: tuple[str, ...] = ()
    """Further keys of ``config.json`` that must be the hidden size."""


FAMILIES: dict[str, Family] = {
    "roberta": Family(
        module="bert",
        model_type="roberta",
        class_prefix="Roberta",
        position_rule="after_pad",
        type_vocab_size=1,
        layer_norm_epsilon=1e-5,
        presets=_BERT_PRESETS,
        head_activation="gelu",
    ),
    "bert": Family(
        module="bert",
        model_type="bert",
        class_prefix="Bert",
        position_rule="index",
        type_vocab_size=2,
        layer_norm_epsilon=1e-12,
        presets=_BERT_PRESETS,
        has_next_sentence=True,
    ),
    "bigbird": Family(
        module="bert",
        model_type="big_bird",
        class_prefix="BigBird",
        position_rule="index",
        type_vocab_size=2,
        layer_norm_epsilon=1e-12,
        presets=_BERT_PRESETS,
        activation="gelu_new",
        attentions=("block_sparse", "simulated_sparse", "full"),
        has_next_sentence=True,
    ),
    "modernbert": Family(
        module="modernbert",
        model_type="modernbert",
        class_prefix="ModernBert",
        position_rule="rotary",
        type_vocab_size=1,
        layer_norm_epsilon=1e-5,
        presets=_MODERNBERT_PRESETS,
        attentions=("alternating",),
        dropout=0.0,
        mask_probability=0.3,  # Warner et al. (2024), section 2.2.1
    ),
}


def _known(name: str) -> str:
    if name not in FAMILIES:
        raise ValueError("expected one of " + ", ".join(repr(known) for known in FAMILIES))
    return name


def _name_them(schema: dict[str, Any]) -> None:
    schema["enum"] = list(FAMILIES)


ArchitectureName = Annotated[str, AfterValidator(_known), Field(json_schema_extra=_name_them)]
"""A key of ``FAMILIES``."""
