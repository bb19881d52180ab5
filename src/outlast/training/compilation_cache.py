"""The folder in which jax keeps compiled programs, cleared of what a kill left half-written.

In: a folder. Out: jax uses it, and every entry in it is whole. jax writes an entry straight under its final
name and never again where the name exists, so a process killed while it writes leaves an entry that each
later start reads in vain, warns of and compiles anew. Here such an entry is deleted before jax looks: the
next compilation writes it again. An entry in a form that is not known here stays as it is.
"""

import os
import zlib
from contextlib import suppress
from pathlib import Path

import jax
import zstandard

from outlast.logs import log

_ENTRIES = "*-cache"
_CHECKED_NAME = "outlast-checked"
_ZLIB_FIRST_BYTE = 0x78
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_CHUNK_BYTES = 2**20
_SLACK_NS = 2_000_000_000
"""Coarser than the time stamps of any file system in use."""


def use_compilation_cache(folder: str | None) -> None:
    """Let jax keep its compiled programs in a folder; None: nowhere but where the environment says.

    Call it before the first compilation.
    """
    if folder is None:
        return
    path = Path(folder).expanduser()
    try:
        delete_broken_entries(path)
    except OSError as error:  # a cache that cannot be read costs a compilation, not the run
        log.warning("the compilation cache %s could not be checked: %s", path, error.strerror or error)
    jax.config.update("jax_compilation_cache_dir", str(path))


def delete_broken_entries(folder: Path) -> list[Path]:
    """Delete the entries that are cut short or damaged; return them.

    Each entry is read once: those older than the last check, whose time is that of the file
    ``outlast-checked``, are left alone. An entry that another process is writing at this moment counts as cut
    short; it is deleted under its writer, which costs one more compilation later. Raises OSError.
    """
    if not folder.is_dir():
        return []
    mark, fresh = folder / _CHECKED_NAME, folder / f".{_CHECKED_NAME}-{os.getpid()}"
    fresh.touch()  # its time, by the clock of the file system, is that of the beginning of this check
    since = mark.stat().st_mtime_ns - _SLACK_NS if mark.exists() else 0
    broken: list[Path] = []
    for path in sorted(folder.glob(_ENTRIES)):
        with suppress(FileNotFoundError):  # another process checks beside us
            if path.stat().st_mtime_ns >= since and not _is_whole(path):
                path.unlink()
                broken.append(path)
                log.info("a compiled program was left half-written and is made anew: %s", path)
    os.replace(fresh, mark)
    return broken


def _is_whole(path: Path) -> bool:
    """Whether an entry decompresses to its end; what is in no known form counts as whole."""
    with path.open("rb") as file:
        first = file.read(len(_ZSTD_MAGIC))
        if len(first) < len(_ZSTD_MAGIC):
            return False
        if first == _ZSTD_MAGIC:
            decompressor = zstandard.ZstdDecompressor().decompressobj()
        elif first[0] == _ZLIB_FIRST_BYTE:
            decompressor = zlib.decompressobj()
        else:
            return True
        file.seek(0)
        try:
            while chunk := file.read(_CHUNK_BYTES):
                decompressor.decompress(chunk)
        except (zlib.error, zstandard.ZstdError):
            return False
    return decompressor.eof and not decompressor.unused_data
