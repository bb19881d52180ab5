"""JSON documents that carry their own digest: a byte that changed is noticed, whichever it was.

In: a dict of JSON values. Out: its one canonical text, with a field ``sha256``: the digest of the document's
line without that field. A line has sorted keys, no spaces, ASCII alone and a final newline. What people read
is written indented instead, its keys as the document has them; the digest is that of the line all the same.
Reading demands the text byte for byte.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, cast

from outlast.errors import SealError

DIGEST_KEY = "sha256"

Layout = Literal["line", "indented"]


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
