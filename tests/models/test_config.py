"""Sizes from the recipe's [model] table: presets, overrides and the mistakes that are refused."""

from typing import Any

import pytest

from outlast.config import build
from outlast.errors import ConfigError
from outlast.models.config import PRESETS, EncoderConfig, ModelConfig, PresetName, resolve_model

SPECIAL_IDS = {"pad": 3, "unk": 0, "cls": 1, "sep": 2, "mask": 4}


def resolve(sequence_length: int = 128, vocab_size: int = 1000, **values: Any) -> EncoderConfig:
    config = build(ModelConfig, values, where="test")
    return resolve_model(
        config, vocab_size=vocab_size, special_ids=SPECIAL_IDS, sequence_length=sequence_length
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_its_sizes(preset: PresetName) -> None:
    encoder = resolve(preset=preset)
    assert encoder.num_layers == PRESETS[preset].num_layers
    assert encoder.head_size == 64
    assert encoder.intermediate_size == 4 * encoder.hidden_size


def test_overrides_replace_single_sizes() -> None:
    encoder = resolve(preset="tiny", num_layers=5, layer_norm_epsilon=1e-6, dropout=0.0)
    assert (encoder.num_layers, encoder.hidden_size) == (5, 128)
    assert encoder.layer_norm_epsilon == 1e-6
    assert encoder.dropout == 0.0


def test_roberta_positions_start_after_the_pad_id_and_bert_positions_at_zero() -> None:
    roberta, bert = resolve(architecture="roberta"), resolve(architecture="bert")
    assert (roberta.position_offset, roberta.num_position_rows) == (4, 516)
    assert (bert.position_offset, bert.num_position_rows) == (0, 512)
    assert (roberta.type_vocab_size, bert.type_vocab_size) == (1, 2)
    assert (roberta.layer_norm_epsilon, bert.layer_norm_epsilon) == (1e-5, 1e-12)


def test_a_configuration_is_hashable_so_that_jit_can_take_it() -> None:
    assert hash(resolve()) == hash(resolve())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_size": 100, "num_heads": 3}, "hidden size 100 does not divide into 3 heads"),
        ({"max_positions": 64}, "sequence length 128 is longer than max_positions 64"),
        ({"vocab_size": 3}, "pad id 3 is outside the vocabulary of 3"),
        ({"dropout": 1.0}, "dropout"),
        ({"preset": "huge"}, "preset"),
        ({"num_layer": 2}, "did you mean 'num_layers'"),
        ({"activation": "relu"}, "activation"),
    ],
)
def test_mistakes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**values)


def test_a_tokenizer_without_a_pad_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="no pad id"):
        resolve_model(ModelConfig(), vocab_size=10, special_ids={"mask": 1}, sequence_length=8)
