"""An encoder as a [model] table, and back."""

from dataclasses import replace
from typing import Any

import pytest

from outlast.config import build
from outlast.errors import ConfigError
from outlast.models.config import ModelConfig, resolve_model
from outlast.models.describe import model_table

SPECIAL_IDS = {"pad": 1}
TABLES: list[dict[str, Any]] = [
    {"architecture": "bert", "preset": "small", "dropout": 0.3, "max_positions": 77},
    {"architecture": "roberta", "layer_norm_epsilon": 1e-7, "activation": "gelu_new", "vocab_size": 120},
    {"architecture": "bigbird", "block_size": 8, "random_blocks": "transformers", "random_block_seed": 4},
    {"architecture": "bigbird", "attention": "full"},
    {"architecture": "bigbird", "attention": "simulated_sparse"},
    {"architecture": "modernbert", "preset": "tiny", "local_attention": 6, "global_every": 2},
]


@pytest.mark.parametrize("table", TABLES)
def test_there_and_back(table: dict[str, Any]) -> None:
    def resolve(values: dict[str, Any]) -> Any:
        config = build(ModelConfig, values, where="test")
        return resolve_model(config, vocab_size=100, special_ids=SPECIAL_IDS, sequence_length=8)

    encoder = resolve(table)
    found = model_table(encoder, vocab_size=100, special_ids=SPECIAL_IDS, where="test")
    assert resolve(found) == encoder
    assert ("vocab_size" in found) == ("vocab_size" in table)


def test_what_no_table_gives_is_named_with_both_values() -> None:
    encoder = resolve_model(
        ModelConfig(architecture="bert"), vocab_size=100, special_ids=SPECIAL_IDS, sequence_length=8
    )
    with pytest.raises(ConfigError, match="pad_id: 0, not 1"):
        model_table(replace(encoder, pad_id=0), vocab_size=100, special_ids=SPECIAL_IDS, where="test")
    with pytest.raises(ConfigError, match="The tokenizer has 101 ids, the model rows for 100"):
        model_table(encoder, vocab_size=101, special_ids=SPECIAL_IDS, where="test")
