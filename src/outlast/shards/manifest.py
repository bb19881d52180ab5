"""The manifest: which shards make a data set, and what must be true of each byte of them.

In: ``manifest.json`` beside the shards (docs/formats/manifest.md). Out: a frozen ``Manifest``. It is
written last, so where there is a manifest there is a whole data set. It carries its own digest, so an edit of
any of it is noticed.
"""

import itertools
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pydantic

from outlast.errors import ShardError
from outlast.shards.document import (
    Splits,
    build_manifest,
    check_manifest,
    digest,
    parse_document,
    read_manifest_bytes,
    to_plain,
    write_document,
)
from outlast.shards.token_format import word_bytes
from outlast.storage import Store

PAIR_BYTES = 17
"""A row of a pair table (docs/formats/pair_table.md)."""
_MOST_BYTES = 2**50
_ROLES = {"pad", "unk", "cls", "sep", "mask"}

Name = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$")]
"""A name beside the manifest: it cannot lead anywhere else."""


ArrayName = Literal[
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "masked_positions",
    "masked_ids",
    "masked_weights",
    "next_sentence_label",
    "labels",
    "example_weights",
]
"""What a row of an example shard may have."""


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of a data set. ``sha256`` covers the whole file."""

    name: Name
    size_bytes: Annotated[int, pydantic.Field(ge=0, le=_MOST_BYTES)]
    sha256: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class ShardEntry(FileEntry):
    """One token shard. ``num_sentences`` is None where the documents are
    not divided into sentences, ``num_words`` where words are not known.
    """

    num_tokens: Annotated[int, pydantic.Field(ge=0)]
    num_documents: Annotated[int, pydantic.Field(ge=0)]
    num_sentences: Annotated[int, pydantic.Field(ge=0)] | None = None
    num_words: Annotated[int, pydantic.Field(ge=0)] | None = None
    num_examples: Annotated[int, pydantic.Field(ge=0)] | None = None
    """Rows of an example shard; None in a token shard."""
    num_token_types: Annotated[int, pydantic.Field(ge=1, le=128)] | None = None
    """One more than the highest of an example shard's token types; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class PairTableEntry(FileEntry):
    """The pairs of one shard. ``num_random`` of the examples have a random second segment."""

    num_examples: Annotated[int, pydantic.Field(ge=0)]
    num_random: Annotated[int, pydantic.Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class PairSet:
    """The pairs of all shards for one sequence length: a table for each shard, in the same order, in the
    folder ``path`` beside the manifest; and what the pairs depend on beside the data.
    """

    path: Name
    sequence_length: Annotated[int, pydantic.Field(ge=5, le=65_535)]
    num_passes: Annotated[int, pydantic.Field(ge=1, le=10_000)]
    short_probability: Annotated[float, pydantic.Field(ge=0, le=1)]
    seed: int
    splits: dict[str, tuple[PairTableEntry, ...]]

    @property
    def fingerprint(self) -> str:
        """The identity of the tables: sha256 over everything."""
        return digest(asdict(self))

    @property
    def num_examples(self) -> int:
        """Examples of all splits and passes."""
        return sum(table.num_examples for tables in self.splits.values() for table in tables)

    @property
    def random_share(self) -> float:
        """The share of the examples whose second segment is random."""
        num_random = sum(table.num_random for tables in self.splits.values() for table in tables)
        return num_random / max(self.num_examples, 1)


@dataclass(frozen=True, kw_only=True)
class StaticExamples:
    """What the shards hold where they are no token shards: rows of fixed shape (example_shard.md)."""

    sequence_length: Annotated[int, pydantic.Field(ge=1, le=2**24)]
    num_predictions: Annotated[int, pydantic.Field(ge=0, le=2**24)]
    arrays: tuple[ArrayName, ...]


@dataclass(frozen=True, kw_only=True)
class TokenizerEntry:
    """What training needs to know of the tokenizer; its files lie in ``path`` beside the manifest."""

    path: Name
    fingerprint: str
    vocab_size: Annotated[int, pydantic.Field(ge=1, le=2**31)]
    special_ids: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Manifest(Splits[ShardEntry]):
    token_dtype: str
    tokenizer: TokenizerEntry
    splits: dict[str, tuple[ShardEntry, ...]]
    provenance: dict[str, Any]
    pairs: tuple[PairSet, ...] | None = None
    examples: StaticExamples | None = None
    """None: the shards are token shards."""

    @property
    def fingerprint(self) -> str:
        """The identity of the data: sha256 over everything but the provenance and the pairs, which may be
        added later.
        """
        plain = to_plain(self).items()
        return digest({key: value for key, value in plain if key not in ("provenance", "pairs")})

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.token_dtype)

    @property
    def files(self) -> tuple[ShardEntry, ...]:
        """The shards of all splits."""
        return self.entries

    @property
    def has_sentences(self) -> bool:
        """Whether the shards know where the sentences of their documents begin."""
        return any(shard.num_sentences is not None for shard in self.entries)

    @property
    def has_words(self) -> bool:
        """Whether the shards know where the words of their documents begin."""
        return any(shard.num_words is not None for shard in self.entries)

    def pair_set(self, sequence_length: int) -> PairSet:
        """Return the pairs for a sequence length. Raises ShardError naming the lengths there are."""
        for pair_set in self.pairs or ():
            if pair_set.sequence_length == sequence_length:
                return pair_set
        lengths = [str(pair_set.sequence_length) for pair_set in self.pairs or ()]
        raise ShardError(
            f"The data set has no pairs of {sequence_length} tokens.",
            expected="one of " + ", ".join(lengths) if lengths else None,
            remedy=(f"set stream.sequence_length to {' or '.join(lengths)}, or " if lengths else "")
            + f"make them: outlast shards pair MANIFEST --length {sequence_length}",
        )

    @property
    def num_token_types(self) -> int:
        """The token types that a model must have to read the examples."""
        if self.examples is None or "token_type_ids" not in self.examples.arrays:
            return 1
        # A data set that does not say, since it was imported by an earlier version, is taken to have pairs.
        return max((entry.num_token_types or 2 for entry in self.entries), default=1)

    def num_tokens(self, split: str) -> int:
        return sum(shard.num_tokens for shard in self.shards(split))


