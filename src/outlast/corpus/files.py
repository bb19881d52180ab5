"""Which files a corpus is made of: files, folders and globs become one sorted list.

In: what ``corpus.path`` says. Out: ``FoundFile``s with names that do not depend on where the corpus lies.
Hidden files are left out, and so are links that lead out of the folder that was named.
"""

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from outlast.errors import CorpusError


class FoundFile(NamedTuple):
    """A file of the corpus: its name relative to what was named in the recipe, and where it lies."""

    name: str
    path: Path


def find_files(paths: str | Sequence[str], include: str, exclude: Sequence[str] = ()) -> list[FoundFile]:
    """Return the files of a corpus, each once, sorted by name within each of the paths.

    Args:
        paths: files, folders or globs.
        include: which files of a folder are meant; ``*`` stays within a folder, ``**`` does not.
        exclude: patterns of the same kind for what is left out of folders and globs.

    Raises:
        CorpusError: a path that does not exist, or a folder or glob without a file.
    """
    several = [paths] if isinstance(paths, str) else list(paths)
    found: list[FoundFile] = []
    seen: set[Path] = set()
    for number, path in enumerate(several):
        prefix = f"{number}/" if len(several) > 1 else ""
        for file in _find(path, include, exclude):
            real = file.path.resolve()
            if real not in seen:
                seen.add(real)
                found.append(FoundFile(prefix + file.name, file.path))
    return found


def _find(path: str, include: str, exclude: Sequence[str]) -> list[FoundFile]:
    root = Path(path).expanduser()
    try:
        if root.is_file():
            return [FoundFile(root.name, root)]
        if not root.exists() and glob.has_magic(path):
            found = sorted(_walk(*_split_glob(root), exclude))
            if not found:
                raise CorpusError("No file matches.", where=path, remedy="check corpus.path")
            return found
        if not root.is_dir():
            raise CorpusError("There is no such file or folder.", where=path, remedy="check corpus.path")
        found = sorted(_walk(root, include, exclude))
    except OSError as error:
        raise CorpusError(f"The path cannot be read: {error.strerror}.", where=path) from error
    if not found:
        raise CorpusError(
            f"The folder holds no file that matches {include!r}.", where=path, remedy="check corpus.include"
        )
    return found


def _walk(root: Path, include: str, exclude: Sequence[str]) -> Iterator[FoundFile]:
    pattern = include.split("/")
    excluded = [pattern.split("/") for pattern in exclude]
    inside = root.resolve()
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
            if _matches(relative.parts, pattern) and _is_within(path, inside):
                yield FoundFile(relative.as_posix(), path)


def _split_glob(pattern: Path) -> tuple[Path, str]:
    """Split a glob into the folder that it cannot leave and the rest."""
    fixed = next(index for index, part in enumerate(pattern.parts) if glob.has_magic(part))
    return Path(*pattern.parts[:fixed]), "/".join(pattern.parts[fixed:])


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
