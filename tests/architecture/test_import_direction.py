"""Imports go one way, from the command line down to the leaves, also the lazy ones inside functions.

The table is the design: to the left a component, to the right all it may import. A new arrow is a decision;
it belongs in docs/design/layout.md before it stands here. The leaves are open to all;
test_permissions.py takes back what nothing uses.
"""

import ast

from architecture.rooms import imports_of, room

LEAVES = {"errors", "config", "storage", "prng", "logs", "version"}

MAY_IMPORT: dict[str, set[str]] = {
    # The leaves know no component, and of each other only what stands here.
    "version": set(),
    "errors": set(),
    "prng": set(),
    "logs": {"errors"},
    "config": {"errors", "storage"},
    "storage": {"errors"},
    # The data half.
    "build": LEAVES,
    "corpus": LEAVES,
    "cleaning": LEAVES | {"build", "corpus"},
    "tokenizer": LEAVES,
    "shards": LEAVES,
    "stream": LEAVES | {"shards"},
    "images": LEAVES | {"build", "corpus", "shards", "stream"},
    "prepare": LEAVES | {"recipe", "build", "corpus", "cleaning", "tokenizer", "shards"},
    "init": LEAVES | {"recipe", "images", "corpus", "cleaning"},
    "interchange": LEAVES | {"build", "shards", "stream", "tokenizer", "objectives"},
    "pytorch": LEAVES | {"images", "stream"},
    # The training half.
    "models": LEAVES,
    "objectives": LEAVES | {"models"},
    "checkpoint": LEAVES,
    "training": LEAVES | {"objectives", "models", "stream", "checkpoint"},
    "huggingface": LEAVES | {"models", "tokenizer"},
    "inference": LEAVES | {"huggingface", "images", "models", "tokenizer"},
    # The recipe holds every table, so it reads every package's config.py; see RECIPE_MAY_IMPORT.
    "recipe": {"config", "errors"},
    "run": LEAVES
    | {
        "recipe",
        "training",
        "objectives",
        "models",
        "images",
        "stream",
        "shards",
        "tokenizer",
        "checkpoint",
        "huggingface",
    },
}
ANYTHING = {"outlast", "__main__", "cli"}
"""The package's own names and the command line stand above everything; what they import is loaded lazily."""

RECIPE_MAY_IMPORT = {
    *("outlast.models.resnet_config", "outlast.stream.order", "outlast.training.phase_plan"),
}
"""Beside every ``config.py``: plain data and pure functions without jax."""


def test_imports_follow_the_table(source_trees: dict[str, ast.Module]) -> None:
    wrong = [
        f"  {importer}:{line} imports {imported}"
        for importer, tree in source_trees.items()
        for line, imported in imports_of(tree, source_trees)
        if not is_allowed(importer, imported)
    ]
    assert not wrong, (
        "Imports against the direction of the layers:\n"
        + "\n".join(wrong)
        + "\ndo: move what both need to the lower of the two, or pass it in as an argument; "
        "the table stands in tests/architecture/test_import_direction.py"
    )


def test_every_component_stands_in_the_table(source_trees: dict[str, ast.Module]) -> None:
    unknown = sorted({room(name) for name in source_trees} - set(MAY_IMPORT) - ANYTHING)
    assert not unknown, f"do: give {unknown} a line in MAY_IMPORT and in docs/design/layout.md"


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
    found = [name for _, name in imports_of(tree, modules)]
    assert found == ["outlast.training.loop", "outlast.cli"]
    assert not any(is_allowed("outlast.stream.order", name) for name in found)
    assert is_allowed("outlast.recipe", "outlast.models.config")
    assert not is_allowed("outlast.recipe", "outlast.models.bert")


def is_allowed(importer: str, imported: str) -> bool:
    """Whether one module of the package may import another."""
    upper, lower = room(importer), room(imported)
    if upper in ANYTHING or upper == lower:
        return True
    if imported == "outlast":
        return False
    if upper == "recipe" and (imported.endswith(".config") or imported in RECIPE_MAY_IMPORT):
        return True
    return lower in MAY_IMPORT.get(upper, set())
