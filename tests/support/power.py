"""Power cuts: what a folder may look like after one, of all that was written to it without a flush.

In: the calls to the system that a program makes for files below a folder. Out: images of the folder. What
a flush has covered is there. Of the rest any part is: an entry of a folder (a name made, linked, moved,
removed) or not, each by itself and in any order; of a file's bytes none, the first ones, zeros, or all.
"""

import io
import os
import random
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Entry(NamedTuple):
    """A folder's name now stands for another file or folder, or for none; ``moved``: and this one no more."""

    folder: int
    name: str
    stands_for: int | None
    moved: str | None = None


class Flush(NamedTuple):
    """All of a folder, or of a file with these bytes, is on the disk."""

    what: int
    content: bytes | None = None


class Mark(NamedTuple):
    """A promise of the program."""

    step: int


@dataclass
class Recorder:
    """The calls of a program, in order. Files and folders have numbers; the folder itself is 0."""

    root: Path
    calls: list[Entry | Flush | Mark] = field(default_factory=list[Entry | Flush | Mark])
    folders: set[int] = field(default_factory=lambda: {0})
    contents: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The last bytes of each file, flushed or not."""
    _numbers: dict[str, int] = field(default_factory=dict[str, int])
    _open: dict[int, int] = field(default_factory=dict[int, int])
    _made: int = 0

    def __post_init__(self) -> None:
        self._numbers[str(self.root)] = 0

    def is_inside(self, path: Any) -> bool:
        return os.fspath(path) == str(self.root) or os.fspath(path).startswith(f"{self.root}/")

    def made(self, path: Any, *, folder: bool) -> int:
        self._made += 1
        self._numbers[os.fspath(path)] = self._made
        if folder:
            self.folders.add(self._made)
        self._enter(path, self._made)
        return self._made

    def opened(self, descriptor: int, path: Any) -> None:
        self._open[descriptor] = self._numbers[os.fspath(path)]

    def flushed(self, descriptor: int) -> None:
        number = self._open.get(descriptor)
        if number in self.folders:
            self.calls.append(Flush(number))
        elif number is not None:
            self.contents[number] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            self.calls.append(Flush(number, self.contents[number]))

    def linked(self, source: Any, target: Any) -> None:
        self._numbers[os.fspath(target)] = self._numbers[os.fspath(source)]
        self._enter(target, self._numbers[os.fspath(target)])

    def moved(self, source: Any, target: Any) -> None:
        number = self._numbers[os.fspath(target)] = self._numbers.pop(os.fspath(source))
        self._enter(target, number, moved=Path(source).name)

    def removed(self, path: Any) -> None:
        self._numbers.pop(os.fspath(path))
        self._enter(path, None)

    def remember(self, path: Any) -> None:
        """Take the bytes of a file that was not flushed."""
        self.contents.setdefault(self._numbers[os.fspath(path)], Path(path).read_bytes())

    def _enter(self, path: Any, number: int | None, moved: str | None = None) -> None:
        path = Path(path)
        self.calls.append(Entry(self._numbers[str(path.parent)], path.name, number, moved))

    def image(self, cut: int, rng: random.Random, folder: Path) -> None:
        """Build what a power cut after so many calls may leave."""
        calls = self.calls[:cut]
        flushed_at = {call.what: at for at, call in enumerate(calls) if isinstance(call, Flush)}
        luck = rng.choice((0.0, 0.5, 0.9, 1.0))
        entries: dict[int, dict[str, int]] = {}
        for at, call in enumerate(calls):
            if not isinstance(call, Entry):
                continue
            if at > flushed_at.get(call.folder, -1) and rng.random() >= luck:
                continue
            names = entries.setdefault(call.folder, {})
            if call.moved:
                names.pop(call.moved, None)
            if call.stands_for is None:
                names.pop(call.name, None)
            else:
                names[call.name] = call.stands_for
        self._write(folder, 0, entries, flushed_at, rng)

    def _write(
        self,
        folder: Path,
        number: int,
        entries: dict[int, dict[str, int]],
        flushed_at: dict[int, int],
        rng: random.Random,
    ) -> None:
        folder.mkdir()
        for name, inner in entries.get(number, {}).items():
            if inner in self.folders:
                self._write(folder / name, inner, entries, flushed_at, rng)
            else:
                content = self.contents.get(inner, b"")
                if inner not in flushed_at:
                    content = rng.choice(
                        (b"", content[: rng.randint(0, len(content))], bytes(len(content)), content)
                    )
                (folder / name).write_bytes(content)


@contextmanager
def recording(root: Path) -> Generator[Recorder]:
    """Record what is done below a folder, which must be there and empty."""
    recorder = Recorder(root)
    real_open, real_os_open, real_flush = io.open, os.open, os.fsync
    real = {name: getattr(os, name) for name in ("mkdir", "rmdir", "unlink", "link", "replace")}

    def open_file(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        opened = real_open(file, mode, *arguments, **options)
        if "x" in mode and recorder.is_inside(file):
            recorder.made(file, folder=False)
            recorder.opened(opened.fileno(), file)
        return opened

    def open_folder(path: Any, *arguments: Any, **options: Any) -> int:
        descriptor = real_os_open(path, *arguments, **options)
        if recorder.is_inside(path):
            recorder.opened(descriptor, path)
        return descriptor

    def flush(descriptor: int) -> None:
        real_flush(descriptor)
        recorder.flushed(descriptor)

    def make(path: Any, *arguments: Any, **options: Any) -> None:
        real["mkdir"](path, *arguments, **options)
        if recorder.is_inside(path):
            recorder.made(path, folder=True)

    def remove(name: str, path: Any) -> None:
        real[name](path)
        if recorder.is_inside(path):
            recorder.removed(path)

    def link(source: Any, target: Any) -> None:
        recorder.remember(source)
        real["link"](source, target)
        recorder.linked(source, target)

    def move(source: Any, target: Any) -> None:
        recorder.remember(source)
        real["replace"](source, target)
        recorder.moved(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", open_file)
        patch.setattr(os, "open", open_folder)
        patch.setattr(os, "fsync", flush)
        patch.setattr(os, "mkdir", make)
        patch.setattr(os, "rmdir", lambda path: remove("rmdir", path))
        patch.setattr(os, "unlink", lambda path: remove("unlink", path))
        patch.setattr(os, "link", link)
        patch.setattr(os, "replace", move)
        yield recorder
