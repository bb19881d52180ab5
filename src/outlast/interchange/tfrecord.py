"""TFRecord framing: records of any bytes, each with a checksum of its length and of its data.

In: a stream of bytes, plain or compressed by gzip or zlib. Out: the payloads, each checked; and the other
way. A file is read to its last byte or an error names the record and its offset: TensorFlow's reader stops
quietly at a header that is cut short. Memory is bounded by the largest record that is really there, whatever
lengths the file claims (docs/formats/tfrecord.md).
"""

import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, cast

import google_crc32c

from outlast.errors import ShardError, StorageError
from outlast.storage import Store
from outlast.storage.regular import open_regular

Compression = Literal["none", "gzip", "zlib"]
SUFFIXES: dict[Compression, str] = {"none": "", "gzip": ".gz", "zlib": ".zlib"}
"""What is put behind ``.tfrecord`` in the name of a file."""

HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD_BYTES = 2**31 - 1
"""The most that a record may claim: no protocol buffer message is longer."""

_MASK_DELTA = 0xA282EAD8
_WINDOW_BITS: dict[Compression, int] = {"gzip": 16 + zlib.MAX_WBITS, "zlib": zlib.MAX_WBITS}
_READ_BYTES = 2**18
_RANGE_BYTES = 2**22
REMEDY = "restore the file, or write it again"


class Record(NamedTuple):
    """A payload, and where it was: the number from 0, the offset in decompressed bytes of the file."""

    number: int
    offset: int
    payload: bytes


def masked_crc(data: bytes) -> int:
    """Return the checksum that TFRecord stores: CRC-32C, rotated right by 15 bits, plus a constant.

    Source: TensorFlow, ``tensorflow/core/lib/hash/crc32c.h`` and ``lib/io/record_writer.h``.
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Return a record: 8 bytes of length, their checksum, the payload, its checksum; all little-endian."""
    length = len(payload).to_bytes(8, "little")
    return b"".join(
        (
            length,
            masked_crc(length).to_bytes(4, "little"),
            payload,
            masked_crc(payload).to_bytes(4, "little"),
        )
    )


