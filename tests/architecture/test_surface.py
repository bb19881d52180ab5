"""What people see first: the public names, the map of files in the README, the recipes, the scripts."""

import os
import re
import subprocess
import sys
from collections.abc import Set
from pathlib import Path

import pytest

import outlast
from architecture.rooms import read_source, room

GENERATED = {"build", "dist", "quickstart-run", "__pycache__"}


def test_the_public_names_are_there() -> None:
    """docs/reference/python.md pins them, with their signatures."""
    names: list[str] = outlast.__all__
    assert {"read_recipe", "prepare_data", "open_stream", "train_run", "load_model"} <= set(names)
    assert set(names) <= set(dir(outlast))
    everything: dict[str, object] = {}
    exec("from outlast import *", everything)
    assert set(names) <= set(everything)
    with pytest.raises(AttributeError, match="no attribute 'open_streams'"):
        getattr(outlast, "open_streams")  # noqa: B009


def test_type_checkers_find_the_types(checkout: Path) -> None:
    assert (checkout / "src" / "outlast" / "py.typed").exists()


def test_public_names_load_nothing_heavy() -> None:
    program = "import sys, outlast; print(*sorted(name for name in sys.modules if '.' not in name))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    heavy = set(result.stdout.split()) & {"jax", "numpy", "pydantic", "click", "rich", "tokenizers"}
    assert not heavy, (
        f"`import outlast` loads {heavy}; do: load it in outlast.__getattr__, when a name is asked for"
    )


def test_the_map_in_the_readme_is_true(checkout: Path) -> None:
    for readme in sorted(checkout.glob("README*.md")):
        mapped = mapped_paths(readme.read_text(encoding="utf-8"))
        assert mapped, f"do: give {readme.name} the map of files, a fenced block with a line for src/outlast/"
        missing = sorted(path for path in mapped if not list(checkout.glob(path)))
        assert not missing, f"the map in {readme.name} names what is not there; do: correct it: {missing}"
        left_out = sorted(things_to_map(checkout, mapped) - mapped)
        assert not left_out, f"the map in {readme.name} leaves out {left_out}; do: give each a line"


def test_a_false_map_would_be_seen() -> None:
    text = """
```sh
scripts/test
```
```
docs/          words
  nested/      more words
    a.md b.md
src/outlast/   the package

  cli.py       one function per verb
```
"""
    inside_docs = {"docs", "docs/nested", "docs/nested/a.md", "docs/nested/b.md"}
    assert mapped_paths(text) == inside_docs | {"src/outlast", "src/outlast/cli.py"}


def test_every_recipe_is_valid(checkout: Path) -> None:
    from outlast.recipe import read_recipe

    for path in sorted((checkout / "recipes").glob("*.toml")):
        read_recipe(path)
        head = path.read_text(encoding="utf-8").partition("\n[")[0]
        assert head.startswith("#"), (
            f"do: tell in the head of {path.name} the command, the hardware, the result"
        )
        assert "outlast train" in head or "scripts/" in head, (
            f"do: show in the head of {path.name} how to run it"
        )


def test_scripts_can_be_run(checkout: Path) -> None:
    for path in [*(checkout / "scripts").iterdir(), checkout / ".ci" / "run"]:
        if path.read_bytes().startswith(b"#!"):
            assert os.access(path, os.X_OK), f"do: chmod +x {path}"
        if path.suffix == ".sh" or b"bash" in path.read_bytes().partition(b"\n")[0]:
            subprocess.run(["bash", "-n", path], check=True)


def mapped_paths(text: str) -> set[str]:
    """Return the paths of the fenced block that maps the tree: the one with a line for ``src/outlast/``.

    A line is one or more paths, one space between them, then two spaces and what they are for. An indented
    line lies in the folder of the nearest line above it with less indent.
    """
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    block = next((block for block in blocks if re.search(r"^ *src/outlast/", block, flags=re.MULTILINE)), "")
    paths: set[str] = set()
    folders: list[tuple[int, str]] = []
    for line in filter(str.strip, block.splitlines()):
        indent = len(line) - len(line.lstrip())
        folders = [(depth, folder) for depth, folder in folders if depth < indent]
        parent = folders[-1][1] + "/" if folders else ""
        names = [parent + name.rstrip("/") for name in re.split(r"\s{2,}", line.strip())[0].split()]
        paths |= set(names)
        folders.append((indent, names[0]))
    return paths


def things_to_map(checkout: Path, mapped: Set[str]) -> set[str]:
    """Return what a map must name: the folders at the top, every package and module in ``src/outlast``, and
    all modules of a package of which it names one.
    """
    source = checkout / "src" / "outlast"
    top = {path.name for path in checkout.iterdir() if path.is_dir() and path.name[0] != "."}
    inside = [
        path
        for path in source.iterdir()
        if (path.suffix == ".py" and path.name[0] != "_") or (path / "__init__.py").exists()
    ]
    entered = {Path(name).parent for name in mapped if name.endswith(".py")} - {Path("src/outlast")}
    inside += [path for room in entered for path in (checkout / room).glob("[!_]*.py")]
    return (top - GENERATED - {"src"}) | {path.relative_to(checkout).as_posix() for path in [*inside, source]}


def test_the_reading_order_leads_through_the_house(checkout: Path) -> None:
    told = (checkout / "README.md").read_text(encoding="utf-8").split("The code in", 1)[1].split("```", 1)[0]
    files = re.findall(r"`([\w/]+\.py)`", told.split("\n1. ", 1)[1])
    names = [
        f"outlast.{file.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}" for file in files
    ]
    house = read_source(checkout / "src")
    assert set(names) <= set(house.imports), f"do: name files that are there: {files}"
    near = set(names).union(*(house.imports[name] for name in names))
    far = {room(module) for module in house.imports} - {room(module) for module in near}
    assert far == {"__main__", "outlast", "init", "interchange", "pytorch", "prng"}, (
        f"do: correct the reading order in the README; rooms more than one import away: {sorted(far)}"
    )
    lines = sum(house.lines[name] for name in names)
    said = re.search(r"about ([\d,]+) lines", told)
    assert said, "do: say how many lines the reading order has"
    assert abs(int(said[1].replace(",", "")) / lines - 1) < 0.1, f"do: write {lines} lines"
