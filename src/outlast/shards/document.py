"""What the manifests of all data sets have in common: an outer form, a fingerprint, a digest of their own.

In: ``manifest.json`` of whatever kind, or the plain values of one. Out: the other of the two. A manifest is
written sealed; one of version 1, which has no digest, is read with a line in the log.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

from outlast.errors import ObjectNotFound, ShardError
from outlast.logs import log
from outlast.storage import Store, open_store, split_url
from outlast.storage.checksummed_json import DIGEST_KEY, Kind, encode, parse, validate


class _HasFingerprint(Protocol):
    @property
    def fingerprint(self) -> str: ...


T = TypeVar("T", bound=_HasFingerprint)
E = TypeVar("E")

FORMAT = "outlast-manifest"
MANIFEST_NAME = "manifest.json"
MADE_BY = (
    "`outlast prepare RUN.toml --out DIR` makes one of text, `outlast shards import` and "
    "`outlast shards images` make one of images"
)
_REMEDY = (
    "restore the file, or delete it and give the line that made the data set again (`outlast prepare`, "
    "`outlast shards ...`): it writes the same bytes"
)
_KIND = Kind(FORMAT, (1, 2), "manifest", _REMEDY, ShardError)


class Splits(Generic[E]):
    """What the manifests of text and of images have in common: splits of shards."""

    splits: dict[str, tuple[E, ...]]

    @property
    def entries(self) -> tuple[E, ...]:
        """The shards of all splits."""
        return tuple(itertools.chain.from_iterable(self.splits.values()))

    def shards(self, split: str) -> tuple[E, ...]:
        """Return the shards of a split. Raises ShardError naming the splits there are."""
        if split not in self.splits:
            raise ShardError(
                f"The data set has no split {split!r}.", expected="one of " + ", ".join(self.splits)
            )
        return self.splits[split]


def to_plain(manifest: Any) -> dict[str, Any]:
    """Return the manifest as plain values, without those that are None: a key that a data set does not use
    must not change the fingerprint it had before the key existed.
    """
    return asdict(
        manifest, dict_factory=lambda items: {key: value for key, value in items if value is not None}
    )


def digest(value: Any) -> str:
    """Return the sha256 of plain values, as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_document(store: Store, fingerprint: str, fields: Mapping[str, Any]) -> None:
    """Write the fields of a manifest as ``manifest.json``, behind what every manifest begins with."""
    store.replace(MANIFEST_NAME, [encode(_KIND, {"fingerprint": fingerprint, **fields})])


def read_manifest_bytes(url: str) -> tuple[bytes, Store]:
    """Return a manifest's bytes, of whatever kind, and the store that it lies in. Raises ShardError."""
    folder, name = split_url(url)
    store = open_store(folder)
    path = store.local_path(name)
    if path is not None and os.path.isdir(path):  # a name that is too long is no folder, and no error yet
        raise ShardError(
            "This is a folder.", where=url, remedy=f"name the manifest in it: {path / MANIFEST_NAME}"
        )
    if path is not None and os.path.exists(path) and not os.path.isfile(path):
        raise ShardError(
            "This is a pipe or a device, which is never read.", where=url, remedy="name a manifest.json"
        )
    try:
        return store.read(name), store
    except ObjectNotFound:
        raise ShardError(
            "There is no manifest.",
            where=url,
            remedy=f"name the manifest.json of a data set: {MADE_BY}; "
            "where that of a run lies elsewhere now: --set stream.manifest=URL",
        ) from None


def parse_document(text: bytes, *, where: str, kind: Kind = _KIND) -> dict[str, Any]:
    """Return the plain values of a manifest of whatever kind, without what every manifest begins with, and
    without its digest.

    One of version 1, which has no digest, is read with a line in the log.

    Raises:
        ShardError: not a manifest, of a version that this package does not know, or edited.
    """
    # Deleting a file of another name could be a loss.
    is_ours = split_url(where)[1] == MANIFEST_NAME
    remedy = kind.remedy if is_ours else f"name the {MANIFEST_NAME} of a data set"
    fields = parse(text, kind._replace(remedy=remedy), where=where)
    if fields.pop(DIGEST_KEY, None) is None:
        _say_unsealed(where)
    return fields


@cache  # once for each manifest, however often it is read
def _say_unsealed(where: str) -> None:
    log.info("%s is of version 1, which carries no digest: an edit of its counts would not be noticed", where)


def build_manifest(cls: type[T], fields: Mapping[str, Any], *, where: str) -> tuple[T, str]:
    """Make a manifest of plain values; return it with its fingerprint. Raises ShardError naming the first key
    that is wrong.
    """
    try:
        manifest = validate(cls, fields, _KIND, where=where)
        return manifest, manifest.fingerprint
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
