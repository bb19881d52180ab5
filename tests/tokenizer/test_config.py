"""The [tokenizer] table: defaults that follow from other fields, and contradictions."""

from typing import Any

import pytest

from outlast.config import build
from outlast.errors import ConfigError
from outlast.tokenizer.config import TokenizerConfig


def test_defaults() -> None:
    config = TokenizerConfig()
    assert (config.library, config.kind, config.vocab_size) == ("sentencepiece", "unigram", 32000)
    assert (config.character_coverage, config.normalization_rule) == (0.9995, "nmt_nfkc")
    assert not config.has_byte_fallback


def test_kept_whitespace_implies_bytes_and_no_normalization() -> None:
    config = TokenizerConfig(keep_whitespace=True)
    assert (config.normalization_rule, config.has_byte_fallback) == ("identity", True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "wordpiece"}, 'wordpiece needs library = "tokenizers"'),
        ({"byte_level": True, "kind": "bpe"}, "with sentencepiece use keep_whitespace"),
        ({"library": "tokenizers", "byte_level": True}, 'byte_level goes with kind = "bpe"'),
        ({"library": "tokenizers", "keep_whitespace": True}, "byte_level = true"),
        ({"library": "tokenizers", "byte_fallback": True}, "byte_level = true"),
        ({"keep_whitespace": True, "normalization": "nfkc"}, "'nfkc' does not"),
        ({"keep_whitespace": True, "lowercase": True}, "lowercase = true does not"),
        ({"keep_whitespace": True, "byte_fallback": False}, "rare characters would be lost"),
        ({"lowercase": True, "normalization": "identity"}, "sentencepiece lower-cases only together with"),
        ({"control_symbols": ["[CLS]"]}, "repeated: [CLS]"),
        ({"user_defined_symbols": ["_A_", "_A_"]}, "repeated: _A_"),
        ({"user_defined_symbols": [""]}, "a symbol is empty"),
        ({"keep_whitespace": True, "vocab_size": 200}, "263 pieces are taken"),
        ({"vocabulary_size": 8000}, "did you mean 'vocab_size'"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(TokenizerConfig, values, where="run.toml")
    assert message in str(caught.value)
