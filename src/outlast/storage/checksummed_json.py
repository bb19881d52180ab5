"""JSON documents that carry their own digest: a byte that changed is noticed, whichever it was.

In: a dict of JSON values. Out: its one canonical text (keys sorted, no spaces, ASCII, a final newline) with a
field ``sha256`` over the canonical text without that field. Reading demands the canonical text byte for byte.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, cast

from outlast.errors import CheckpointError, DamagedCheckpoint

DIGEST_KEY = "sha256"


def canonical(document: Mapping[str, Any]) -> bytes:
    """Return the canonical text of a document. Raises CheckpointError for what is no JSON (NaN among it)."""
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"The description of a checkpoint is not plain JSON: {error}",
            expected="strings, finite numbers, lists, dicts",
        ) from None
    return text.encode() + b"\n"


def digest(document: Mapping[str, Any]) -> str:
    """Return the sha256 of a document without its own digest field."""
    return hashlib.sha256(
        canonical({key: value for key, value in document.items() if key != DIGEST_KEY})
    ).hexdigest()


def seal(document: Mapping[str, Any]) -> bytes:
    """Return the text of a document with its digest inside."""
    return canonical({**document, DIGEST_KEY: digest(document)})


def unseal(content: bytes, *, where: str) -> dict[str, Any]:
    """Return the document of a sealed text, digest field included.

    Raises:
        DamagedCheckpoint: not JSON, not canonical, or another digest.
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise DamagedCheckpoint("The file is not JSON.", where=where) from None
    if not isinstance(document, dict):
        raise DamagedCheckpoint("The file is not a JSON object.", where=where)
    document = cast(dict[str, Any], document)
    try:
        intact = seal(document) == content
    except CheckpointError:
        intact = False
    if not intact:
        raise DamagedCheckpoint("The file does not match the sha256 it carries.", where=where)
    return document
