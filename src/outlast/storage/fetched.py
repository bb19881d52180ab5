"""Objects of servers that give no ranges: fetched whole, once for all processes of a machine.

In: what names a version of an object, its size, and a way to fetch it. Out: an open file. The folder is
``outlast/files`` in the user's cache folder; it holds 32 GiB at most, but for what is in use. A file appears
whole, by rename, under the digest of its version: an object that changes on the server is another file. Who
has one open holds a shared lock of it, so it is not deleted to make room.
"""

import errno
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from outlast.errors import StorageError
from outlast.storage.cache_files import PART, delete_unused, open_used, owned, part_of
from outlast.storage.local import local_failure

_MOST_BYTES = 32 * 2**30


def folder() -> Path:
    """Return where the files lie."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "outlast" / "files"


def open_fetched(version: str) -> BinaryIO | None:
    """Return a version of an object that was fetched before, open; None where there is none."""
    try:
        return open_used(_path_of(version))
    except OSError:
        return None


def fetch(version: str, size_bytes: int, write: Callable[[BinaryIO], object]) -> BinaryIO:
    """Return a version of an object, open: one process fetches it, the others wait for that.

    Args:
        version: the URL and all that changes with the content.
        size_bytes: of the object.
        write: writes all of it to a file.

    Raises:
        StorageError: the folder cannot be written, or the object changed; and what ``write`` raises.
    """
    path = _path_of(version)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            file = open_used(path)
            if file is not None:
                return file
            with owned(part_of(path)) as part:
                if part is None or path.exists():
                    continue
                _make_room(path.parent, size_bytes)
                write(part)
                part.flush()
                os.fsync(part.fileno())
                if os.fstat(part.fileno()).st_size != size_bytes:
                    raise StorageError(
                        "The object has changed while it was fetched.",
                        where=version.partition("\n")[0],
                        expected=f"{size_bytes} bytes",
                    )
                part_of(path).replace(path)
    except OSError as error:
        raise _failed(error) from error


def _path_of(version: str) -> Path:
    return folder() / hashlib.sha256(version.encode()).hexdigest()


def _make_room(place: Path, size_bytes: int) -> None:
    """Delete what nobody uses and was used longest ago, until a file more is within the bound."""
    found: list[tuple[float, int, Path]] = []
    for path in place.iterdir():
        with suppress(FileNotFoundError):
            status = path.stat()
            used = status.st_mtime if path.suffix == PART else status.st_atime
            found.append((used, status.st_size, path))
    total = size_bytes + sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        # A new file of a living process has no lock for the moment in which it is made.
        if total > _MOST_BYTES or (path.suffix == PART and time.time() - used > 60):
            total -= size if delete_unused(path) else 0


def _failed(error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"Cannot keep a file of a server that gives no ranges: {error.strerror}.",
            where=str(folder()),
            remedy="free space there, or set XDG_CACHE_HOME to a folder on a larger disk",
        )
    return local_failure("Cannot keep a file of a server that gives no ranges", str(folder()), error)
