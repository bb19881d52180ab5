"""The ``[tokenizer]`` table: which vocabulary to train, or which existing one to use.

In: the values of a recipe. Out: a frozen ``TokenizerConfig`` whose fields fit together. Defaults that depend
on other fields are resolved here and nowhere else.
"""

from typing import Literal

import pydantic

from outlast.config import Location, table

PAD_PIECE = "<pad>"
UNKNOWN_PIECE = "<unk>"
CLS_PIECE = "[CLS]"
SEP_PIECE = "[SEP]"
MASK_PIECE = "[MASK]"

MOST_PIECES = 2**24
"""Of a vocabulary: sixteen times those of the largest that models have. Each is a row of the embedding, so
more is refused before memory is asked for it."""

SPECIAL_PIECES = {
    "pad": PAD_PIECE,
    "unk": UNKNOWN_PIECE,
    "cls": CLS_PIECE,
    "sep": SEP_PIECE,
    "mask": MASK_PIECE,
}
"""The special pieces of every tokenizer that is trained here. Their ids are 0 to 4, in this order."""

WHITESPACE_SYMBOLS = ("\n", "\t")
"""The pieces that ``keep_whitespace`` adds; a space is sentencepiece's own business."""

_BYTE_LEVEL_INSTEAD = 'with tokenizers use kind = "bpe" and byte_level = true'

Normalization = Literal["nmt_nfkc", "nfkc", "identity"]


@table
class TokenizerConfig:
    library: Literal["sentencepiece", "tokenizers"] = "sentencepiece"
    """The library that trains and encodes. Unigram by tokenizers is not reproducible from run to run."""
    kind: Literal["unigram", "bpe", "wordpiece"] = "unigram"
    """The algorithm; wordpiece exists in tokenizers only."""
    byte_level: bool = False
    """BPE over bytes as in GPT-2 and RoBERTa (tokenizers only): nothing is unknown, whitespace is kept."""
    vocab_size: int = pydantic.Field(default=32000, ge=6, le=MOST_PIECES)
    """Number of pieces, special ones included."""
    character_coverage: float = pydantic.Field(default=0.9995, gt=0.0, le=1.0)
    """Share of the text's characters that get a piece; the rarest ones beyond it are unknown (or bytes)."""
    max_sentence_length: int = pydantic.Field(default=16384, ge=16)
    """Bytes. Longer lines are cut for training, none is dropped."""
    lowercase: bool = False
    """Whether text is lower-cased before it is divided; nothing the model answers has capitals then."""
    normalization: Normalization | None = None
    """Default: nmt_nfkc; identity where whitespace or bytes are kept, and for wordpiece (BERT's cleaning)."""
    keep_whitespace: bool = False
    """sentencepiece: decode(encode(text)) == text, for source code. Implies byte_fallback and identity."""
    byte_fallback: bool | None = None
    """sentencepiece: unknown characters become their UTF-8 bytes, 256 pieces. Default: keep_whitespace."""
    control_symbols: tuple[str, ...] = ()
    """Further pieces that no text encodes to."""
    user_defined_symbols: tuple[str, ...] = ()
    """Strings that are always one piece."""
    sample_bytes: int = pydantic.Field(default=512 * 2**20, ge=1)
    """UTF-8 bytes of text to train on; a seeded choice of whole documents where the corpus is larger."""
    memory_limit_bytes: int = pydantic.Field(default=8 * 2**30, ge=2**28)
    """Ceiling of the training's memory; the text it trains on is reduced until the estimate fits."""
    seed: int = 0
    """Chooses the documents to train on."""
    path: Location[str | None] = None
    """URL of a tokenizer folder to use instead of training one."""

    @pydantic.model_validator(mode="after")
    def _check(self) -> "TokenizerConfig":
        for problem in (_library_problem(self), _text_problem(self), _symbol_problem(self)):
            if problem:
                raise ValueError(problem)
        return self

    @property
    def normalization_rule(self) -> Normalization:
        """The normalization, its default resolved."""
        exact = self.keep_whitespace or self.byte_level or self.kind == "wordpiece"
        return self.normalization or ("identity" if exact else "nmt_nfkc")

    @property
    def has_byte_fallback(self) -> bool:
        """Whether unknown characters become bytes, the default resolved."""
        return self.keep_whitespace if self.byte_fallback is None else self.byte_fallback


def _library_problem(config: TokenizerConfig) -> str | None:
    if config.library == "sentencepiece":
        if config.kind == "wordpiece":
            return 'wordpiece needs library = "tokenizers"'
        if config.byte_level:
            return 'byte_level needs library = "tokenizers"; with sentencepiece use keep_whitespace = true'
        return None
    if config.byte_level and config.kind != "bpe":
        return f'byte_level goes with kind = "bpe", not with {config.kind!r}'
    if config.keep_whitespace:
        return f'keep_whitespace needs library = "sentencepiece"; {_BYTE_LEVEL_INSTEAD}'
    if config.byte_fallback:
        return f'byte_fallback needs library = "sentencepiece"; {_BYTE_LEVEL_INSTEAD}'
    return None


def _text_problem(config: TokenizerConfig) -> str | None:
    if config.keep_whitespace and config.normalization not in (None, "identity"):
        return f"keep_whitespace leaves the text as it is, normalization = {config.normalization!r} does not"
    if config.keep_whitespace and config.lowercase:
        return "keep_whitespace leaves the text as it is, lowercase = true does not"
    if config.keep_whitespace and config.byte_fallback is False:
        return "keep_whitespace needs byte_fallback: rare characters would be lost without it"
    if config.library == "sentencepiece" and config.lowercase and config.normalization_rule == "identity":
        return 'sentencepiece lower-cases only together with normalization = "nfkc" or "nmt_nfkc"'
    return None


def _symbol_problem(config: TokenizerConfig) -> str | None:
    special = list(SPECIAL_PIECES.values())
    symbols = [*special, *config.control_symbols, *config.user_defined_symbols]
    repeated = sorted({symbol for symbol in symbols if symbols.count(symbol) > 1})
    if repeated:
        return (
            f"symbols differ from each other and from {', '.join(special)}; repeated: {', '.join(repeated)}"
        )
    if not all(symbols):
        return "a symbol is empty"
    if any("\0" in symbol for symbol in symbols):
        return "a symbol holds the character NUL"
    fixed = len(symbols) + (256 if config.has_byte_fallback else 0) + (256 if config.byte_level else 0)
    fixed += len(WHITESPACE_SYMBOLS) if config.keep_whitespace else 0
    if config.vocab_size <= fixed:
        return (
            f"vocab_size = {config.vocab_size} leaves no room: {fixed} pieces are taken by symbols and bytes"
        )
    return None
