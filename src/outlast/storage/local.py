"""A local folder as a store.

In: a folder. Out: a ``LocalStore``. Files are written aside, flushed, then linked (``create``) or renamed
(``replace``) into place, then the folder is flushed: after a crash or a power cut a file is there whole or
not at all.
"""

import errno
import os
import re
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from outlast.errors import ObjectExists, ObjectNotFound, StorageError, StoreUnreachable
from outlast.storage.regular import MOST_BYTES, open_regular, read_whole
from outlast.storage.store import Chunks, ObjectInfo, Store

_FOLDER_ATTEMPTS = 50
_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{32}")
"""The names of unfinished files, as ``_put`` makes them: a file that is only similar is somebody else's."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ANSWER = (
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
)
_WRITE_REMEDIES = (
    (_FULL, "free space, or choose another disk"),
    ((errno.EACCES, errno.EROFS), "choose a folder that you may write to"),
    (
        (errno.ENOTDIR, errno.EEXIST, errno.EISDIR),
        "choose another name: a file stands where a folder must be",
    ),
    (
        (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS),
        "choose a folder whose file system allows hard links",
    ),
)


class LocalStore(Store):
    """A folder. It is made by the first write."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root)

    def local_path(self, name: str) -> Path:
        path = Path(os.path.normpath(self.root / name))
        if path != self.root and self.root not in path.parents:
            raise StorageError(f"The name {name!r} leaves its folder.", where=self.url)
        if "\0" in name or any("\ud800" <= character <= "\udc7f" for character in name):
            raise StorageError(f"No file can have the name {name!r}.", where=self.url)
        return path

    def read(self, name: str, most_bytes: int = MOST_BYTES) -> bytes:
        try:
            return read_whole(self.local_path(name), most_bytes)
        except OSError as error:
            raise self._failed("read", name, error) from error

    def read_range(self, name: str, start: int, length: int) -> bytes:
        try:
            with open_regular(self.local_path(name)) as file:
                file.seek(start)
                content = file.read(length)
        except OSError as error:
            raise self._failed("read", name, error) from error
        if len(content) != length:
            raise StorageError(
                f"The file ends early: {len(content)} of {length} bytes from {start}.",
                where=str(self.local_path(name)),
            )
        return content

    def create(self, name: str, content: Chunks) -> None:
        self._write(name, content, create=True)

    def replace(self, name: str, content: Chunks) -> None:
        self._write(name, content, create=False)

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        for path in self._walk(prefix):
            if not _TEMPORARY.fullmatch(path.name):
                try:
                    told = path.stat()
                    name = path.relative_to(self.root).as_posix()
                    found.append(ObjectInfo(name, told.st_size, told.st_mtime))
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise self._failed("list", path.relative_to(self.root).as_posix(), error) from error
                    continue  # deleted while we looked, or a link that leads nowhere
        return sorted(found)

    def list_leftovers(self, prefix: str = "", *, recursive: bool = True) -> tuple[str, ...]:
        paths = self._walk(prefix, recursive=recursive)
        leftovers = (path for path in paths if _TEMPORARY.fullmatch(path.name))
        return tuple(sorted(path.relative_to(self.root).as_posix() for path in leftovers))

    def size_bytes(self, name: str) -> int:
        try:
            return self.local_path(name).stat().st_size
        except OSError as error:
            raise self._failed("read", name, error) from error

    def delete(self, name: str) -> None:
        path = self.local_path(name)
        try:
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                _flush_folder(path.parent)
            for folder in path.parents:
                if folder == self.root or self.root not in folder.parents:
                    break
                folder.rmdir()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise self._failed("delete", name, error) from error

    def _walk(self, prefix: str, *, recursive: bool = True) -> Sequence[Path]:
        folder = self.local_path(prefix.rpartition("/")[0] or ".")
        paths: list[Path] = []
        try:
            for parent, folders, files in os.walk(folder, onerror=_raise_unless_absent):
                paths += [Path(parent, file) for file in files]
                if not recursive:
                    folders.clear()
        except OSError as error:
            raise self._failed("list", prefix, error) from error
        return [path for path in paths if path.relative_to(self.root).as_posix().startswith(prefix)]

    def _write(self, name: str, content: Chunks, *, create: bool) -> None:
        """Write a file aside and put it in place.

        It is written again where somebody who cleans up took the unfinished file for a dead writer's.
        """
        path = self.local_path(name)
        if self.anchor and not self.exists(self.anchor):
            raise StorageError(
                "The folder was renamed, emptied or deleted: nothing more is written there.",
                where=str(self.root),
            )
        try:
            for attempt in range(_FOLDER_ATTEMPTS):
                try:
                    _put(path, content, create=create)
                    return
                except FileNotFoundError:
                    if attempt == _FOLDER_ATTEMPTS - 1:
                        raise
        except OSError as error:
            raise self._failed("write", name, error) from error

    def _failed(self, action: str, name: str, error: OSError) -> StorageError:
        where = str(self.local_path(name))
        reason = error.strerror or str(error)
        if action != "write" and isinstance(error, FileNotFoundError | NotADirectoryError):
            return ObjectNotFound("There is no such file.", where=where)
        if error.errno in _NO_ANSWER:
            return StoreUnreachable(f"Cannot {action} the file: {reason}.", where=where)
        if action == "write" or error.errno in _FULL:
            return local_failure(f"Cannot {action} the file", where, error)
        return StorageError(f"Cannot {action} the file: {reason}.", where=where)


def local_failure(message: str, where: str | None, error: OSError) -> StorageError:
    """Return the error for a local file or folder that cannot be written, with what to do about it.

    Args:
        message: what could not be done, without a full stop; the reason follows.
    """
    reason = error.strerror or str(error)
    reason = f"no space left ({reason})" if error.errno in _FULL else reason
    remedy = next((remedy for numbers, remedy in _WRITE_REMEDIES if error.errno in numbers), None)
    return StorageError(f"{message}: {reason}.", where=where, remedy=remedy)


def _put(path: Path, content: Chunks, *, create: bool) -> None:
    temporary = path.parent / f".tmp-{uuid.uuid4().hex}"
    try:
        _write_flushed(temporary, content)
        if create:
            _link(temporary, path)
        else:
            os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()
    with suppress(FileNotFoundError):  # a ``delete`` beside us has taken the file, and then its folder
        _flush_folder(path.parent)


def _write_flushed(path: Path, content: Chunks) -> None:
    """Write a new file and flush it.

    The folder is made again where a ``delete`` beside us has just removed it.
    """
    for attempt in range(_FOLDER_ATTEMPTS):
        try:
            _make_folders(path.parent)
            file = path.open("xb")
        except (
            FileNotFoundError,
            FileExistsError,
        ):  # the second: gone between mkdir's refusal and its own look
            if attempt == _FOLDER_ATTEMPTS - 1:
                raise
            continue
        with file:
            for chunk in content:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise ObjectExists("The object exists already.", where=str(path)) from None


def _make_folders(folder: Path) -> None:
    """Make a folder and its parents, and flush the parent of each one made, so that a crash cannot lose the
    name.
    """
    missing: list[Path] = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for made in reversed(missing):
        made.mkdir(exist_ok=True)
        _flush_folder(made.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
