"""Every library that the package imports is declared and has its reason written down.

Two mistakes that no other test can see where everything is installed: an import that works only because a
test tool brought the library along, and a dependency that nobody decided on.
"""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

EXTRAS_OF_THE_PACKAGE = (
    "train",
    "parquet",
    "hub",
    "dedup",
    "fast",
    "language",
    "segment",
    "images",
    "ray",
    "torch",
)
PARTS_OF_JAX = {"jaxlib", "ml-dtypes"}


@pytest.fixture(scope="module")
def project(checkout: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    return project


def test_every_import_is_declared(source_trees: dict[str, ast.Module], project: dict[str, Any]) -> None:
    declared = (
        core(project)
        | PARTS_OF_JAX
        | {
            name
            for extra in EXTRAS_OF_THE_PACKAGE
            for name in names(project["optional-dependencies"].get(extra, []))
        }
    )
    undeclared = [
        f"{module}:{line} imports {library}"
        for module, tree in source_trees.items()
        for line, library in libraries(tree)
        if not distributions_of(library) & declared
    ]
    assert not undeclared, (
        f"do: add the library to pyproject.toml and its reason to docs/design/dependencies.md: {undeclared}"
    )


def test_every_dependency_is_used(source_trees: dict[str, ast.Module], project: dict[str, Any]) -> None:
    used = {
        name
        for tree in source_trees.values()
        for _, library in libraries(tree)
        for name in distributions_of(library)
    }
    assert not core(project) - used, f"do: remove from pyproject.toml: {sorted(core(project) - used)}"


def test_every_dependency_has_its_reason(checkout: Path, project: dict[str, Any]) -> None:
    text = (checkout / "docs" / "design" / "dependencies.md").read_text(encoding="utf-8")
    declared = core(project).union(*(names(extra) for extra in project["optional-dependencies"].values()))
    missing = sorted(name for name in declared - {"outlast"} if f"`{name}`" not in text)
    assert not missing, f"do: give each a row in docs/design/dependencies.md: {missing}"


def core(project: dict[str, Any]) -> set[str]:
    """Return the distributions that every installation has."""
    return names(project["dependencies"])


def names(requirements: list[str]) -> set[str]:
    """Return the distributions that requirements name, without versions and extras."""
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in requirements}


def distributions_of(library: str) -> set[str]:
    """Return the distributions that bring an importable name; the name itself where none is installed."""
    return {name.lower().replace("_", "-") for name in all_distributions().get(library, [library])}


@functools.cache
def all_distributions() -> Mapping[str, list[str]]:
    """Return what is installed, by importable name. Reading it takes seconds where much is installed."""
    return packages_distributions()


def libraries(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, top-level name) for each import from outside the standard library and the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [node.module]
        else:
            continue
        for name in {name.split(".")[0] for name in found} - {"outlast"}:
            if name not in sys.stdlib_module_names:
                yield node.lineno, name
