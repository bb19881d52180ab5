"""A tokenizer as the files that ``transformers.AutoTokenizer`` loads.

In: a tokenizer of any library. Out: ``tokenizer.json``, ``tokenizer_config.json``,
``special_tokens_map.json`` in a folder; of a tokenizer with MeCab ``vocab.txt`` in place of the first. The
ids are ours for any text; what differs by design: transformers finds special tokens in text ("[MASK]" in a
prompt is the mask), and frames text as [CLS] A [SEP] or [CLS] A [SEP] B [SEP]. B
has type id 1 where the model has two token types; a model with one gets no type ids.
"""

import json
from pathlib import Path
from typing import Any

from outlast.errors import TokenizerError
from outlast.huggingface.names_as_text import names_as_text
from outlast.huggingface.sentencepiece_to_json import convert_sentencepiece
from outlast.tokenizer.encode import Tokenizer
from outlast.tokenizer.manifest import TokenizerManifest
from outlast.tokenizer.sentencepiece_model import PieceType, SentencePieceModel, parse_model

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
VOCABULARY_NAME = "vocab.txt"
SPECIAL_TOKENS_NAME = "special_tokens_map.json"


def write_tokenizer_files(
    tokenizer: Tokenizer, folder: Path, *, max_length: int, type_vocab_size: int
) -> None:
    """Write the tokenizer's Hugging Face files into a folder, which is made where it is missing.

    Args:
        max_length: the longest input of the model, in tokens with [CLS] and [SEP].
        type_vocab_size: token types of the model.

    Raises:
        TokenizerError: the folder cannot be written.
    """
    names = {f"{role}_token": piece for role, piece in tokenizer.manifest.special_pieces.items()}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": [
            "input_ids",
            *(["token_type_ids"] if type_vocab_size > 1 else []),
            "attention_mask",
        ],
        "clean_up_tokenization_spaces": False,
        **names,
    }
    documents: dict[str, Any] = {TOKENIZER_CONFIG_NAME: config, SPECIAL_TOKENS_NAME: names}
    if tokenizer.manifest.library == "mecab":
        config |= _japanese_settings(tokenizer)
    else:
        documents[TOKENIZER_NAME] = tokenizer_json(tokenizer, type_vocab_size=type_vocab_size)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            text = json.dumps(document, ensure_ascii=False, indent=1) + "\n"
            (folder / name).write_text(text, encoding="utf-8")
        if tokenizer.manifest.library == "mecab":
            lines = "".join(f"{piece}\n" for piece in tokenizer.pieces)
            (folder / VOCABULARY_NAME).write_text(lines, encoding="utf-8", newline="\n")
    except OSError as error:
        raise TokenizerError(
            f"Cannot write the tokenizer's files: {error.strerror}.", where=str(folder)
        ) from None


def _japanese_settings(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the keys of tokenizer_config.json that make transformers' BertJapaneseTokenizer of vocab.txt."""
    data = json.loads(tokenizer.model)
    return {
        "tokenizer_class": "BertJapaneseTokenizer",
        "word_tokenizer_type": "mecab",
        "subword_tokenizer_type": data["subwords"],
        "do_lower_case": data["lowercase"],
        "mecab_kwargs": {"mecab_dic": "unidic_lite", "normalize_text": data["normalize"]},
    }


def tokenizer_json(tokenizer: Tokenizer, *, type_vocab_size: int) -> dict[str, Any]:
    """Return the content of tokenizer.json for a model with so many token types."""
    manifest = tokenizer.manifest
    if manifest.library == "sentencepiece":
        model = parse_model(tokenizer.model)
        parts = {"added_tokens": _control_tokens(model, manifest), **convert_sentencepiece(model)}
    else:
        parts = json.loads(tokenizer.model)
    parts = names_as_text(parts, [token["content"] for token in parts["added_tokens"] if token["special"]])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_absorbing(entry, manifest.special_ids["mask"]) for entry in parts["added_tokens"]],
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": _template(manifest, second_type=min(type_vocab_size - 1, 1)),
        "decoder": parts["decoder"],
        "model": parts["model"],
    }


def _absorbing(entry: dict[str, Any], mask_id: int) -> dict[str, Any]:
    """Let the mask take the space before it, as RoBERTa's and ALBERT's do: that piece begins with it."""
    return {**entry, "lstrip": True} if entry["id"] == mask_id else entry


def _control_tokens(model: SentencePieceModel, manifest: TokenizerManifest) -> list[dict[str, Any]]:
    """Return the added tokens: special pieces and control symbols, which text reaches in no other way."""
    ids = set(manifest.special_ids.values())
    ids |= {index for index, piece in enumerate(model.pieces) if piece.type == PieceType.CONTROL}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return [{"id": index, "content": model.pieces[index].text, **flags} for index in sorted(ids)]


def _template(manifest: TokenizerManifest, *, second_type: int) -> dict[str, Any]:
    cls, sep = manifest.special_pieces["cls"], manifest.special_pieces["sep"]

    def special(piece: str, type_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": piece, "type_id": type_id}}

    single = [special(cls, 0), {"Sequence": {"id": "A", "type_id": 0}}, special(sep, 0)]
    ids = {cls: manifest.special_ids["cls"], sep: manifest.special_ids["sep"]}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": second_type}}, special(sep, second_type)],
        "special_tokens": {
            piece: {"id": piece, "ids": [number], "tokens": [piece]} for piece, number in ids.items()
        },
    }
