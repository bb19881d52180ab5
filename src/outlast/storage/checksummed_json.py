"""JSON documents that carry their own digest: a byte that changed is noticed, whichever it was.

In: a dict of JSON values. Out: its one canonical text, with a field ``sha256``: the digest of the document's
line without that field. A line has sorted keys, no spaces, ASCII alone and a final newline. What people read
is written indented instead, its keys as the document has them; the digest is that of the line all the same.
Reading demands the text byte for byte.

A document of a ``Kind`` begins with its format and version. Version 1 of each was without a digest.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast

import pydantic

from outlast.errors import ObjectNotFound, OutlastError, SealError
from outlast.storage.store import Store

DIGEST_KEY = "sha256"
_UNSEALED_VERSION = 1
T = TypeVar("T")

Layout = Literal["line", "indented"]
Files = Mapping[str, str]
"""The sha256 of files by their names, which a document names that they belong to."""


class Kind(NamedTuple):
    """What a file says it is in its keys ``format`` and ``version``, and what is said of one that is not.

    Attributes:
        format: None: the file has no such key.
        versions: that are read; the last one is written.
        noun: what a message calls it.
        remedy: what to do about a damaged one; None: the reader goes on without it.
        error: that a message is raised as.
    """

    format: str | None
    versions: tuple[int | str, ...]
    noun: str
    remedy: str | None
    error: type[OutlastError]

    @property
    def head(self) -> dict[str, Any]:
        """What a file of this kind begins with."""
        return {"format": self.format, "version": self.versions[-1]}


def check_kind(document: Mapping[str, Any], kind: Kind, *, where: str) -> None:
    """Raise the error of a kind where a document says that it is of another one, or of a version that is not
    read.
    """
    found, version = document.get("format"), document.get("version")
    if kind.format is not None and found != kind.format:
        raise kind.error(
            f"The file is no {kind.noun}: its format is {found!r:.100}.",
            where=where,
            expected=f'"format": "{kind.format}"',
            remedy=kind.remedy,
        )
    if version not in kind.versions:
        raise kind.error(
            f"The {kind.noun} has version {version!r:.100}.",
            where=where,
            expected=f"version {' or '.join(map(str, kind.versions))}",
            remedy=", or ".join(filter(None, (_newer_version(version, kind), kind.remedy))) or None,
        )


def _newer_version(version: object, kind: Kind) -> str | None:
    """A version after all that are read was written by a later package; one before them none reads."""
    is_newer = str(version).isdecimal() and int(str(version)) > max(map(int, kind.versions))
    return "read it with a newer version of this package" if is_newer else None


def encode(kind: Kind, fields: Mapping[str, Any]) -> bytes:
    """Return the indented text of a document of a kind, sealed but for version 1."""
    document = {**kind.head, **fields}
    is_sealed = kind.versions[-1] != _UNSEALED_VERSION
    return seal(document, "indented") if is_sealed else canonical(document, "indented")


def parse(content: bytes, kind: Kind, *, where: str) -> dict[str, Any]:
    """Return what follows format and version in a document of a kind, its digest included where it has one.

    Raises:
        OutlastError: that of the kind: no JSON, another kind or version, or not as it was sealed.
    """
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise kind.error(f"The {kind.noun} is not JSON: {error}", where=where, remedy=kind.remedy) from None
    fields = cast(dict[str, Any], document) if isinstance(document, dict) else {}
    check_kind(fields, kind, where=where)
    is_sealed = fields["version"] != _UNSEALED_VERSION or isinstance(fields.get(DIGEST_KEY), str)
    if is_sealed and not has_seal(fields, content, "indented"):
        raise kind.error(
            f"The {kind.noun} does not match the sha256 it carries: it was edited or damaged.",
            where=where,
            remedy=kind.remedy,
        )
    return {key: value for key, value in fields.items() if key not in kind.head}


def read_file(store: Store, name: str, files: Files, kind: Kind) -> bytes:
    """Return the content of a file that a document of a kind names. Raises the error of the kind where it is
    missing or has another digest.
    """
    where = store.url_of(name)
    try:
        content = store.read(name)
    except ObjectNotFound:
        raise kind.error(
            f"The {kind.noun} names a file that is missing.", where=where, remedy=kind.remedy
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if files.get(name) != found:
        raise kind.error(
            f"The file has sha256 {found}.",
            where=where,
            expected=f"{files.get(name, 'no such file')} by the {kind.noun}",
            remedy=kind.remedy,
        )
    return content


def validate(cls: type[T], fields: Mapping[str, Any] | bytes, kind: Kind, *, where: str) -> T:
    """Return the fields of a document, or its text, as a dataclass. Raises the error of its kind, naming the
    first key that is wrong.
    """
    adapter = pydantic.TypeAdapter(cls)
    try:
        return adapter.validate_json(fields) if isinstance(fields, bytes) else adapter.validate_python(fields)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise kind.error(
            f"The {kind.noun}'s {key:.200} is wrong: {first['msg']}", where=where, remedy=kind.remedy
        ) from None


def canonical(document: Mapping[str, Any], layout: Layout = "line") -> bytes:
    """Return the canonical text of a document. Raises SealError for what is no JSON (NaN among it)."""
    try:
        if layout == "indented":
            text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
        else:
            text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise SealError(
            f"What is to be written is not plain JSON: {error}",
            expected="strings, finite numbers, lists, dicts",
        ) from None


def digest(document: Mapping[str, Any]) -> str:
    """Return the sha256 of a document without its own digest field."""
    return hashlib.sha256(
        canonical({key: value for key, value in document.items() if key != DIGEST_KEY})
    ).hexdigest()


def seal(document: Mapping[str, Any], layout: Layout = "line") -> bytes:
    """Return the text of a document with its digest inside."""
    return canonical({**document, DIGEST_KEY: digest(document)}, layout)


def has_seal(document: Mapping[str, Any], content: bytes, layout: Layout = "line") -> bool:
    """Whether a text that was read as this document is its sealed text."""
    try:
        return seal(document, layout) == content
    except SealError:
        return False


def unseal(content: bytes, *, where: str, layout: Layout = "line") -> dict[str, Any]:
    """Return the document of a sealed text, digest field included.

    Raises:
        SealError: not JSON, not canonical, or another digest.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise SealError("The file is not JSON.", where=where) from None
    if not isinstance(document, dict):
        raise SealError("The file is not a JSON object.", where=where)
    document = cast(dict[str, Any], document)
    if not has_seal(document, content, layout):
        raise SealError("The file does not match the sha256 it carries.", where=where)
    return document
