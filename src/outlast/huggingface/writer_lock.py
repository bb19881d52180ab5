"""One writer for a folder at a time, so that what killed writers left can be told from what is being written.

In: the place of a folder. Out: the right to write it, which ends with the process. The lock is on an open
file beside the folder, ``.NAME.outlast-lock``, never on its name; who has it deletes it.
"""

import errno
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from outlast.errors import OutlastError

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


@contextmanager
def only_writer(folder: Path) -> Generator[bool]:
    """Hold the right to write a folder.

    Yields False where the file system knows no locks: others may be writing then.

    Raises:
        OutlastError: another process has it.
        OSError: the file of the lock cannot be made.
    """
    path = folder.parent / f".{folder.name}.outlast-lock"
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
            is_locked = _lock(file.fileno(), folder)
            try:
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    continue  # another process ended just now, and took its file away
            except FileNotFoundError:
                continue
            try:
                yield is_locked
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def _lock(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutlastError(
            "Another process is writing this model.",
            where=str(folder),
            remedy="wait for it, or choose another name",
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True
