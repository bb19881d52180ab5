"""Imports go one way, from the command line down to the leaves, also the lazy ones inside functions.

The table is the design: to the left a component, to the right all it may import. A new arrow is a decision;
it belongs in docs/design/layout.md before it stands here.
"""

import ast
from collections.abc import Iterator

LEAVES = {"errors", "config", "storage", "prng", "prices", "logs"}

MAY_IMPORT: dict[str, set[str]] = {
    # The leaves know no component, and of each other only what stands here.
    "errors": set(),
    "prng": set(),
    "logs": {"errors"},
    "prices": {"errors"},
    "config": {"errors"},
    "storage": {"errors"},
    # The data half.
    "corpus": LEAVES,
    "cleaning": LEAVES | {"corpus"},
    "tokenizer": LEAVES | {"corpus"},
    "shards": LEAVES | {"corpus", "cleaning", "tokenizer"},
    "stream": LEAVES | {"shards"},
    "prepare": LEAVES | {"recipe", "corpus", "cleaning", "tokenizer", "shards"},
    "interchange": LEAVES | {"shards", "stream", "tokenizer", "objectives"},
    # The training half.
    "models": LEAVES,
    "objectives": LEAVES | {"models"},
    "checkpoint": LEAVES,
    "training": LEAVES | {"objectives", "models", "stream", "shards", "checkpoint"},
    "huggingface": LEAVES | {"models", "checkpoint", "tokenizer"},
    "inference": LEAVES | {"huggingface", "models", "tokenizer"},
    # The recipe holds every table, so it reads every package's config.py; see RECIPE_MAY_IMPORT.
    "recipe": {"config", "errors", "prng"},
    "run": LEAVES
    | {
        "recipe",
        "training",
        "objectives",
        "models",
        "stream",
        "shards",
        "tokenizer",
        "checkpoint",
        "huggingface",
    },
    "planning": LEAVES
    | {"run", "recipe", "training", "objectives", "models", "stream", "shards", "checkpoint"},
    "launch": LEAVES,
    "report": LEAVES,
}
ANYTHING = {"outlast", "__main__", "cli"}
"""The package's own names and the command line stand above everything; what they import is loaded lazily."""

VERSION = "outlast.__version__"
"""Goes into what we write, so everybody may read it."""

RECIPE_MAY_IMPORT = {
    "outlast.models.resnet_config",
    *("outlast.tokenizer.manifest", "outlast.shards.manifest", "outlast.stream.order"),
    "outlast.training.phase_plan",
}
"""Beside every ``config.py``: plain data and pure functions without jax."""


def test_imports_follow_the_table(source_trees: dict[str, ast.Module]) -> None:
    wrong = [
        f"  {importer}:{line} imports {imported}"
        for importer, tree in source_trees.items()
        for line, imported in imports_of(importer, tree, source_trees)
        if not is_allowed(importer, imported)
    ]
    assert not wrong, (
        "Imports against the direction of the layers:\n"
        + "\n".join(wrong)
        + "\ndo: move what both need to the lower of the two, or pass it in as an argument; "
        "the table stands in tests/architecture/test_import_direction.py"
    )


def test_every_component_stands_in_the_table(source_trees: dict[str, ast.Module]) -> None:
    unknown = sorted({component(name) for name in source_trees} - set(MAY_IMPORT) - ANYTHING)
    assert not unknown, f"do: give {unknown} a line in MAY_IMPORT and in docs/design/layout.md"


def test_the_table_has_no_cycle() -> None:
    def reaches(start: str, current: str, seen: set[str]) -> bool:
        seen.add(current)
        following = MAY_IMPORT[current]
        return start in following or any(reaches(start, name, seen) for name in following - seen)

    circular = sorted(name for name in MAY_IMPORT if reaches(name, name, set()))
    assert not circular, f"do: remove an arrow; {circular} reach themselves"


def test_no_relative_imports(source_trees: dict[str, ast.Module]) -> None:
    relative = [
        f"{name}:{node.lineno}"
        for name, tree in source_trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative, f"do: write the full name (from outlast.x import y) in {relative}"


def test_a_wrong_import_would_be_seen() -> None:
    tree = ast.parse(
        "def f():\n    from outlast.training import loop\n    import outlast.cli as c\n    import numpy\n"
    )
    modules = {"outlast.training.loop": tree, "outlast.cli": tree}
    found = [name for _, name in imports_of("outlast.stream.order", tree, modules)]
    assert found == ["outlast.training.loop", "outlast.cli"]
    assert not any(is_allowed("outlast.stream.order", name) for name in found)
    assert is_allowed("outlast.recipe", "outlast.models.config")
    assert not is_allowed("outlast.recipe", "outlast.models.bert")


def component(module: str) -> str:
    """Return the part below the package: ``outlast.stream.order`` belongs to ``stream``."""
    return module.split(".")[1] if "." in module else module


def is_allowed(importer: str, imported: str) -> bool:
    """Whether one module of the package may import another."""
    upper, lower = component(importer), component(imported)
    if upper in ANYTHING or upper == lower:
        return True
    if imported == "outlast":
        return False
    if upper == "recipe" and (imported.endswith(".config") or imported in RECIPE_MAY_IMPORT):
        return True
    return lower in MAY_IMPORT.get(upper, set())


def imports_of(importer: str, tree: ast.Module, modules: dict[str, ast.Module]) -> Iterator[tuple[int, str]]:
    """Yield (line, module) for each import of our own package, wherever in the module it stands.

    ``from outlast.stream import order`` names the module ``outlast.stream.order`` if there is one.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in full if name != VERSION]
        else:
            continue
        for name in dict.fromkeys(names):
            if name.split(".")[0] == "outlast":
                yield node.lineno, name
