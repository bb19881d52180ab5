"""Opening a file for reading, whether plain, .gz or .zst, with memory bounded whatever the file claims.

In: a path or URL. Out: a stream of the decompressed bytes. A file that is damaged or cut short is an error,
never a short text.
"""

import gzip
import io
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import zstandard

from outlast.corpus.source import open_file
from outlast.errors import CorpusError

COMPRESSED_SUFFIXES = (".gz", ".zst")
_READ_BYTES = 2**16
# One byte of zstd can stand for 32 KiB of output, so little is fed at a time: at most 32 MiB come out.
_ZSTD_INPUT_BYTES = 2**10


def is_compressed(path: str) -> bool:
    """Whether the name says that the file is compressed."""
    return path.lower().endswith(COMPRESSED_SUFFIXES)


@contextmanager
def open_binary(path: str, *, where: str) -> Generator[io.BufferedIOBase]:
    """Open a file, decompressed. What goes wrong while it is open is a CorpusError that names ``where``."""
    try:
        with open_file(path) as file:
            if path.lower().endswith(".gz"):
                with gzip.GzipFile(fileobj=file) as stream:
                    yield cast(io.BufferedIOBase, stream)
            elif path.lower().endswith(".zst"):
                yield io.BufferedReader(_ZstdStream(file), _READ_BYTES)
            else:
                yield file
    except FileNotFoundError:
        raise CorpusError("The file is missing.", where=where, remedy="check corpus.path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
        raise CorpusError(
            f"The compressed file is damaged or cut short: {error}",
            where=where,
            remedy="fetch the file again",
        ) from None
    except OSError as error:
        raise CorpusError(f"The file cannot be read: {error.strerror or error}.", where=where) from error


class _ZstdStream(io.RawIOBase):
    """Decompressed zstd frames. Unlike the library's own reader it reports a frame that is cut short."""

    def __init__(self, source: io.BufferedIOBase) -> None:
        self._source = source
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = cast(memoryview, buffer)
        while not self._output:
            self._input = self._input or self._source.read(_ZSTD_INPUT_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the last zstd frame has no end")
                return 0
            frame = self._frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._output = memoryview(frame.decompress(self._input))
            self._input = frame.unused_data
            if frame.eof:
                self._frame = None
        count = min(len(view), len(self._output))
        view[:count] = self._output[:count]
        self._output = self._output[count:]
        return count
