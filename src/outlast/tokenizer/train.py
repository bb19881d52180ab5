"""Train a tokenizer from a stream of documents, under a stated memory ceiling.

In: a configuration and a way to read the documents. Out: a tokenizer folder in a store. The text is reduced
until it fits, the estimate for it is told before the work, and nothing is written before everything is known
to be right.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

from outlast.config import to_dict
from outlast.errors import TokenizerError
from outlast.storage import Store
from outlast.tokenizer.config import PAD_PIECE, SPECIAL_PIECES, TokenizerConfig
from outlast.tokenizer.encode import make_tokenizer, refuse_reachable
from outlast.tokenizer.failures import library_failures
from outlast.tokenizer.manifest import MODEL_NAMES, TokenizerManifest, write_tokenizer
from outlast.tokenizer.sampling import TrainingText, choose_documents, name_breaker, split_lines
from outlast.tokenizer.train_sentencepiece import train_sentencepiece
from outlast.tokenizer.train_tokenizers import train_tokenizers

Documents = Callable[[], Iterator[str]]

_BASE_BYTES = 96 * 2**20
"""What a process takes before it has read any text."""

_MEMORY_FACTORS = {
    ("sentencepiece", "unigram"): 30.0,
    ("sentencepiece", "bpe"): 45.0,
    ("tokenizers", "unigram"): 230.0,
    ("tokenizers", "bpe"): 70.0,
    ("tokenizers", "wordpiece"): 15.0,
}
_BYTE_LEVEL_FACTOR = 100.0
"""Peak bytes of memory for each UTF-8 byte of text, the worst measured: docs/design/tokenizers.md."""


def train_tokenizer(
    config: TokenizerConfig, documents: Documents, store: Store, prefix: str, *, report: Callable[[str], None]
) -> TokenizerManifest:
    """Train a tokenizer and write it under ``<prefix>/`` of the store, its manifest last.

    The stream is read once; the chosen documents stay in memory. ``report`` gets one line at a time: what was
    chosen, with the memory that training on it takes, and what was made.

    Raises:
        TokenizerError: an empty corpus, or a vocabulary size that does not fit the text (the message has one
        that does).
    """
    max_bytes = _training_bytes(config)
    text = choose_documents(documents(), max_bytes=max_bytes, seed=config.seed)
    if not text.documents:
        raise TokenizerError(
            f"There is no text to train a tokenizer on: {text.num_documents_seen} documents, all empty.",
            remedy="check corpus.path and the reader's options",
        )
    report(_describe(config, text, max_bytes))
    model = _train(config, text)
    manifest = _make_manifest(config, text, model)
    refuse_reachable(make_tokenizer(manifest, model), config.control_symbols)
    write_tokenizer(store, prefix, manifest, {MODEL_NAMES[config.library]: model})
    report(f"tokenizer: {manifest.vocab_size} pieces, fingerprint {manifest.fingerprint[:12]}")
    return manifest


def estimate_memory_bytes(config: TokenizerConfig, text_bytes: int) -> int:
    """Return the expected peak memory of training on that much text, from measured factors."""
    return int(_BASE_BYTES + _memory_factor(config) * text_bytes)


def _memory_factor(config: TokenizerConfig) -> float:
    return _BYTE_LEVEL_FACTOR if config.byte_level else _MEMORY_FACTORS[config.library, config.kind]


def _training_bytes(config: TokenizerConfig) -> int:
    """Return how many bytes of text to train on: those asked for, or fewer to fit the memory."""
    fitting = int((config.memory_limit_bytes - _BASE_BYTES) / _memory_factor(config))
    return min(config.sample_bytes, fitting)


def _describe(config: TokenizerConfig, text: TrainingText, max_bytes: int) -> str:
    line = f"tokenizer: {config.kind} by {config.library} on {len(text.documents)} of "
    line += (
        f"{text.num_documents_seen} documents, {_mib(text.size_bytes)} of {_mib(text.bytes_seen)} of text, "
    )
    line += f"peak memory at most about {_mib(estimate_memory_bytes(config, text.size_bytes))}"
    if text.size_bytes < text.bytes_seen and max_bytes < config.sample_bytes:
        line += (
            f" (less text than {_mib(config.sample_bytes)}, to stay under {_mib(config.memory_limit_bytes)})"
        )
    return line


def _train(config: TokenizerConfig, text: TrainingText) -> bytes:
    def lines(documents: Iterable[bytes] = text.documents) -> Iterator[str]:
        return split_lines(documents, max_bytes=config.max_sentence_length)

    if config.library == "sentencepiece":
        # Its trainer takes the name of a control piece for the border between two texts.
        broken = name_breaker([*SPECIAL_PIECES.values(), *config.control_symbols], mark=PAD_PIECE)
        return train_sentencepiece(
            config, lines(broken(document.decode()).encode() for document in text.documents)
        )
    with library_failures(f"in training ({config.kind} by {config.library})"):
        return train_tokenizers(config, lines)


def _make_manifest(config: TokenizerConfig, text: TrainingText, model: bytes) -> TokenizerManifest:
    counts: dict[str, Any] = {
        "num_documents_seen": text.num_documents_seen,
        "bytes_seen": text.bytes_seen,
        "num_documents_used": len(text.documents),
        "bytes_used": text.size_bytes,
    }
    return TokenizerManifest(
        kind=config.kind,
        library=config.library,
        vocab_size=config.vocab_size,
        special_ids={role: number for number, role in enumerate(SPECIAL_PIECES)},
        special_pieces=dict(SPECIAL_PIECES),
        files={MODEL_NAMES[config.library]: hashlib.sha256(model).hexdigest()},
        training={
            "config": to_dict(config),
            "counts": counts,
            "versions": {config.library: version(config.library)},
        },
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"
