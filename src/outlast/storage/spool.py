"""The content of an object that is too large for memory, collected in temporary files.

In: open files, or bytes for each of a fixed number of arrays that grow side by side. Out: a sequence of bytes
for ``Store.create`` and ``Store.replace``, of which one slice at a time is in memory; or an object that holds
a header and the arrays one behind the other. The files of ``Spool`` have no name, so a killed process leaves
nothing.
"""

import errno
import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, overload

from outlast.errors import StorageError
from outlast.storage.local import local_failure
from outlast.storage.store import Store

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


class Spool:
    """The arrays of one file in the making.

    Args:
        num_arrays: how many.
        folder: where the temporary files lie; None for the system's folder.

    Raises:
        StorageError: they cannot be made.
    """

    def __init__(self, num_arrays: int, folder: Path | None) -> None:
        self._stack = ExitStack()
        try:
            self._files = [
                self._stack.enter_context(tempfile.TemporaryFile(dir=folder))  # noqa: SIM115
                for _ in range(num_arrays)
            ]
        except OSError as error:
            self._stack.close()
            raise spool_failed(error) from error

    def close(self) -> None:
        """Let go of the temporary files."""
        # On a full disk closing fails again; the failed write has been reported, and the file has no name.
        with suppress(OSError):
            self._stack.close()

    def write(self, *contents: bytes | memoryview) -> None:
        """Append to each array, the first ones where fewer are given. Raises StorageError."""
        try:
            for file, content in zip(self._files, contents, strict=False):
                file.write(content)
        except OSError as error:
            raise spool_failed(error) from error

    def put(self, store: Store, name: str, header: bytes) -> tuple[int, str]:
        """Put the object in place, whole; return its size in bytes and its sha256.

        An object of that name is replaced: the builder of a killed portion writes the same bytes again.
        """
        chunks = Spooled(header, self._files)
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        store.replace(name, chunks)
        return chunks.size_bytes, digest.hexdigest()


def spool_failed(error: OSError) -> StorageError:
    """Return the error for temporary files that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"Cannot write temporary files: {error.strerror}.",
            remedy="free space in the output folder (for a remote one: in the folder that TMPDIR names)",
        )
    where = None if error.filename is None else os.fspath(error.filename)
    return local_failure("Cannot write temporary files", where, error)
