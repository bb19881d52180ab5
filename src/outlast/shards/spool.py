"""Arrays that grow side by side in nameless temporary files, then become one object, whole.

In: bytes for each of a fixed number of arrays. Out: an object that holds a header and the arrays one behind
the other. Memory stays small however large they are, and what a killed process leaves has no name.
"""

import hashlib
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from outlast.storage import Store
from outlast.storage.spool import Spooled, spool_failed


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

        An object of that name is replaced: the builder of a killed piece writes the same bytes again.
        """
        chunks = Spooled(header, self._files)
        digest = hashlib.sha256()
        for chunk in chunks:
            digest.update(chunk)
        store.replace(name, chunks)
        return chunks.size_bytes, digest.hexdigest()
