"""The plan of the house: which room imports which, which circles there are, which way a verb takes.

In: a folder with the package's source. Out: figures, as ``python tests/architecture/rooms.py [SRC]`` prints
them. A room is a top-level name of the package. Imports count wherever they stand, in functions and under
TYPE_CHECKING too. With ``--way`` a tiny corpus is prepared and trained on, and every call from room to room
is watched: a way is the rooms entered, and its climbs are the pairs of files of which the lower calls the
higher, by a function that was passed down to it.
"""

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ORDER = (
    *("__main__", "cli", "outlast"),
    *("init", "run", "prepare", "recipe", "interchange", "inference", "huggingface", "pytorch"),
    *("training", "objectives", "models", "checkpoint"),
    *("images", "stream", "shards", "tokenizer", "cleaning", "corpus", "build"),
    *("config", "storage", "prng", "logs", "errors", "version"),
)
"""The rooms from the top down: whatever imports stands above what it imports (docs/design/layout.md)."""


@dataclass(frozen=True)
class House:
    """The modules of a package and what each imports.

    Attributes:
        lines: of each module, by its dotted name.
        imports: the modules that each module imports.
    """

    lines: Mapping[str, int]
    imports: Mapping[str, frozenset[str]]

    def room_lines(self) -> dict[str, int]:
        """Return the lines of each room, the largest first."""
        found: Counter[str] = Counter()
        for module, count in self.lines.items():
            found[room(module)] += count
        return dict(found.most_common())

    def room_imports(self) -> dict[str, set[str]]:
        """Return the rooms that each room imports, itself left out."""
        found: dict[str, set[str]] = {room(module): set() for module in self.lines}
        for module, imported in self.imports.items():
            found[room(module)] |= {room(name) for name in imported} - {room(module)}
        return found

    def file_circles(self) -> list[list[str]]:
        """Return the groups of modules that import each other in a loop."""
        return circles(self.imports)

    def room_circles(self) -> list[list[str]]:
        """Return the groups of rooms that import each other in a loop."""
        return circles(self.room_imports())

    def climbs(self, order: tuple[str, ...] = ORDER) -> list[tuple[str, str]]:
        """Return the imports from a room to one above it, as pairs of rooms."""
        return [
            (upper, lower)
            for upper, imported in self.room_imports().items()
            for lower in sorted(imported)
            if order.index(lower) < order.index(upper)
        ]


def room(module: str) -> str:
    """Return the room of a module: ``outlast.stream.order`` lies in ``stream``."""
    return module.split(".")[1] if "." in module else module


def read_house(trees: Mapping[str, ast.Module], lines: Mapping[str, int]) -> House:
    """Read the imports of a package from the syntax trees of its modules, by dotted name."""
    return House(
        lines=lines,
        imports={
            module: frozenset(name for _, name in imports_of(tree, trees) if name != module)
            for module, tree in trees.items()
        },
    )


def imports_of(tree: ast.Module, modules: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for each import of the package, wherever in the module it stands.

    ``from outlast.stream import order`` names the module ``outlast.stream.order`` if there is one.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in full]
        else:
            continue
        for name in dict.fromkeys(names):
            if name.split(".")[0] == "outlast":
                yield node.lineno, name


def circles(arrows: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected groups of more than one, each sorted."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in arrows.get(waiting.pop(), ()):
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return seen

    reach = {name: reached(name) for name in arrows}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, ()))) for name in arrows
    }
    return [list(group) for group in sorted(groups) if len(group) > 1]


def read_source(source: Path) -> House:
    """Read the package below a folder."""
    trees: dict[str, ast.Module] = {}
    lines: dict[str, int] = {}
    for path in sorted((source / "outlast").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text(encoding="utf-8")
        trees[name], lines[name] = ast.parse(text, filename=str(path)), len(text.splitlines())
    return read_house(trees, lines)


def way_of(action: Callable[[], object], source: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the rooms that an action enters, in the order of the first visit, and the climbs in it: pairs of
    files of which the first calls the second, which lies in a room above it.
    """
    package = str(source / "outlast") + "/"
    visited: dict[str, None] = {}
    climbed: dict[tuple[str, str], None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (file := frame.f_code.co_filename).startswith(package):
            return
        here = name_of(file)
        visited.setdefault(room(here))
        caller = frame.f_back
        if caller is not None and (there := caller.f_code.co_filename).startswith(package):
            above, below = ORDER.index(room(here)), ORDER.index(room(name_of(there)))
            if above < below:
                climbed.setdefault((name_of(there), here))

    def name_of(file: str) -> str:
        parts = Path(file).relative_to(source).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        action()
    except SystemExit:
        pass  # the end of a verb
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(visited), list(climbed)


def print_house(house: House) -> None:
    """Print the figures of docs/design/layout.md."""
    total = sum(house.lines.values())
    print(f"{total} lines, {len(house.lines)} files, {len(house.room_lines())} rooms")
    for name, count in house.room_lines().items():
        imported = ", ".join(sorted(house.room_imports()[name]))
        print(f"  {name:12} {count:6} lines {count / total:6.1%}  -> {imported}")
    print(f"circles of files: {house.file_circles() or 'none'}")
    print(f"circles of rooms: {house.room_circles() or 'none'}")
    print(f"climbs: {len(house.climbs())}: {', '.join(f'{a} -> {b}' for a, b in house.climbs())}")


def print_ways(source: Path) -> None:
    """Prepare a tiny corpus and train on it for three steps, and print the way of each."""
    sys.path.insert(0, str(source))
    from outlast.__main__ import main

    recipe = str(Path(__file__).parents[2] / "recipes" / "roberta_tiny.toml")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text")
        text.mkdir()
        for number in range(40):
            words = " ".join(f"word{number * n % 97} of {n}" for n in range(200))
            (text / f"{number}.txt").write_text(words + "\n")
        prepare = f"prepare {recipe} --out {folder}/data --set corpus.path={text} "
        prepare += "--set shards.num_processes=1 --set tokenizer.vocab_size=300"
        train = f"train {recipe} --run-dir {folder}/run --set training.total_steps=3 "
        train += f"--set stream.manifest={folder}/data/manifest.json"
        for line in (prepare, train):
            sys.argv = ["outlast", *line.split()]
            rooms, climbed = way_of(main, source)
            print(f"the way through {sys.argv[1]}: {len(rooms)} rooms entered, {len(climbed)} climbs")
            print(f"  {' '.join(rooms)}")
            for lower, upper in climbed:
                print(f"  {lower} calls {upper}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", nargs="?", type=Path, default=Path(__file__).parents[2] / "src")
    parser.add_argument("--way", action="store_true", help="also the ways through prepare and train")
    chosen = parser.parse_args()
    print_house(read_source(chosen.source.resolve()))
    if chosen.way:
        print_ways(chosen.source.resolve())
