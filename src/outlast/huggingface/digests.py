"""The digests of an export: what is read of it is what was written, or an error.

In: a folder. Out: nothing, or an error where a file is not as ``outlast.json`` says. A folder from elsewhere
has none and is read as it is. The files are hashed by a thread beside what is done with them. ``README.md``
is for people, who complete it, and has no digest.
"""

import hashlib
from collections.abc import Collection, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from outlast.errors import ObjectNotFound, OutlastError
from outlast.storage import LocalStore, Store
from outlast.storage.checksummed_json import DIGEST_KEY, Kind, encode, parse
from outlast.storage.regular import open_regular

PROVENANCE_NAME = "outlast.json"
CARD_NAME = "README.md"
_REMEDY = (
    "restore the file, or export again; where it was changed on purpose, delete "
    f"{PROVENANCE_NAME}: the folder is then read as it is, like one from elsewhere"
)
_KIND = Kind("outlast-export", (1, 2), "description of the export", _REMEDY, OutlastError)


def write_provenance(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write ``outlast.json``: these fields, and the digest of every file that is there."""
    paths = sorted(path for path in folder.iterdir() if path.name != CARD_NAME)
    files = {path.name: _digest(LocalStore(folder), path.name) for path in paths}
    (folder / PROVENANCE_NAME).write_bytes(encode(_KIND, {**fields, "files": files}))


@contextmanager
def checking(folder: Path, *, but: Collection[str] = ()) -> Generator[None]:
    """Compare the files of an export with their digests while what is inside reads them.

    A file that is missing is left to who needs it.

    Args:
        but: names of files that are not read here.

    Raises:
        OutlastError: a file is not as it was exported. It takes the place of what the inside raised of it.
    """
    store = LocalStore(folder)
    digests = {name: digest for name, digest in read_digests(store).items() if name not in but}
    with ThreadPoolExecutor(1, "digests") as pool:
        checked = pool.submit(changed_files, store, digests)
        try:
            yield
        except Exception:
            _refuse(folder, [name for name in checked.result() if (folder / name).is_file()])
            raise
        _refuse(folder, checked.result())


def check_tokenizer(place: Path) -> None:
    """Check a tokenizer's file or folder against the digests of the export it may belong to. Raises
    OutlastError.
    """
    folder = place if place.is_dir() else place.parent
    store = LocalStore(folder)
    _refuse(folder, changed_files(store, read_digests(store)))


def changed_files(store: Store, digests: Mapping[str, str]) -> list[str]:
    """Return the names of the files that are there and do not match their digests."""
    return [name for name, digest in digests.items() if store.exists(name) and _digest(store, name) != digest]


def read_digests(store: Store) -> dict[str, str]:
    """Return the digest of each file that decides what an export answers; none for a folder from elsewhere.

    Raises:
        OutlastError: an ``outlast.json`` that is damaged, or of another kind.
    """
    try:
        content = store.read(PROVENANCE_NAME)
    except ObjectNotFound:
        return {}
    fields = parse(content, _KIND, where=store.url_of(PROVENANCE_NAME))
    digests: Any = fields.get(DIGEST_KEY)
    names = fields.get("files") if isinstance(digests, str) else digests  # where version 1 has them
    if isinstance(names, dict) and all(Path(name).name == name for name in cast(dict[str, str], names)):
        return {name: digest for name, digest in cast(dict[str, str], names).items() if name != CARD_NAME}
    raise OutlastError(
        "The digests of the model's files cannot be read: they were edited or damaged.",
        where=store.url_of(PROVENANCE_NAME),
        remedy=_REMEDY,
    )


def _refuse(folder: Path, changed: list[str]) -> None:
    if changed:
        raise OutlastError(
            f"The model is not the one that was exported: {', '.join(changed)} "
            f"{'has' if len(changed) == 1 else 'have'} another sha256.",
            where=str(folder / changed[0]),
            expected=f"the sha256 in {PROVENANCE_NAME}",
            remedy=_REMEDY,
        ) from None


def _digest(store: Store, name: str) -> str | None:
    """None: it is no file, such as a pipe, which is never read."""
    path = store.local_path(name)
    if path is not None and not path.is_file():
        return None
    with open_regular(path) if path else store.open(name) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
