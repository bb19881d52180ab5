"""The content of an object that is too large for memory, collected in temporary files.

In: open files. Out: a sequence of bytes for ``Store.create`` and ``Store.replace``, of which one slice at a
time is in memory.
"""

import errno
import os
from collections.abc import Sequence
from typing import IO, overload

from outlast.errors import StorageError
from outlast.storage.local import local_failure

_CHUNK_BYTES = 8 * 2**20


class Spooled(Sequence[bytes]):
    """A head and files as the content of one object, read a slice at a time.

    Args:
        head: what comes first.
        files: open for reading; the content of each from its beginning. Not closed here.
    """

    def __init__(self, head: bytes, files: Sequence[IO[bytes]]) -> None:
        self._head = head
        self._slices: list[tuple[IO[bytes], int]] = []
        self.size_bytes = len(head)
        for file in files:
            try:
                size = file.seek(0, 2)
            except OSError as error:
                raise spool_failed(error) from error
            self.size_bytes += size
            self._slices += [(file, begin) for begin in range(0, size, _CHUNK_BYTES)]

    def __len__(self) -> int:
        return 1 + len(self._slices)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        if range(len(self))[index] == 0:
            return self._head
        file, begin = self._slices[range(len(self))[index] - 1]
        file.seek(begin)
        return file.read(_CHUNK_BYTES)


def spool_failed(error: OSError) -> StorageError:
    """Return the error for temporary files that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"Cannot write temporary files: {error.strerror}.",
            remedy="free space in the output folder (for a remote one: in the folder that TMPDIR names)",
        )
    where = None if error.filename is None else os.fspath(error.filename)
    return local_failure("Cannot write temporary files", where, error)
