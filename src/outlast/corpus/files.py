"""Which files a corpus is made of: files, folders and globs become one sorted list.

In: what ``corpus.path`` says. Out: ``FoundFile``s with names that do not depend on where the corpus lies: a
bucket prefix gives the same list as the folder that was copied there. Hidden files are left out, and so are
links that lead out of the folder that was named.
"""

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple, NoReturn, TypeVar

from outlast.corpus.extent import TarMembers
from outlast.corpus.source import HTTP_SCHEMES, is_remote, local_path, locate
from outlast.corpus.tar import has_tar_name
from outlast.errors import CorpusError
from outlast.logs import log
from outlast.storage import ObjectInfo, Store, open_store

_CHECK_PATH = "check corpus.path"
P = TypeVar("P", bound=PurePath)


class FoundFile(NamedTuple):
    """A file of the corpus: its name relative to what was named in the recipe, and where it lies.

    A remote one knows its store and its name there. ``members`` tells which members count if it is a tar.
    """

    name: str
    path: str
    store: Store | None = None
    object_name: str = ""
    members: TarMembers = TarMembers()


def find_files(paths: str | Sequence[str], include: str, exclude: Sequence[str] = ()) -> list[FoundFile]:
    """Return the files of a corpus, each once, sorted by name within each of the paths.

    Args:
        paths: files, folders or globs; local, or in a bucket. Over http files alone.
        include: which files of a folder are meant; ``*`` stays within a folder, ``**`` does not.
        exclude: patterns of the same kind for what is left out of folders and globs.

    Raises:
        CorpusError: a path that does not exist, or a folder or glob without a file.
        ConfigError, StorageError: a URL that is not known, a store that cannot be asked.
    """
    several = [paths] if isinstance(paths, str) else list(paths)
    found: list[FoundFile] = []
    seen: set[str] = set()
    for number, path in enumerate(several):
        prefix = f"{number}/" if len(several) > 1 else ""
        find = _find_remote if is_remote(path) else _find
        for file in find(path, include, exclude):
            real = file.path if file.store else os.path.realpath(file.path)
            if real not in seen:
                seen.add(real)
                found.append(file._replace(name=prefix + file.name))
    return found


def _find(path: str, include: str, exclude: Sequence[str]) -> list[FoundFile]:
    root = Path(local_path(path))
    try:
        if root.is_file():
            return [FoundFile(root.name, str(root))]
        if not root.exists() and glob.has_magic(str(root)):
            found = [
                file._replace(members=TarMembers())
                for file in sorted(_walk(*_split_glob(root), exclude))
                if file.members.taken_whole
            ]
            return found or _refuse(path, "No file matches.")
        if not root.is_dir():
            return _refuse(path, *_not_a_file(root))
        found = sorted(_walk(root, include, exclude))
    except OSError as error:
        raise CorpusError(
            f"The path cannot be read: {error.strerror}.", where=path, remedy="check it and its permissions"
        ) from error
    return found or _refuse(
        path, f"The folder holds no file that matches {include!r}.", "check corpus.include"
    )


def _not_a_file(path: Path) -> tuple[str, str]:
    """Return what is wrong with a path that names no file, and what to do."""
    if not path.exists():
        link = path.is_symlink()
        return (
            "It is a link that leads nowhere." if link else "There is no such file or folder."
        ), _CHECK_PATH
    kind = "a pipe" if path.is_fifo() else "a socket" if path.is_socket() else "a device"
    return f"It is {kind}, and a corpus is read more than once.", "write the text into a file, and name that"


def _refuse(path: str, message: str, remedy: str = _CHECK_PATH) -> NoReturn:
    raise CorpusError(message, where=path, remedy=remedy)


def _find_remote(path: str, include: str, exclude: Sequence[str]) -> list[FoundFile]:
    server, name = locate(path)
    store = open_store(server)
    is_file = bool(name) and not name.endswith("/")
    if is_file and store.retry(store.exists, name):
        return [FoundFile(name.rpartition("/")[2], path, store, name)]
    if path.startswith(HTTP_SCHEMES) and glob.has_magic(name):
        return _refuse(
            path,
            "A web server gives no list of its files, so nothing can be matched there.",
            "name each file",
        )
    if path.startswith(HTTP_SCHEMES):
        return _refuse(path, "There is no such file.", "name single files: a web server gives no list")
    if glob.has_magic(name):
        folder, pattern = _split_glob(PurePosixPath(name))
        found = [
            file._replace(members=TarMembers())
            for file in sorted(_list_objects(store, "/".join(folder.parts), pattern, exclude))
            if file.members.taken_whole
        ]
        return found or _refuse(path, "No file matches.")
    found = sorted(_list_objects(store, name.strip("/"), include, exclude))
    return found or _refuse(
        path,
        f"There is no such file, and no object below it that matches {include!r}.",
        "check corpus.path and corpus.include",
    )