def write_manifest(store: Store, manifest: Manifest) -> None:
    """Write the manifest as ``manifest.json``. Only after every shard it names is there."""
    fields = to_plain(manifest)
    if manifest.pairs:
        fields["pairs_fingerprint"] = digest(fields["pairs"])
    write_document(store, manifest.fingerprint, fields)


def read_manifest(url: str) -> tuple[Manifest, Store]:
    """Read a manifest by the URL of its file; return it with the store that holds the shards.

    Raises:
        ShardError: no such manifest, not a manifest, or one whose fingerprint does not match its content.
    """
    text, store = read_manifest_bytes(url)
    return parse_manifest(text, where=url), store


def named_files(url: str) -> tuple[ShardEntry, ...]:
    """Return the shards that a manifest names. Raises ShardError."""
    return read_manifest(url)[0].files


def parse_manifest(text: bytes, *, where: str) -> Manifest:
    """Parse and check a manifest's bytes. Raises ShardError."""
    document = parse_document(text, where=where)
    if "kind" in document:
        raise ShardError(
            f"The data set holds {document['kind']!r:.50}, not text.",
            where=where,
            remedy="name the manifest of a data set that `outlast prepare` made",
        )
    expected = (document.pop("fingerprint", None), document.pop("pairs_fingerprint", None))
    manifest, fingerprint = build_manifest(Manifest, document, where=where)
    problem = _find_problem(manifest)
    pairs_fingerprint = digest(to_plain(manifest)["pairs"]) if manifest.pairs else None
    found = (fingerprint, pairs_fingerprint)
    check_manifest(problem, found == expected, where=where)
    return manifest


def _find_problem(manifest: Manifest) -> str | None:
    """Return what cannot be true of a data set, None where all is well: what follows counts on it."""
    if manifest.token_dtype not in ("uint16", "uint32"):
        return f"token_dtype is {manifest.token_dtype!r:.100}, not uint16 or uint32"
    tokenizer = manifest.tokenizer
    if set(tokenizer.special_ids) != _ROLES:
        return f"tokenizer.special_ids are not those of {', '.join(sorted(_ROLES))}"
    if not all(0 <= special_id < tokenizer.vocab_size for special_id in tokenizer.special_ids.values()):
        return f"tokenizer.special_ids are not below vocab_size, {tokenizer.vocab_size}"
    if problem := _find_problem_of_examples(manifest):
        return problem
    entries = manifest.entries
    if len({entry.num_sentences is None for entry in entries}) > 1:
        return "some shards have num_sentences, others have not"
    if len({entry.num_words is None for entry in entries}) > 1:
        return "some shards have num_words, others have not"
    for entry in entries:
        size = entry.num_tokens * manifest.dtype.itemsize + 8 * entry.num_documents
        size += 0 if entry.num_words is None else word_bytes(entry.num_tokens)
        if (entry.num_words or 0) > entry.num_tokens:
            return f"{entry.name} has {entry.num_words} words in {entry.num_tokens} tokens"
        if size + 4 * (entry.num_sentences or 0) > entry.size_bytes:
            return f"{entry.name} cannot hold {entry.num_tokens} tokens in {entry.size_bytes} bytes"
    return _find_problem_of_pairs(manifest)


def _find_problem_of_examples(manifest: Manifest) -> str | None:
    examples = manifest.examples
    if examples is not None and not {"input_ids", "attention_mask"} <= set(examples.arrays):
        return "its examples have no input_ids or no attention_mask"
    if examples is not None and len(set(examples.arrays)) != len(examples.arrays):
        return "it names an array of the examples twice"
    for entry in manifest.entries:
        if (entry.num_examples is None) != (examples is None):
            return f"{entry.name} {'has' if examples is None else 'lacks'} a number of examples"
        row_bytes = examples.sequence_length * manifest.dtype.itemsize if examples else 0
        if (entry.num_examples or 0) * row_bytes > entry.size_bytes:
            return f"{entry.name} cannot hold {entry.num_examples} examples in {entry.size_bytes} bytes"
    return None


def _find_problem_of_pairs(manifest: Manifest) -> str | None:
    pairs = manifest.pairs or ()
    if len({pair_set.sequence_length for pair_set in pairs}) < len(pairs):
        return "pairs holds a sequence_length twice"
    num_shards = {split: len(entries) for split, entries in manifest.splits.items()}
    for pair_set in pairs:
        if {split: len(tables) for split, tables in pair_set.splits.items()} != num_shards:
            return f"the pairs of {pair_set.sequence_length} tokens have not one table for each shard"
        for table in itertools.chain.from_iterable(pair_set.splits.values()):
            if table.num_examples * PAIR_BYTES > table.size_bytes or table.num_random > table.num_examples:
                return f"{table.name} cannot hold {table.num_examples} pairs in {table.size_bytes} bytes"
    return None
