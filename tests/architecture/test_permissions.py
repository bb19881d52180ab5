"""A permission that nothing needs is withdrawn: a list of what is allowed holds what the tree uses.

In: the allow-lists of the other architecture tests and of pyproject.toml. A stale entry is a door left open:
the next mistake walks through it unseen.
"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from architecture.rooms import read_source, room
from architecture.test_dependencies import (
    EXTRAS_OF_THE_PACKAGE,
    PARTS_OF_JAX,
    distributions_of,
    libraries,
    names,
)
from architecture.test_import_direction import LEAVES, MAY_IMPORT, RECIPE_MAY_IMPORT
from architecture.test_jax_free_half import JAX_FREE, JAX_FREE_MODULES


@pytest.fixture(scope="module")
def pyproject(checkout: Path) -> dict[str, Any]:
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_arrow_is_walked(checkout: Path) -> None:
    house = read_source(checkout / "src")
    walked = house.room_imports()
    stale = [
        f"{upper} -> {lower}"
        for upper, allowed in MAY_IMPORT.items()
        for lower in sorted(allowed - walked[upper])
        if lower not in LEAVES or not allowed >= LEAVES
    ]
    of_the_recipe = {
        name for module, imported in house.imports.items() if room(module) == "recipe" for name in imported
    }
    stale += sorted(RECIPE_MAY_IMPORT - of_the_recipe)
    assert not stale, f"do: take out of test_import_direction.py, and of docs/design/layout.md: {stale}"


def test_every_module_free_of_jax_needs_its_line(checkout: Path) -> None:
    modules = read_source(checkout / "src").lines
    stale = JAX_FREE - {room(module) for module in modules}
    stale |= {module for module in JAX_FREE_MODULES if module not in modules or room(module) in JAX_FREE}
    assert not stale, f"do: take out of test_jax_free_half.py: {sorted(stale)}"


def test_every_extra_brings_what_the_package_loads(
    source_trees: dict[str, ast.Module], pyproject: dict[str, Any]
) -> None:
    loaded = {
        name
        for tree in source_trees.values()
        for library in {name for _, name in libraries(tree)} | loaded_by_name(tree)
        for name in {library.lower(), *distributions_of(library)}
    }
    extras: dict[str, list[str]] = pyproject["project"]["optional-dependencies"]
    stale = [extra for extra in EXTRAS_OF_THE_PACKAGE if not names(extras.get(extra, [])) & loaded]
    assert not stale, f"do: take out of EXTRAS_OF_THE_PACKAGE, and of pyproject.toml: {stale}"
    assert not PARTS_OF_JAX - loaded, f"do: take out of PARTS_OF_JAX: {sorted(PARTS_OF_JAX - loaded)}"


def test_every_rule_that_is_switched_off_would_speak(checkout: Path, pyproject: dict[str, Any]) -> None:
    lint = pyproject["tool"]["ruff"]["lint"]
    switched_off: list[str] = lint["ignore"]
    heard = ruff(checkout, "lint.ignore=[]", *switched_off)
    stale = [rule for rule in switched_off if not any(f" {rule} " in line for line in heard)]
    for files, rules in lint["per-file-ignores"].items():
        heard = ruff(checkout, "lint.per-file-ignores={}", *rules)
        folder = files.removesuffix("*")
        stale += [f"{files}: {rule}" for rule in rules if not any(line.startswith(folder) for line in heard)]
    assert not stale, f"do: take out of [tool.ruff.lint] in pyproject.toml: {stale}"


def loaded_by_name(tree: ast.Module) -> set[str]:
    """Return the top-level names among the strings that a module which loads libraries by name holds."""
    strings = {
        node.value.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return strings if "import_module" in ast.dump(tree) else set()


def ruff(checkout: Path, setting: str, *rules: str) -> list[str]:
    """Return what ruff says under other settings, a line for each finding: path:line:column: rule text."""
    command = ["check", ".", "--config", setting, "--select", ",".join(rules), "--output-format", "concise"]
    found = subprocess.run(
        [sys.executable, "-m", "ruff", *command],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode in {0, 1}, found.stderr
    return found.stdout.splitlines()
