"""Sizes from the recipe's [model] table: presets, overrides and the mistakes that are refused."""

import dataclasses
import json
from typing import Any, get_args

import pytest

from outlast.config import build
from outlast.errors import ConfigError
from outlast.models.config import (
    FAMILIES,
    ArchitectureName,
    EncoderConfig,
    ModelConfig,
    PresetName,
    resolve_model,
)

SPECIAL_IDS = {"pad": 3, "unk": 0, "cls": 1, "sep": 2, "mask": 4}


def resolve(sequence_length: int = 128, vocab_size: int = 1000, **values: Any) -> EncoderConfig:
    config = build(ModelConfig, values, where="test")
    return resolve_model(
        config, vocab_size=vocab_size, special_ids=SPECIAL_IDS, sequence_length=sequence_length
    )


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("preset", get_args(PresetName))
def test_a_preset_gives_its_sizes(architecture: ArchitectureName, preset: PresetName) -> None:
    encoder = resolve(architecture=architecture, preset=preset)
    assert encoder.num_layers == FAMILIES[architecture].presets[preset].num_layers
    assert encoder.head_size == 64
    assert encoder.dropout == (0.0 if architecture == "modernbert" else 0.1)


def test_an_architecture_brings_its_attention() -> None:
    bigbird, modernbert = resolve(architecture="bigbird"), resolve(architecture="modernbert")
    assert bigbird.sparse is not None
    assert (bigbird.sparse.block_size, bigbird.sparse.num_random_blocks) == (64, 3)
    assert resolve(architecture="bigbird", attention="full").sparse is None
    assert modernbert.alternating is not None
    assert (modernbert.alternating.global_every, modernbert.alternating.local_reach) == (3, 64)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_configuration_survives_json(architecture: ArchitectureName) -> None:
    encoder = resolve(architecture=architecture)
    assert EncoderConfig.from_dict(json.loads(json.dumps(dataclasses.asdict(encoder)))) == encoder


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


LARGE: dict[str, Any] = {"preset": "large", "max_positions": 16_384, "sequence_length": 16_384}


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
        ({"block_size": 32}, "block_size belongs to bigbird"),
        ({"architecture": "bigbird", "local_attention": 64}, "local_attention belongs to modernbert"),
        ({"attention": "block_sparse"}, "not one that roberta has"),
        ({"architecture": "modernbert", "num_layers": 1}, "make no ModernBERT"),
        ({**LARGE, "architecture": "roberta"}, r"16 heads .* 16384 tokens[\s\S]*attention_dropout to 0"),
        ({**LARGE, "architecture": "modernbert", "attention_dropout": 0.1}, "up to 16383 tokens"),
        ({**LARGE, "architecture": "bigbird", "attention": "full"}, "more than dropout can number"),
        (
            {"architecture": "bigbird", "random_blocks": "transformers", "block_size": 256}
            | {"max_positions": 4096, "sequence_length": 4096},
            "not 3 random blocks of 256 tokens",
        ),
    ],
)
def test_mistakes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(**values)


@pytest.mark.parametrize(
    "values",
    [
        {"architecture": "bigbird"},
        {"architecture": "modernbert"},
        {"architecture": "roberta", "attention_dropout": 0.0},
        {"architecture": "roberta", "sequence_length": 16_383},
    ],
    ids=str,
)
def test_long_sequences_without_dropout_of_full_attention_are_taken(values: dict[str, Any]) -> None:
    assert resolve(**{**LARGE, **values}).num_heads == 16


def test_a_tokenizer_without_a_pad_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="no pad id"):
        resolve_model(ModelConfig(), vocab_size=10, special_ids={"mask": 1}, sequence_length=8)
