"""An object as a stream that can be read from anywhere, with little of it in memory.

In: a way to read ranges, and the object's size. Out: a raw stream. A look somewhere costs one small request;
reading on costs few large ones, for each range is twice as long as the one before it.
"""

import io
from collections.abc import Callable
from typing import cast

_FIRST_BYTES = 2**14
_LARGEST_BYTES = 2**22


class RangeReader(io.RawIOBase):
    """A stream over ranges of an object; at most 4 MiB of it are in memory.

    Args:
        read_range: returns so many bytes from a place; what it raises comes out of reading.
        size_bytes: of the whole object.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], size_bytes: int) -> None:
        self._read_range = read_range
        self._size = size_bytes
        self._position = 0
        self._block = memoryview(b"")
        self._block_start = 0
        self._next_bytes = _FIRST_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer)).cast("B")
        if self._position >= self._size or not view:
            return 0
        if not self._block_start <= self._position < self._block_start + len(self._block):
            self._load()
        begin = self._position - self._block_start
        part = self._block[begin : begin + len(view)]
        view[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _load(self) -> None:
        goes_on = self._block and self._position == self._block_start + len(self._block)
        self._next_bytes = min(2 * self._next_bytes, _LARGEST_BYTES) if goes_on else _FIRST_BYTES
        length = min(self._next_bytes, self._size - self._position)
        self._block = memoryview(b"")  # let go of it before the next one comes
        self._block_start = self._position
        self._block = memoryview(self._read_range(self._position, length))
