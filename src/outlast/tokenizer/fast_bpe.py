"""Byte-level BPE by fastokens, several times as fast as tokenizers, where the extra ``fast`` is installed.

In: the bytes of a tokenizer.json. Out: a function from strings to ids, the same ids as those of tokenizers;
None where the library is missing or the file asks for more than was compared (docs/design/tokenizers.md).
Shards are therefore the same bytes with and without it.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.logs import log
from outlast.tokenizer.failures import is_of_library

Encode = Callable[[list[str]], list[NDArray[np.int32]]]

PROBES = [
    "",
    " ",
    "it's we'll they've I'd you're I'm don't can'T",
    "  two  spaces\t\ttabs \n\n lines\r\n  end  ",
    "3.14 １２３ ٣٥ ½ x² № 2026-11-21",
    "京都（きょうと）は、日本の都市。「テスト」。 中文，标点！",
    "é e\u0301 か\u3099 \u200d\ufeff\u00ad\u3000\u00a0\u2028 👨‍👩‍👧 🇯🇵",
    "def f(x):\n    return x ** 2  # ok\n\n\n",
    "<s></s><pad><unk>[CLS][SEP][MASK]<mask> <|endoftext|>",
    "\0\x01\x7f\u0378\U000e0001\U0010ffff",
]
"""Encoded by both libraries whenever a tokenizer is loaded."""


def fast_encoder(model: bytes, reference: Encode) -> Encode | None:
    """Return an encoder that gives the ids of ``reference`` without special tokens, or None.

    The encoder raises TypeError for what is no text.
    """
    plain = _plain_byte_level(json.loads(model))
    if plain is None:
        return None
    try:
        import fastokens
    except ImportError:
        return None
    try:
        processor: Any = fastokens.Tokenizer.from_json_str(json.dumps(plain, ensure_ascii=False))
    except ValueError as error:  # it knows fewer vocabularies than tokenizers
        log.debug("fastokens: %s", error)
        return None

    def encode(texts: list[str]) -> list[NDArray[np.int32]]:
        try:
            content, ends = processor.encode_batch_flat(texts, False)
        except UnicodeEncodeError as error:
            raise TypeError(str(error)) from None
        except BaseException as error:  # its regular expressions have limits of their own
            if not (isinstance(error, Exception) or is_of_library(error)):
                raise
            log.debug("fastokens: %s", error)
            return reference(texts)
        ids = np.frombuffer(content, "<u4").view(np.int32)
        return [ids[begin:end] for begin, end in pairwise(np.frombuffer(ends, "<u8").tolist())]

    probes = [*PROBES, *(token["content"] for token in json.loads(model)["added_tokens"])]
    if [ids.tolist() for ids in encode(probes)] != [ids.tolist() for ids in reference(probes)]:
        log.warning("fastokens gives other ids than tokenizers for this vocabulary and is not used")
        return None
    return encode


def _plain_byte_level(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the file without its special tokens, which no text shall reach; None where it is more than
    GPT-2's or RoBERTa's kind of BPE.
    """
    model, cut = data["model"], data["pre_tokenizer"] or {}
    is_plain = (
        model.get("type") == "BPE"
        and not any(
            model.get(key)
            for key in (
                "dropout",
                "continuing_subword_prefix",
                "end_of_word_suffix",
                "byte_fallback",
                "ignore_merges",
            )
        )
        and (data["normalizer"] is None or data["normalizer"] == {"type": "Sequence", "normalizers": []})
        and (cut.get("type"), cut.get("use_regex", True), cut.get("add_prefix_space"))
        == ("ByteLevel", True, False)
        and all(token["special"] for token in data["added_tokens"])
    )
    if not is_plain:
        return None
    return {**data, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
