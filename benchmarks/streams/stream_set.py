"""The set that the stream benchmark reads: random tokens as token shards and flat, the same examples in both.

In: a folder, a number of tokens. Out: ``tokens.bin``, the shards' tokens end to end as little-endian uint16,
and ``outlast/``, a manifest with its shards. A shard's tokens are a multiple of ``UNIT``, so for every length
that divides it, example k of the flat file is example k of the shards, separators included.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.shards.document import MANIFEST_NAME
from outlast.shards.manifest import Manifest, TokenizerEntry, write_manifest
from outlast.shards.write import TokenShardWriter
from outlast.storage import LocalStore

UNIT = 4096
NUM_SHARDS = 16
_VOCAB_SIZE = 32_000
_SEPARATOR = 3
_DOCUMENT_TOKENS = 1000
"""Of a document on average, its separator included; the lengths vary."""


def make_set(folder: Path, num_tokens: int, *, seed: int = 0, num_shards: int = NUM_SHARDS) -> None:
    """Write the set: about ``num_tokens``, rounded down to a multiple of ``num_shards * UNIT``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    store = LocalStore(folder / "outlast")
    entries = []
    with (folder / "tokens.bin").open("wb") as flat:
        for index in range(num_shards):
            tokens = _shard_tokens(rng, max(1, num_tokens // (num_shards * UNIT)) * UNIT)
            flat.write(tokens.tobytes())
            ends = np.flatnonzero(tokens == _SEPARATOR) + 1
            with TokenShardWriter(
                vocab_size=_VOCAB_SIZE, separator_id=_SEPARATOR, tokenizer_fingerprint="random"
            ) as writer:
                for document in np.split(tokens, ends[:-1]):
                    writer.add(document[:-1])
                entries.append(writer.write(store, f"train-{index:05d}.safetensors"))
    ids = {"pad": 0, "unk": 1, "cls": 2, "sep": _SEPARATOR, "mask": 4}
    tokenizer = TokenizerEntry(
        path="tokenizer", fingerprint="random", vocab_size=_VOCAB_SIZE, special_ids=ids
    )
    splits = {"train": tuple(entries)}
    write_manifest(store, Manifest(token_dtype="uint16", tokenizer=tokenizer, splits=splits, provenance={}))


def manifest_of(folder: Path) -> str:
    return str(folder / "outlast" / MANIFEST_NAME)


def rows_of(folder: Path, length: int) -> NDArray[Any]:
    """Return the flat tokens as a mapped array of examples: uint16 (examples, length)."""
    tokens = np.memmap(folder / "tokens.bin", np.uint16, "r")
    return tokens[: len(tokens) // length * length].reshape(-1, length)


def _shard_tokens(rng: np.random.Generator, num_tokens: int) -> NDArray[np.uint16]:
    tokens = rng.integers(5, _VOCAB_SIZE, num_tokens, dtype=np.uint16)
    # A document holds at least one token, so no separator follows another: only even places may hold one.
    ends = rng.choice(num_tokens // 2 - 1, num_tokens // _DOCUMENT_TOKENS, replace=False) * 2 + 1
    tokens[ends] = _SEPARATOR
    tokens[-1] = _SEPARATOR
    return tokens
