"""The manifest: which shards make a data set, and what must be true of each byte of them.

In: ``manifest.json`` beside the shards (docs/formats/manifest.md). Out: a frozen ``Manifest``. It is
written last, so where there is a manifest there is a whole data set.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar, cast

import numpy as np
import pydantic

from outlast.errors import ObjectNotFound, ShardError
from outlast.shards.token_format import word_bytes
from outlast.storage import Store, open_store, split_url


class _HasFingerprint(Protocol):
    @property
    def fingerprint(self) -> str: ...


T = TypeVar("T", bound=_HasFingerprint)

FORMAT = "outlast-manifest"
VERSION = 1
MANIFEST_NAME = "manifest.json"
PAIR_BYTES = 17
"""A row of a pair table (docs/formats/pair_table.md)."""
_REMEDY = (
    "restore the file, or delete it and give the line that made the data set again (`outlast prepare`, "
    "`outlast shards ...`): it writes the same bytes"
)

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
class Manifest:
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

    def shards(self, split: str) -> tuple[ShardEntry, ...]:
        """Return the shards of a split. Raises ShardError naming the splits there are."""
        if split not in self.splits:
            raise ShardError(
                f"The data set has no split {split!r}.", expected="one of " + ", ".join(self.splits)
            )
        return self.splits[split]

    @property
    def has_sentences(self) -> bool:
        """Whether the shards know where the sentences of their documents begin."""
        return any(shard.num_sentences is not None for shards in self.splits.values() for shard in shards)

    @property
    def has_words(self) -> bool:
        """Whether the shards know where the words of their documents begin."""
        return any(shard.num_words is not None for shards in self.splits.values() for shard in shards)

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
        entries = itertools.chain.from_iterable(self.splits.values())
        # A data set that does not say, since it was imported by an earlier version, is taken to have pairs.
        return max((entry.num_token_types or 2 for entry in entries), default=1)

    def num_tokens(self, split: str) -> int:
        return sum(shard.num_tokens for shard in self.shards(split))


def to_plain(manifest: Any) -> dict[str, Any]:
    """Return the manifest as plain values. What is None is left out, so that a key which a data set does not
    need leaves its fingerprint as it was before the key existed.
    """
    return asdict(
        manifest, dict_factory=lambda items: {key: value for key, value in items if value is not None}
    )


def digest(value: Any) -> str:
    """Return the sha256 of plain values, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_manifest(store: Store, manifest: Manifest) -> None:
    """Write the manifest as ``manifest.json``. Only after every shard it names is there."""
    fields = to_plain(manifest)
    if manifest.pairs:
        fields["pairs_fingerprint"] = digest(fields["pairs"])
    write_document(store, manifest.fingerprint, fields)


def write_document(store: Store, fingerprint: str, fields: Mapping[str, Any]) -> None:
    """Write the fields of a manifest as ``manifest.json``, behind what every manifest begins with."""
    document = {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint, **fields}
    store.replace(MANIFEST_NAME, [(json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()])


def read_manifest(url: str) -> tuple[Manifest, Store]:
    """Read a manifest by the URL of its file; return it with the store that holds the shards.

    Raises:
        ShardError: no such manifest, not a manifest, or one whose fingerprint does not match its content.
    """
    text, store = read_manifest_bytes(url)
    return parse_manifest(text, where=url), store


def read_manifest_bytes(url: str) -> tuple[bytes, Store]:
    """Return a manifest's bytes, of whatever kind, and the store that it lies in. Raises ShardError."""
    folder, name = split_url(url)
    store = open_store(folder)
    path = store.local_path(name)
    if path is not None and path.is_dir():
        raise ShardError(
            "This is a folder.", where=url, remedy=f"name the manifest in it: {path / MANIFEST_NAME}"
        )
    try:
        return store.read(name), store
    except ObjectNotFound:
        raise ShardError(
            "There is no manifest.",
            where=url,
            remedy="name the manifest.json of a data set: `outlast prepare RUN.toml --out DIR` makes one of "
            "text, `outlast shards import` and `outlast shards images` make one of images",
        ) from None


def parse_document(text: bytes, *, where: str) -> dict[str, Any]:
    """Return the plain values of a manifest of whatever kind. Raises ShardError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShardError(
            f"The manifest is not JSON: {error}", where=where, remedy=_remedy_for(where)
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ShardError(
            "The file is not a manifest.",
            where=where,
            expected=f'"format": "{FORMAT}"',
            remedy=_remedy_for(where),
        )
    if document.get("version") != VERSION:
        raise ShardError(
            f"The manifest has version {document.get('version')!r}.",
            where=where,
            expected=f"version {VERSION}",
        )
    return cast(dict[str, Any], document)


def _remedy_for(where: str) -> str:
    """Return what to do about a file that is no manifest: deleting one of another name could be a loss."""
    is_ours = split_url(where)[1] == MANIFEST_NAME
    return _REMEDY if is_ours else f"name the {MANIFEST_NAME} that `outlast prepare` wrote"


def build_manifest(cls: type[T], fields: Mapping[str, Any], *, where: str) -> tuple[T, str]:
    """Make a manifest of plain values; return it with its fingerprint. Raises ShardError naming the first key
    that is wrong.
    """
    try:
        manifest = pydantic.TypeAdapter(cls).validate_python(fields)
        return manifest, manifest.fingerprint
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ShardError(f"The manifest's {key:.200} is wrong: {first['msg']}", where=where) from None
    except RecursionError:
        raise ShardError("The manifest is nested too deeply.", where=where, remedy=_REMEDY) from None


def check_manifest(problem: str | None, has_right_fingerprint: bool, *, where: str) -> None:
    """Raise ShardError where a manifest says what cannot be, or has another fingerprint than it says."""
    if problem:
        raise ShardError(f"The manifest is wrong: {problem}.", where=where, remedy=_REMEDY)
    if not has_right_fingerprint:
        raise ShardError(
            "The manifest's fingerprint does not match its content.", where=where, remedy=_REMEDY
        )


def parse_manifest(text: bytes, *, where: str) -> Manifest:
    """Parse and check a manifest's bytes. Raises ShardError."""
    document = parse_document(text, where=where)
    if "kind" in document:
        raise ShardError(
            f"The data set holds {document['kind']!r:.50}, not text.",
            where=where,
            remedy="name the manifest of a data set that `outlast prepare` made",
        )
    outer = ("format", "version", "fingerprint", "pairs_fingerprint")
    fields = {key: value for key, value in document.items() if key not in outer}
    manifest, fingerprint = build_manifest(Manifest, fields, where=where)
    problem = _find_problem(manifest)
    pairs_fingerprint = digest(to_plain(manifest)["pairs"]) if manifest.pairs else None
    found = (fingerprint, pairs_fingerprint)
    expected = (document.get("fingerprint"), document.get("pairs_fingerprint"))
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
    entries = list(itertools.chain.from_iterable(manifest.splits.values()))
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
    for entry in itertools.chain.from_iterable(manifest.splits.values()):
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