def _list_objects(store: Store, folder: str, include: str, exclude: Sequence[str]) -> Iterator[FoundFile]:
    """Yield the objects below a folder: what ``_walk`` yields where they are files."""
    prefix = f"{folder}/" if folder else ""
    pattern = include.split("/")
    excluded = [out.split("/") for out in exclude]
    objects = store.retry(store.list, prefix)
    for info in objects:
        parts = info.name.removeprefix(prefix).split("/")
        if any(part.startswith(".") for part in parts) or any(_matches(parts, out) for out in excluded):
            continue
        is_included = _matches(parts, pattern)
        if (is_included or has_tar_name(info.name)) and not _is_marker(store, info):
            name = "/".join(parts)
            yield FoundFile(name, f"{store.url}/{info.name}", store, info.name, TarMembers(name, is_included))


def _is_marker(store: Store, info: ObjectInfo) -> bool:
    """Whether an object only marks a folder: its name ends with a slash, which the listing leaves out."""
    return not info.size_bytes and not store.retry(store.exists, info.name)


def _walk(root: Path, include: str, exclude: Sequence[str]) -> Iterator[FoundFile]:
    pattern = include.split("/")
    excluded = [pattern.split("/") for pattern in exclude]
    inside = root.resolve()
    passed_over: list[str] = []
    for folder, folders, files in os.walk(root, onerror=_raise):
        inner = Path(folder).relative_to(root).parts
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and not any(out[-1] == "**" and _matches((*inner, name), out) for out in excluded)
        ]
        for name in files:
            path = Path(folder, name)
            relative = path.relative_to(root)
            if name.startswith(".") or any(_matches(relative.parts, out) for out in excluded):
                continue
            is_included = _matches(relative.parts, pattern)
            if not is_included and not has_tar_name(name):
                continue
            if _is_within(path, inside):
                members = TarMembers(relative.as_posix(), is_included)
                yield FoundFile(members.folder, str(path), members=members)
            else:
                passed_over.append(relative.as_posix())
    if passed_over:
        log.warning(
            "%d names in %s are passed over, since no file inside the folder stands behind them (links that "
            "lead nowhere or out of it, pipes): %s",
            *(len(passed_over), root, ", ".join(sorted(passed_over)[:5])),
        )


def would_read(paths: str | Sequence[str], include: str, exclude: Sequence[str], file: Path) -> str | None:
    """Return the path of the recipe by which a local file, once written, would be in the corpus, or None."""
    place = Path(os.path.realpath(file))
    for path in [paths] if isinstance(paths, str) else paths:
        root = Path(local_path(path)) if not is_remote(path) else None
        if root is None or not root.is_dir() or Path(os.path.realpath(root)) not in place.parents:
            continue
        parts = place.relative_to(os.path.realpath(root)).parts
        left_out = any(part.startswith(".") for part in parts)
        left_out = left_out or any(_matches(parts, out.split("/")) for out in exclude)
        if not left_out and _matches(parts, include.split("/")):
            return path
    return None


def is_member(name: str, members: TarMembers, include: str, exclude: Sequence[str]) -> bool:
    """Whether a member of a tar belongs to the corpus: as a file does, the tar being a folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if any(part.startswith(".") and part != ".." for part in parts):
        return False
    parts = [*filter(None, members.folder.split("/")), *parts]
    if any(_matches(parts, out.split("/")) for out in exclude):
        return False
    return members.taken_whole or _matches(parts, include.split("/"))


def _split_glob(pattern: P) -> tuple[P, str]:
    """Split a glob into the folder that it cannot leave and the rest."""
    fixed = next(index for index, part in enumerate(pattern.parts) if glob.has_magic(part))
    return type(pattern)(*pattern.parts[:fixed]), "/".join(pattern.parts[fixed:])


def _is_within(path: Path, inside: Path) -> bool:
    """Whether a path is a plain file that, links followed, lies in the folder: a corpus is no way out of
    it.
    """
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return False  # a link that leads nowhere, or in circles
    return real.is_file() and inside in real.parents


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _raise(error: OSError) -> None:
    raise error
