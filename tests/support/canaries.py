"""Secrets that are none: where one of them turns up, a real one would have leaked.

In: what a program said and wrote, by name. Out: the names in which a canary was found.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from outlast.storage import open_store
from support.s3 import ACCESS_KEY, SECRET_KEY

CANARIES = {
    "HF_TOKEN": "canary-hf-token-51d0",
    "WANDB_API_KEY": "canary-wandb-e77a",
    "GITHUB_TOKEN": "canary-github-04f2",
    "AWS_SESSION_TOKEN": "canary-session-b2c9",
    "AZURE_STORAGE_ACCOUNT_KEY": "canary-azure-6d31",
}
"""Besides those of S3: access key and secret key."""


def canaries_in(written: Mapping[str, bytes]) -> list[str]:
    """Return the names of what holds a canary, plain, quoted or in base64."""
    needles: set[bytes] = set()
    for secret in (ACCESS_KEY, SECRET_KEY, *CANARIES.values()):
        needles |= {secret.encode(), quote(secret).encode(), base64.b64encode(secret.encode()).rstrip(b"=")}
    return sorted(name for name, content in written.items() if any(needle in content for needle in needles))


def objects_of(url: str) -> dict[str, bytes]:
    """Return every object under a URL."""
    store = open_store(url)
    return {f"{url}/{info.name}": store.read(info.name) for info in store.list()}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file under a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
