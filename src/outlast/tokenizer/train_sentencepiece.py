"""Train a vocabulary with sentencepiece.

In: a configuration and lines. Out: the bytes of a .model file, the same for the same lines. The number of
threads is fixed, because sums are taken per thread and the scores depend on it.
"""

import io
import re
from collections.abc import Iterator
from typing import Any

import sentencepiece

from outlast.errors import TokenizerError
from outlast.tokenizer.config import SPECIAL_PIECES, WHITESPACE_SYMBOLS, TokenizerConfig

_NUM_THREADS = 16
_RESERVED = "\u2585"
"""sentencepiece's own mark for unknown characters; it skips every line that holds one."""


def train_sentencepiece(config: TokenizerConfig, lines: Iterator[str]) -> bytes:
    """Return a trained model.

    Raises:
        TokenizerError: a vocabulary larger than the text can give, or smaller than its characters need.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(line.replace(_RESERVED, " ") for line in lines),
            model_writer=model,
            **_options(config),
        )
    except RuntimeError as error:
        raise _explain(config, str(error)) from None
    return model.getvalue()


def _options(config: TokenizerConfig) -> dict[str, Any]:
    rule = config.normalization_rule
    symbols = [*config.user_defined_symbols, *(WHITESPACE_SYMBOLS if config.keep_whitespace else ())]
    roles = ("cls", "sep", "mask")
    return {
        "model_type": config.kind,
        "vocab_size": config.vocab_size,
        "character_coverage": config.character_coverage,
        "max_sentence_length": config.max_sentence_length + 8,
        "normalization_rule_name": f"{rule}_cf" if config.lowercase else rule,
        "add_dummy_prefix": not config.keep_whitespace,
        "remove_extra_whitespaces": not config.keep_whitespace,
        "allow_whitespace_only_pieces": config.keep_whitespace,
        "byte_fallback": config.has_byte_fallback,
        "pad_id": 0,
        "unk_id": 1,
        "bos_id": -1,
        "eos_id": -1,
        "pad_piece": SPECIAL_PIECES["pad"],
        "unk_piece": SPECIAL_PIECES["unk"],
        "control_symbols": [*(SPECIAL_PIECES[role] for role in roles), *config.control_symbols],
        "user_defined_symbols": symbols,
        "num_threads": _NUM_THREADS,
        "minloglevel": 2,
    }


def _explain(config: TokenizerConfig, message: str) -> TokenizerError:
    where = f"tokenizer.vocab_size = {config.vocab_size}"
    too_high = re.search(r"Vocabulary size too high.*<= (\d+)", message)
    if too_high:
        return too_large(config, int(too_high[1]))
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return TokenizerError(
            "The vocabulary is smaller than the text's characters and symbols need.",
            where=where,
            expected=f"at least {too_small[1]}",
            remedy="raise tokenizer.vocab_size or lower tokenizer.character_coverage",
        )
    return TokenizerError(f"sentencepiece could not train: {message}", where=where)


def too_large(config: TokenizerConfig, possible: int) -> TokenizerError:
    """Return the error of a vocabulary that the text cannot fill."""
    return TokenizerError(
        f"The text gives no vocabulary of {config.vocab_size} pieces.",
        where=f"tokenizer.vocab_size = {config.vocab_size}",
        expected=f"at most {possible}",
        remedy="lower tokenizer.vocab_size, or train on more text",
    )
