"""Checking a prepared data set.

In: the URL of a manifest. Out: every problem as a line that names its file. Nothing is changed.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from outlast.errors import ObjectNotFound, ShardError
from outlast.shards.example_shard import check_rows, count_token_types, read_examples
from outlast.shards.manifest import (
    FileEntry,
    Manifest,
    PairTableEntry,
    ShardEntry,
    StaticExamples,
    read_manifest,
)
from outlast.shards.pair_table import TableIdentity, identity_of, read_pair_table
from outlast.shards.read import Buffer, TokenShard, check_entry, read_shard_bytes
from outlast.shards.word_bits import bits_at
from outlast.storage import Store, open_store

_BLOCK_TOKENS = 2**22


def verify_manifest(url: str) -> list[str]:
    """Check every byte of every shard that a manifest names; return the problems, one line each.

    Checked are size and sha256, header and offsets, dtype, counts and tokenizer against the manifest, that
    every token lies in the vocabulary, that a separator ends each document, that documents and sentences
    begin with a word, and that pairs lie in their shards; of static examples, every value.

    Raises:
        ShardError: the manifest itself is missing or damaged.
        StorageError: the store does not answer.
    """
    manifest, store = read_manifest(url)
    problems = [
        f"{entry.name}: {problem}"
        for entries in manifest.splits.values()
        for entry in entries
        for problem in _verify_shard(store, manifest, entry)
    ]
    for pair_set in manifest.pairs or ():
        folder = open_store(f"{store.url}/{pair_set.path}")
        for split, tables in pair_set.splits.items():
            tokens = [entry.num_tokens for entry in manifest.shards(split)]
            for shard, table in enumerate(tables):
                identity = identity_of(manifest, pair_set, split, shard)
                problems += [
                    f"{pair_set.path}/{table.name}: {problem}"
                    for problem in _verify_table(folder, table, identity, tokens)
                ]
    return problems


def _verify_table(
    folder: Store, table: PairTableEntry, identity: TableIdentity, shard_tokens: Sequence[int]
) -> list[str]:
    def check(content: Buffer) -> None:
        read_pair_table(content, table, identity=identity, shard_tokens=shard_tokens, where=table.name)

    return verify_file(folder, table, check)


def _verify_shard(store: Store, manifest: Manifest, entry: ShardEntry) -> list[str]:
    examples = manifest.examples
    if examples is not None:
        return verify_file(store, entry, lambda content: _check_examples(manifest, examples, entry, content))
    found: list[TokenShard] = []

    def check(content: Buffer) -> None:
        shard = read_shard_bytes(content, where=entry.name)
        check_entry(shard, entry, where=entry.name)
        found.append(shard)

    problems = verify_file(store, entry, check)
    return problems + [
        problem
        for shard in found
        for problem in (*_verify_content(shard, manifest), *_verify_words(shard, entry))
    ]


def verify_file(store: Store, entry: FileEntry, check: Callable[[Buffer], None]) -> list[str]:
    """Return what is wrong with a file: its size, its bytes, or what ``check`` raises about its content."""
    problems: list[str] = []
    try:
        size = store.size_bytes(entry.name)
        if size != entry.size_bytes:
            problems.append(f"has {size} bytes, the manifest says {entry.size_bytes}")
        content = store.read(entry.name, size)
        digest = hashlib.sha256(content).hexdigest()
        if digest != entry.sha256:
            problems.append(f"has sha256 {digest}, the manifest says {entry.sha256}")
        check(content)
    except ObjectNotFound:
        return ["is missing"]
    except ShardError as error:
        place = f"{error.where}: " if error.where and error.where != entry.name else ""
        expected = f" Expected: {error.expected}." if error.expected else ""
        return [*problems, place + error.message + expected]
    return problems


def _check_examples(manifest: Manifest, examples: StaticExamples, entry: ShardEntry, content: Buffer) -> None:
    """Check every value of an example shard. Raises ShardError."""
    arrays = read_examples(content, entry, examples, manifest.tokenizer, where=entry.name)
    num_tokens, num_types = 0, 1
    num_rows = max(1, _BLOCK_TOKENS // examples.sequence_length)
    for first in range(0, entry.num_examples or 0, num_rows):
        rows = {name: array[first : first + num_rows] for name, array in arrays.items()}
        num_tokens += int(rows["attention_mask"].sum(dtype=np.int64))
        num_types = max(num_types, count_token_types(rows))
        check_rows(
            rows,
            examples,
            vocab_size=manifest.tokenizer.vocab_size,
            place=lambda row, first=first: f"example {first + row}",
        )
    if num_tokens != entry.num_tokens:
        raise ShardError(f"holds {num_tokens} tokens, the manifest says {entry.num_tokens}")
    if entry.num_token_types not in (None, num_types):
        raise ShardError(f"holds {num_types} token types, the manifest says {entry.num_token_types}")


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


def _verify_words(shard: TokenShard, entry: ShardEntry) -> list[str]:
    bits = shard.word_starts
    if bits is None:
        return []
    problems: list[str] = []
    offsets = shard.document_offsets
    for what, places in (
        ("the separator at token", offsets[1:] - 1),
        ("the document at token", offsets[:-1]),
        ("the sentence at token", () if shard.sentence_offsets is None else shard.sentence_offsets[:-1]),
    ):
        places = np.asarray(places, np.int64)
        wrong = np.flatnonzero(~bits_at(bits, places))
        problems += [f"{what} {places[wrong[0]]} begins no word"] if len(wrong) else []
    if bits[-1] >> (shard.num_tokens - 1) % 8 + 1:
        problems.append("has word starts behind its last token")
    num_words = shard.count_words()
    if num_words != entry.num_words:
        problems.append(f"has {num_words} words, the manifest says {entry.num_words}")
    return problems
