"""Train a vocabulary with the ``tokenizers`` library.

In: a configuration and a way to read the lines. Out: the bytes of a tokenizer.json. The library knows no
control pieces and no character coverage, so both are made here: the names of control pieces are broken in the
training text (a merge that spells one would let text encode to it), user-defined symbols are taken out of it,
and rare characters are replaced by spaces.

BPE and WordPiece give the same bytes for the same lines. Unigram does not: the library walks hash maps in an
order that differs from process to process (docs/design/tokenizers.md).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from outlast.errors import TokenizerError
from outlast.tokenizer.config import SPECIAL_PIECES, UNKNOWN_PIECE, TokenizerConfig
from outlast.tokenizer.sampling import name_breaker
from outlast.tokenizer.train_sentencepiece import too_large

Lines = Callable[[], Iterator[str]]

_CONTINUATION = "##"


def train_tokenizers(config: TokenizerConfig, lines: Lines) -> bytes:
    """Return the bytes of a trained tokenizer.json.

    Raises:
        TokenizerError: a vocabulary larger than the text can give, or smaller than its characters need.
    """
    tokenizer = _untrained(config)
    control = [*SPECIAL_PIECES.values(), *config.control_symbols]
    fixed = [*control, *config.user_defined_symbols]
    text = _training_lines(config, lines, tokenizer, control)
    continuations = _continuations(config, tokenizer, fixed, text) if config.kind == "wordpiece" else []
    tokenizer.train_from_iterator(text(), _trainer(config, config.vocab_size, [*fixed, *continuations]))
    found = tokenizer.get_vocab_size()
    if found < config.vocab_size:
        raise too_large(config, found)
    if found > config.vocab_size:
        raise TokenizerError(
            "The vocabulary is smaller than the text's characters and symbols need.",
            where=f"tokenizer.vocab_size = {config.vocab_size}",
            expected=f"at least {found}",
            remedy="raise tokenizer.vocab_size or lower tokenizer.character_coverage",
        )
    return _with_symbols(tokenizer, control, config.user_defined_symbols)


def _untrained(config: TokenizerConfig) -> Tokenizer:
    if config.kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN_PIECE))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix=_CONTINUATION)
    elif config.byte_level:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        unigram = config.kind == "unigram"
        tokenizer = Tokenizer(
            models.Unigram() if unigram else models.BPE(unk_token=UNKNOWN_PIECE, fuse_unk=True)
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    tokenizer.normalizer = _normalizer(config)
    return tokenizer


def _normalizer(config: TokenizerConfig) -> Any:
    rules = {
        "identity": [],
        "nfkc": [normalizers.NFKC()],
        "nmt_nfkc": [normalizers.Nmt(), normalizers.NFKC()],
    }
    steps: list[Any] = rules[config.normalization_rule]
    if config.kind == "wordpiece":
        # Puts spaces around every CJK character; strips accents where it lower-cases, as BERT's own code
        # does.
        steps.append(normalizers.BertNormalizer(lowercase=config.lowercase))
        return normalizers.Sequence(steps)
    if config.lowercase:
        steps.append(normalizers.Lowercase())
    if not config.byte_level:
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def _trainer(config: TokenizerConfig, vocab_size: int, fixed: list[str]) -> Any:
    shared: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": fixed, "show_progress": False}
    if config.kind == "unigram":
        return trainers.UnigramTrainer(unk_token=UNKNOWN_PIECE, **shared)
    if config.kind == "wordpiece":
        return trainers.WordPieceTrainer(continuing_subword_prefix=_CONTINUATION, **shared)
    return trainers.BpeTrainer(
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if config.byte_level else [], **shared
    )


def _training_lines(config: TokenizerConfig, lines: Lines, tokenizer: Tokenizer, control: list[str]) -> Lines:
    """Return a way to read the normalized lines without whole symbols and without the rarest characters."""
    broken = name_breaker(control, mark=" ")
    symbols = sorted(config.user_defined_symbols, key=len, reverse=True)
    user_defined = re.compile("|".join(map(re.escape, symbols)) or r"\Z")
    normalizer: Any = tokenizer.normalizer

    def cleaned() -> Iterator[str]:
        return (user_defined.sub(" ", broken(normalizer.normalize_str(line))) for line in lines())

    if config.byte_level or config.character_coverage == 1.0:
        return cleaned
    rare = _rare_characters(cleaned(), config.character_coverage)
    return lambda: (rare.sub(" ", line) for line in cleaned())


def _rare_characters(lines: Iterator[str], coverage: float) -> re.Pattern[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    counts = Counter({character: count for character, count in counts.items() if not character.isspace()})
    wanted = coverage * counts.total()
    kept: list[str] = []
    covered = 0
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        kept.append(character)
        covered += count
    return re.compile(rf"[^\s{re.escape(''.join(kept))}]")


def _continuations(config: TokenizerConfig, tokenizer: Tokenizer, fixed: list[str], text: Lines) -> list[str]:
    """Return the "##x" pieces of single characters in a fixed order.

    The trainer numbers them in the order of a hash map and breaks ties between merges by number, so that two
    runs would give different vocabularies. Named in advance they keep their order. A vocabulary of size 0 is
    the alphabet.
    """
    tokenizer.train_from_iterator(text(), _trainer(config, 0, fixed))
    return sorted(
        piece for piece in tokenizer.get_vocab() if piece.startswith(_CONTINUATION) and piece not in fixed
    )


def _with_symbols(tokenizer: Tokenizer, control: list[str], user_defined: tuple[str, ...]) -> bytes:
    """Return the file with control symbols as special tokens and user-defined ones as plain added tokens."""
    data: dict[str, Any] = json.loads(tokenizer.to_str())
    kept = [
        token
        for token in data["added_tokens"]
        if token["content"] in control or token["content"] in user_defined
    ]
    for token in kept:
        token["special"] = token["content"] in control
    data["added_tokens"] = kept
    return json.dumps(data, ensure_ascii=False).encode()
