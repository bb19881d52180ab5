"""The vocabulary files that Hugging Face folders hold, as one file that the libraries read.

In: a folder, or one file of it. Out: the bytes of a ``tokenizer.json`` or of a sentencepiece model. Folders
without one hold ``vocab.txt`` (BERT's WordPiece) or ``vocab.json`` and ``merges.txt`` (RoBERTa's byte-level
BPE), and say the rest in ``tokenizer_config.json``; what is made of these gives the ids that transformers
gives. Ids stay as they are.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from outlast.errors import TokenizerError
from outlast.storage.regular import read_whole
from outlast.tokenizer.mecab_words import dictionary, load_analyser

_WORDPIECE, _BPE, _MERGES = "vocab.txt", "vocab.json", "merges.txt"
_SETTINGS = "tokenizer_config.json"
NAMES = ("tokenizer.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model", _WORDPIECE, _BPE)
"""Looked for in this order."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "<pad>", "</s>", "<unk>", "<mask>")


def find_vocabulary(path: Path) -> Path:
    """Return the file that a path stands for: itself, or the fullest one of a folder."""
    if not path.is_dir():
        return path
    found = next((path / name for name in NAMES if (path / name).is_file()), None)
    if found is None:
        raise TokenizerError(
            "There is no tokenizer here.",
            where=str(path),
            expected="one of " + ", ".join(NAMES),
            remedy="name the file or its folder: --tokenizer PATH",
        )
    return found


def read_vocabulary(file: Path) -> bytes:
    """Return a vocabulary file as a ``tokenizer.json`` or a sentencepiece model.

    Raises:
        TokenizerError: a file that is missing or damaged, or a tokenizer that only Python code describes.
    """
    try:
        if file.name.endswith(_WORDPIECE):
            return _wordpiece(file)
        if file.name.endswith(_BPE):
            return _byte_level_bpe(file)
        return read_whole(file)
    except OSError as error:
        where = str(error.filename or file)
        raise TokenizerError(
            f"Cannot read the tokenizer: {error.strerror}.", where=where, remedy="check the path"
        ) from None


def _wordpiece(file: Path) -> bytes:
    settings = _settings(file)
    pieces = _text(file).split("\n")
    if pieces and not pieces[-1]:
        pieces.pop()
    pieces = [piece.removesuffix("\r") for piece in pieces]
    repeated = [piece for piece, count in Counter(pieces).items() if count > 1]
    if repeated or "[UNK]" not in pieces:
        problem = f"repeats {repeated[:3]}" if repeated else "has no [UNK]"
        raise TokenizerError(f"The vocabulary {problem}.", where=str(file), expected="a piece on each line")
    if "Japanese" in str(settings.get("tokenizer_class")):
        return _mecab(file, settings, pieces)
    tokenizer = Tokenizer(
        models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=bool(_flag(settings, "tokenize_chinese_chars", file, default=True)),
        strip_accents=_flag(settings, "strip_accents", file, default=None),
        lowercase=bool(_flag(settings, "do_lower_case", file, default=True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _with_special(tokenizer, set(pieces))


def _mecab(file: Path, settings: dict[str, Any], pieces: list[str]) -> bytes:
    """Return the vocabulary of a ``BertJapaneseTokenizer`` as a ``mecab.json``.

    Raises:
        TokenizerError: one that divides text by anything but MeCab with the dictionary unidic-lite, or whose
            dictionary is not named: its default is another in older versions of transformers.
    """
    given = settings.get("mecab_kwargs")
    options = cast(dict[str, Any], given) if isinstance(given, dict) else {}
    subwords = settings.get("subword_tokenizer_type", "wordpiece")
    wanted: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("word_tokenizer_type", settings.get("word_tokenizer_type", "basic"), ("mecab",)),
        ("subword_tokenizer_type", subwords, ("wordpiece", "character")),
        ("do_word_tokenize", settings.get("do_word_tokenize", True), (True,)),
        ("do_subword_tokenize", settings.get("do_subword_tokenize", True), (True,)),
        ("never_split", settings.get("never_split") or None, (None,)),
        ("mecab_kwargs.mecab_dic", options.get("mecab_dic", "not given"), ("unidic_lite",)),
        ("mecab_kwargs.mecab_option", options.get("mecab_option") or None, (None,)),
        ("mecab_kwargs.normalize_text", options.get("normalize_text", True), (True, False)),
    ]
    unknown_keys = sorted(options.keys() - {"mecab_dic", "mecab_option", "normalize_text"})
    wanted += [(f"mecab_kwargs.{key}", options[key], ("not given",)) for key in unknown_keys]
    for key, found, possible in wanted:
        if found not in possible:
            raise TokenizerError(
                f"{key} is {found!r}, which this package cannot compute exactly.",
                where=str(file.with_name(_SETTINGS)),
                expected=" or ".join(map(repr, possible)),
                remedy="write down what the model was trained with, or train another vocabulary",
            )
    load_analyser("%ps,%pe,")
    document = {
        "subwords": subwords,
        "normalize": options.get("normalize_text", True),
        "lowercase": bool(_flag(settings, "do_lower_case", file, default=False)),
        "dictionary": dictionary(),
        "vocab": pieces,
    }
    return (json.dumps(document, ensure_ascii=False, indent=0) + "\n").encode()


def _byte_level_bpe(file: Path) -> bytes:
    settings = _settings(file)
    merges = file.with_name(file.name.removesuffix(_BPE) + _MERGES)
    try:
        vocabulary = cast(dict[str, int], dict(json.loads(_text(file))))
        lines = _text(merges).splitlines()
        pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        tokenizer = Tokenizer(models.BPE(vocabulary, cast(Any, pairs)))
    except OSError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"The vocabulary is damaged: {error}", where=f"{file}, {merges.name}") from None
    space = _flag(settings, "add_prefix_space", file, default=False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(space))
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special(tokenizer, set(vocabulary))


def _with_special(tokenizer: Tokenizer, pieces: set[str]) -> bytes:
    special = [AddedToken(name, special=True, normalized=False) for name in _SPECIAL if name in pieces]
    tokenizer.add_special_tokens(special)
    return tokenizer.to_str().encode()


def _settings(file: Path) -> dict[str, Any]:
    path = file.with_name(_SETTINGS)
    if not path.exists():
        return {}
    try:
        return cast(dict[str, Any], dict(json.loads(_text(path))))
    except (ValueError, TypeError, RecursionError) as error:
        raise TokenizerError(f"Cannot read the tokenizer's settings: {error}", where=str(path)) from None


def _flag(settings: dict[str, Any], key: str, file: Path, *, default: bool | None) -> bool | None:
    value = settings.get(key, default)
    if value is not None and not isinstance(value, bool):
        where = str(file.with_name(_SETTINGS))
        raise TokenizerError(f"{key} is {value!r}.", where=where, expected="true, false or null")
    return default if value is None else value


def _text(file: Path) -> str:
    try:
        return read_whole(file).decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"The file is no UTF-8 text: {error.reason}.", where=str(file)) from None
