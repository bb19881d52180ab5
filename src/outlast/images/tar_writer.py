"""Writing image shards: plain ustar archives that any tar reads, the same bytes for the same images.

In: images as they are and their labels. Out: a tar of ``NNNNNNNNN.<type>`` and ``NNNNNNNNN.cls`` pairs, as
WebDataset has them, and its index. Owner, mode and time are fixed, so nothing but the images counts.
"""

import tarfile
from pathlib import Path
from types import TracebackType

from outlast.corpus.tar import BLOCK
from outlast.errors import ShardError
from outlast.images.index import index_name, write_index
from outlast.images.manifest import ImageShardEntry
from outlast.images.records import MOST_IMAGE_BYTES, Example
from outlast.storage import Store
from outlast.storage.spool import Spool

_MODE = 0o644


class ImageShardWriter:
    """Collects the images of one shard.

    Args:
        first_number: of the first image, which its name shows.
        spool_folder: where the nameless temporary file lies; None for the system's folder.
    """

    def __init__(self, first_number: int, *, spool_folder: Path | None = None) -> None:
        self.examples: list[Example] = []
        self.size_bytes = 0
        self._first_number = first_number
        self._spool = Spool(1, spool_folder)

    def __enter__(self) -> "ImageShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def add(self, image: bytes, suffix: str, label: int, *, key: str | None = None) -> None:
        """Append an image with its label under a key, or else its number.

        Raises:
            StorageError: the temporary file cannot be written.
            ShardError: an image that no tar can hold.
        """
        if not 0 < len(image) <= MOST_IMAGE_BYTES:
            raise ShardError(f"The image has {len(image)} bytes.", expected=f"from 1 to {MOST_IMAGE_BYTES}")
        key = key or f"{self._first_number + len(self.examples):09d}"
        offset = self._write(f"{key}.{suffix}", image)
        self.examples.append(Example(key, offset, len(image), label))
        self._write(f"{key}.cls", str(label).encode())

    def write(self, store: Store, name: str) -> ImageShardEntry:
        """Put tar and index in place, whole, and return their entry for the manifest. Raises StorageError."""
        self._spool.write(bytes(2 * BLOCK))
        size_bytes, sha256 = self._spool.put(store, name, b"")
        return ImageShardEntry(
            name=name,
            size_bytes=size_bytes,
            sha256=sha256,
            num_examples=len(self.examples),
            index=write_index(store, index_name(name), self.examples, tar_sha256=sha256),
        )

    def _write(self, name: str, content: bytes) -> int:
        """Append a file and return where its bytes begin."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), _MODE
        # A plain ustar header, with a pax header before it where the name is too long or no ASCII.
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        offset = self.size_bytes + len(header)
        self._spool.write(header + content + bytes(-len(content) % BLOCK))
        self.size_bytes = offset + -(-len(content) // BLOCK) * BLOCK
        return offset


def record_bytes(image_bytes: int) -> int:
    """Return the bytes that an image of this size and its label take in a tar."""
    return 3 * BLOCK + -(-image_bytes // BLOCK) * BLOCK