def read_records(
    file: BinaryIO,
    *,
    where: str,
    compression: Compression | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Iterator[Record]:
    """Yield every record of a file, its checksums verified.

    Args:
        file: seekable, at its start.
        where: its name, for messages.
        compression: of the file; None: found by its first bytes.
        max_record_bytes: a record that claims more is refused.

    Raises:
        ShardError: a checksum that fails, a record or a compressed stream that is cut short, stray bytes, a
            length that is too large; each with the record's number and offset.
    """
    if compression is None:
        compression = detect_compression(file.read(HEADER_BYTES))
        file.seek(0)
    if compression == "none":
        yield from _read_stream(file, where, max_record_bytes)
        return
    inflated = io.BufferedReader(_Inflated(file, compression, where), _READ_BYTES)
    yield from _read_stream(inflated, where + " decompressed", max_record_bytes)


def detect_compression(head: bytes) -> Compression:
    """Tell the compression of a file by its first 12 bytes.

    The checksum of a first length is looked at before the signs of gzip and zlib, which a length may bear.
    """
    if len(head) >= HEADER_BYTES and int.from_bytes(head[8:12], "little") == masked_crc(head[:8]):
        return "none"
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if len(head) >= 2 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and (head[0] << 8 | head[1]) % 31 == 0:
        return "zlib"
    return "none"


class Compressor(Protocol):
    """What zlib and its like make."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def make_compressor(compression: Compression) -> Compressor | None:
    """Return what compresses a file's records, None for none. The same records give the same bytes."""
    if compression == "none":
        return None
    return zlib.compressobj(wbits=_WINDOW_BITS[compression])


def open_object(store: Store, name: str) -> BinaryIO:
    """Open an object of any store for reading, a few megabytes at a time.

    Raises:
        ObjectNotFound: there is no such object.
        StorageError: it cannot be read.
    """
    size = store.size_bytes(name)
    path = store.local_path(name)
    if path is not None:
        try:
            return open_regular(path, _READ_BYTES)
        except OSError as error:
            raise StorageError(f"Cannot read the file: {error.strerror}.", where=str(path)) from error
    return io.BufferedReader(_Ranges(store, name, size), _RANGE_BYTES)


def _read_stream(file: BinaryIO, where: str, most: int) -> Iterator[Record]:
    offset = index = 0
    read, from_bytes = file.read, int.from_bytes
    while True:
        head = read(HEADER_BYTES)
        if len(head) != HEADER_BYTES:
            if not head:
                return
            raise _wrong(
                f"The file ends within the header of record {index}: {len(head)} bytes instead of 12, "
                "a record that was cut short or stray bytes",
                where,
                offset,
            )
        length = from_bytes(head[:8], "little")
        if from_bytes(head[8:], "little") != masked_crc(head[:8]):
            raise _wrong(f"The length of record {index} fails its checksum", where, offset)
        if length > most:
            raise _wrong(f"Record {index} claims {length} bytes, more than {most}", where, offset)
        body = read(length + FOOTER_BYTES) if length < _READ_BYTES else _read_long(file, length)
        if len(body) != length + FOOTER_BYTES:
            raise _wrong(
                f"Record {index} is cut short: {len(body)} bytes instead of {length + FOOTER_BYTES}",
                where,
                offset,
            )
        payload = body[:length]
        if from_bytes(body[length:], "little") != masked_crc(payload):
            raise _wrong(f"The data of record {index} fail their checksum", where, offset)
        yield Record(index, offset, payload)
        offset += HEADER_BYTES + length + FOOTER_BYTES
        index += 1


def _read_long(file: BinaryIO, length: int) -> bytes:
    """Read a long record chunk by chunk: memory is taken for what is there, not for what is claimed."""
    chunks: list[bytes] = []
    left = length + FOOTER_BYTES
    while left and (chunk := file.read(min(left, _READ_BYTES))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _wrong(message: str, where: str, offset: int) -> ShardError:
    return ShardError(message + ".", where=f"{where}, byte {offset}", remedy=REMEDY)


class _Inflated(io.RawIOBase):
    """The content of a compressed stream. gzip may be several members behind one another.

    TensorFlow passes over a trailer that is missing and over what follows a zlib stream; here both fail.
    """

    def __init__(self, source: BinaryIO, compression: Compression, where: str) -> None:
        self._source = source
        self._window_bits = _WINDOW_BITS[compression]
        self._several = compression == "gzip"
        self._where = where
        self._stream: Any = None
        self._input = b""
        self._is_first = True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = cast(memoryview, buffer)
        while True:
            self._input = self._input or self._source.read(_READ_BYTES)
            if not self._input and (self._stream is None or self._stream.eof):
                return 0
            if self._stream is None or self._stream.eof:
                if not self._is_first and not self._several:
                    raise self._damaged("stray bytes follow the compressed stream")
                self._stream = zlib.decompressobj(self._window_bits)
                self._is_first = False
            elif not self._input:
                raise self._damaged("the compressed stream is cut short")
            try:
                output: bytes = self._stream.decompress(self._input, len(view))
            except zlib.error as error:
                raise self._damaged(str(error)) from None
            self._input = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if output:
                view[: len(output)] = output
                return len(output)

    def _damaged(self, reason: str) -> ShardError:
        position = self._source.tell() - len(self._input)
        return ShardError(
            f"The compressed file is damaged or cut short: {reason}.",
            where=f"{self._where}, byte {position}",
            remedy=REMEDY,
        )


class _Ranges(io.RawIOBase):
    """A remote object, read by ranges."""

    def __init__(self, store: Store, name: str, size_bytes: int) -> None:
        self._store, self._name, self._size = store, name, size_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: object) -> int:
        view = cast(memoryview, buffer)
        length = min(len(view), max(0, self._size - self._position))
        if length:
            start = self._position
            content = self._store.retry(self._store.read_range, self._name, start, length)
            view[:length] = content
            self._position += length
        return length
