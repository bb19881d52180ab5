"""Opening a file for reading, whether plain or compressed, with memory bounded whatever the file claims.

In: a path or URL. Out: a stream of the decompressed bytes. A file that is damaged or cut short is an error,
never a short text.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, cast

import zstandard

from outlast.corpus.source import open_file
from outlast.errors import CorpusError

_SUFFIXES = {
    ".gz": ("gzip", ""),
    ".bz2": ("bzip2", ""),
    ".xz": ("xz", ""),
    ".zst": ("zstd", ""),
    ".tgz": ("gzip", ".tar"),
    ".tbz2": ("bzip2", ".tar"),
    ".txz": ("xz", ".tar"),
    ".tzst": ("zstd", ".tar"),
}
"""By the end of a name: how the file is compressed, and what its name would end in otherwise."""
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x1f\x9d": "compress",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x02\x21\x4c\x18": "lz4",
    **{b"BZh%d" % level: "bzip2" for level in range(1, 10)},
    b"\xfd7zXZ": "xz",
}
_READ_BYTES = 2**16
# One byte of zstd can stand for 32 KiB of output, so little is fed at a time: at most 32 MiB come out.
_INPUT_BYTES = 2**10
_MOST_XZ_BYTES = 2**28
"""Of memory: four times what `xz -9` makes necessary."""


class _Frame(Protocol):
    """What decompresses one frame: bz2, lzma and zstandard have it alike."""

    def decompress(self, data: bytes, /) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...


_FRAMES: dict[str, Callable[[], _Frame]] = {
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_MOST_XZ_BYTES),
    "zstd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}


def is_compressed(path: str) -> bool:
    """Whether the name says that the file is compressed."""
    return _suffix(path) != ""


def plain_name(path: str) -> str:
    """Return the name that the file has once it is decompressed: ``a.jsonl`` of ``a.jsonl.gz``."""
    suffix = _suffix(path)
    return path.removesuffix(path[len(path) - len(suffix) :]) + _SUFFIXES[suffix][1] if suffix else path


def compressed_with(head: bytes) -> str | None:
    """Return how a file is compressed, by its first bytes."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


@contextmanager
def open_binary(path: str, *, where: str) -> Generator[io.BufferedIOBase]:
    """Open a file, decompressed. What goes wrong while it is open is a CorpusError that names ``where``."""
    with reading(where), open_file(path) as file:
        yield decompressed(file, path)


@contextmanager
def reading(where: str) -> Generator[None]:
    """Turn what goes wrong while a file is read or decompressed into a CorpusError that names ``where``."""
    try:
        yield
    except FileNotFoundError:
        raise CorpusError("The file is missing.", where=where, remedy="check corpus.path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError) as error:
        raise CorpusError(
            f"The compressed file is damaged or cut short: {error}",
            where=where,
            remedy="fetch the file again",
        ) from None
    except OSError as error:
        raise CorpusError(f"The file cannot be read: {error.strerror or error}.", where=where) from error


def decompressed(file: io.BufferedIOBase, name: str) -> io.BufferedIOBase:
    """Return what a file holds, decompressed if its name says so. Reading it raises what its library does."""
    suffix = _suffix(name)
    if not suffix:
        return file
    compression = _SUFFIXES[suffix][0]
    if compression == "gzip":
        return cast(io.BufferedIOBase, gzip.GzipFile(fileobj=file))
    return io.BufferedReader(_Frames(file, _FRAMES[compression]), _READ_BYTES)


def _suffix(path: str) -> str:
    return next((suffix for suffix in _SUFFIXES if path.lower().endswith(suffix)), "")


class _Frames(io.RawIOBase):
    """Decompressed frames, one after another. Unlike the libraries' own readers it reports one that is cut
    short.
    """

    def __init__(self, source: io.BufferedIOBase, new_frame: Callable[[], _Frame]) -> None:
        self._source = source
        self._new_frame = new_frame
        self._frame: _Frame | None = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = cast(memoryview, buffer)
        while not self._output:
            self._input = self._input or self._source.read(_INPUT_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            frame = self._frame = self._frame or self._new_frame()
            try:
                self._output = memoryview(frame.decompress(self._input))
            except OSError as error:  # of bz2
                raise EOFError(str(error)) from None
            self._input = frame.unused_data
            if frame.eof:
                self._frame = None
        count = min(len(view), len(self._output))
        view[:count] = self._output[:count]
        self._output = self._output[count:]
        return count
