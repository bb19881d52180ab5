"""Files from outside, opened only where they are plain files, and read whole only up to a size.

In: a path. Out: a stream, or bytes. A pipe would be waited for and a device read for ever; what is read whole
is small by its nature, so a larger one is something else. This is the one way in which the package opens a
file that somebody names.
"""

import errno
import io
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import cast

MOST_BYTES = 2**28
"""The largest file or object that is read whole, unless its reader knows better: manifests, vocabularies,
records, recipes and pictures are far smaller."""
_CHUNK_BYTES = 2**20


def open_regular(path: str | Path, buffering: int = -1) -> io.BufferedReader:
    """Open a file for reading. Raises OSError, for a pipe or a device too; none of them is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "It is a pipe or a device, which is never read", str(path))
    return cast(io.BufferedReader, os.fdopen(descriptor, "rb", buffering))


def read_whole(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises OSError, as ``open_regular`` and for one of more bytes."""
    with open_regular(path) as file:
        content = read_up_to(file.read, most_bytes)
    if content is None:
        raise OSError(
            errno.EFBIG, f"It has more than {most_bytes} bytes, the most that is read whole", str(path)
        )
    return content


def read_up_to(read: Callable[[int], bytes], most_bytes: int) -> bytes | None:
    """Return what a stream holds up to its end; None where that is more."""
    chunks: list[bytes] = []
    left = most_bytes
    while chunk := read(min(left + 1, _CHUNK_BYTES)):
        left -= len(chunk)
        if left < 0:
            return None
        chunks.append(chunk)
    return b"".join(chunks)
