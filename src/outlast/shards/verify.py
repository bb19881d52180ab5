"""Checking and describing a prepared data set.

In: the URL of a manifest. Out: every problem as a line that names its file, or a plain dict for a person.
Nothing is changed.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from outlast.errors import ObjectNotFound, ShardError
from outlast.shards.manifest import Manifest, ShardEntry, read_manifest
from outlast.shards.read import TokenShard, check_entry, open_shard, read_shard_bytes
from outlast.storage import Store

_BLOCK_TOKENS = 2**22


def verify_manifest(url: str) -> list[str]:
    """Check every byte of every shard that a manifest names; return the problems, one line each.

    Checked are size and sha256, header and offsets, dtype, counts and tokenizer against the manifest, that
    every token lies in the vocabulary, and that a separator ends each document.

    Raises:
        ShardError: the manifest itself is missing or damaged.
        StorageError: the store does not answer.
    """
    manifest, store = read_manifest(url)
    return [
        f"{entry.name}: {problem}"
        for entries in manifest.splits.values()
        for entry in entries
        for problem in _verify_shard(store, manifest, entry)
    ]


def describe_manifest(url: str) -> dict[str, Any]:
    """Return what a data set holds: splits, tokenizer, provenance. Raises ShardError."""
    manifest, _ = read_manifest(url)
    splits: dict[str, Any] = {}
    for name, entries in manifest.splits.items():
        num_tokens = sum(entry.num_tokens for entry in entries)
        text_bytes = _text_bytes(manifest, name)
        splits[name] = {
            "shards": len(entries),
            "documents": sum(entry.num_documents for entry in entries),
            "tokens": num_tokens,
            "size_bytes": sum(entry.size_bytes for entry in entries),
            "text_bytes": text_bytes,
            "text_bytes_per_token": round(text_bytes / num_tokens, 3) if text_bytes and num_tokens else None,
        }
    return {
        "fingerprint": manifest.fingerprint,
        "token_dtype": manifest.token_dtype,
        "splits": splits,
        "tokenizer": {
            "path": manifest.tokenizer.path,
            "fingerprint": manifest.tokenizer.fingerprint,
            "vocab_size": manifest.tokenizer.vocab_size,
            "special_ids": manifest.tokenizer.special_ids,
        },
        "provenance": manifest.provenance,
    }


def _text_bytes(manifest: Manifest, split: str) -> int | None:
    """Return the bytes of text that the provenance tells of; nobody answers for what stands there."""
    try:
        found = manifest.provenance["counts"][split]["text_bytes"]
    except (KeyError, TypeError, IndexError):
        return None
    return found if isinstance(found, int) else None


def _verify_shard(store: Store, manifest: Manifest, entry: ShardEntry) -> list[str]:
    path = store.local_path(entry.name)
    problems: list[str] = []
    try:
        size = store.size_bytes(entry.name)
        if size != entry.size_bytes:
            problems.append(f"has {size} bytes, the manifest says {entry.size_bytes}")
        content = None if path else store.read(entry.name)
        digest = _digest(path) if path else hashlib.sha256(content or b"").hexdigest()
        if digest != entry.sha256:
            problems.append(f"has sha256 {digest}, the manifest says {entry.sha256}")
        shard = open_shard(path) if path else read_shard_bytes(content or b"", where=entry.name)
        check_entry(shard, entry, where=entry.name)
    except (ObjectNotFound, FileNotFoundError):
        return ["is missing"]
    except ShardError as error:
        problem = error.message + (f" Expected: {error.expected}." if error.expected else "")
        return [*problems, problem]
    return problems + _verify_content(shard, manifest)


def _verify_content(shard: TokenShard, manifest: Manifest) -> list[str]:
    problems: list[str] = []
    tokenizer = manifest.tokenizer
    if shard.header.tokenizer_fingerprint != tokenizer.fingerprint:
        problems.append(
            f"was made with the tokenizer {shard.header.tokenizer_fingerprint}, "
            f"the manifest says {tokenizer.fingerprint}"
        )
    if shard.tokens.dtype != manifest.dtype:
        problems.append(f"has {shard.tokens.dtype} tokens, the manifest says {manifest.token_dtype}")
    for begin in range(0, shard.num_tokens, _BLOCK_TOKENS):
        block = shard.tokens[begin : begin + _BLOCK_TOKENS]
        if block.max() >= tokenizer.vocab_size:
            place = begin + int(np.argmax(block >= tokenizer.vocab_size))
            problems.append(
                f"token {place} is {shard.tokens[place]}, outside the vocabulary of {tokenizer.vocab_size}"
            )
            break
    ends = shard.tokens[shard.document_offsets[1:] - 1]
    wrong = np.flatnonzero(ends != tokenizer.special_ids["sep"])
    if len(wrong):
        problems.append(f"document {wrong[0]} does not end with the separator {tokenizer.special_ids['sep']}")
    return problems


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
