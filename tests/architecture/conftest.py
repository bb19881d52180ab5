"""What the architecture tests look at: the source as syntax trees, nothing imported."""

import ast
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout."""
    return CHECKOUT


@pytest.fixture(scope="session")
def source_trees() -> dict[str, ast.Module]:
    """The syntax tree of every module of the package, by its dotted name (``outlast.stream.order``)."""
    source = CHECKOUT / "src"
    trees: dict[str, ast.Module] = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return trees
