"""The manifest: which shards make a data set, and what must be true of each byte of them.

In: ``manifest.json`` beside the shards (docs/formats/manifest.md). Out: a frozen ``Manifest``. It is
written last, so where there is a manifest there is a whole data set.
"""

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
import pydantic

from outlast.errors import ObjectNotFound, ShardError
from outlast.storage import Store, open_store, split_url

FORMAT = "outlast-manifest"
VERSION = 1
MANIFEST_NAME = "manifest.json"
_REMEDY = "restore the file, or delete it and run `outlast prepare` again: it writes the same bytes"

_MOST_BYTES = 2**50
_ROLES = {"pad", "unk", "cls", "sep", "mask"}

Name = Annotated[str, pydantic.Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}$")]
"""A name beside the manifest: it cannot lead anywhere else."""


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """One token shard. ``sha256`` covers the whole file."""

    name: Name
    size_bytes: Annotated[int, pydantic.Field(ge=0, le=_MOST_BYTES)]
    sha256: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
    num_tokens: Annotated[int, pydantic.Field(ge=0)]
    num_documents: Annotated[int, pydantic.Field(ge=0)]


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

    @property
    def fingerprint(self) -> str:
        """The identity of the data: sha256 over everything but the provenance."""
        identity = {key: value for key, value in asdict(self).items() if key != "provenance"}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

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

    def num_tokens(self, split: str) -> int:
        return sum(shard.num_tokens for shard in self.shards(split))


def write_manifest(store: Store, manifest: Manifest) -> None:
    """Write the manifest as ``manifest.json``. Only after every shard it names is there."""
    document = {"format": FORMAT, "version": VERSION, "fingerprint": manifest.fingerprint, **asdict(manifest)}
    store.replace(MANIFEST_NAME, [(json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()])


def read_manifest(url: str) -> tuple[Manifest, Store]:
    """Read a manifest by the URL of its file; return it with the store that holds the shards.

    Raises:
        ShardError: no such manifest, not a manifest, or one whose fingerprint does not match its content.
    """
    folder, name = split_url(url)
    store = open_store(folder)
    try:
        text = store.read(name)
    except ObjectNotFound:
        raise ShardError(
            "There is no manifest.",
            where=url,
            remedy="run `outlast prepare RUN.toml --out DIR` and name DIR/manifest.json",
        ) from None
    return parse_manifest(text, where=url), store


def parse_manifest(text: bytes, *, where: str) -> Manifest:
    """Parse and check a manifest's bytes. Raises ShardError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ShardError(f"The manifest is not JSON: {error}", where=where, remedy=_REMEDY) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ShardError("The file is not a manifest.", where=where, expected=f'"format": "{FORMAT}"')
    if document.get("version") != VERSION:
        raise ShardError(
            f"The manifest has version {document.get('version')!r}.",
            where=where,
            expected=f"version {VERSION}",
        )
    fields = {
        key: value for key, value in document.items() if key not in ("format", "version", "fingerprint")
    }
    try:
        manifest = pydantic.TypeAdapter(Manifest).validate_python(fields)
        fingerprint = manifest.fingerprint
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ShardError(f"The manifest's {key:.200} is wrong: {first['msg']}", where=where) from None
    except RecursionError:
        raise ShardError("The manifest is nested too deeply.", where=where, remedy=_REMEDY) from None
    problem = _find_problem(manifest)
    if problem:
        raise ShardError(f"The manifest is wrong: {problem}.", where=where, remedy=_REMEDY)
    if fingerprint != document.get("fingerprint"):
        raise ShardError(
            "The manifest's fingerprint does not match its content.",
            where=where,
            remedy=_REMEDY,
        )
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
    for entry in itertools.chain.from_iterable(manifest.splits.values()):
        if entry.num_tokens * manifest.dtype.itemsize + 8 * entry.num_documents > entry.size_bytes:
            return f"{entry.name} cannot hold {entry.num_tokens} tokens in {entry.size_bytes} bytes"
    return None
