"""The recipes that come with the package, each a complete run, its measured result in the comment at its top.

In: a name, such as ``roberta_tiny``. Out: the text of the file. An installed package has them inside, a
checkout in its own folder.
"""

from importlib.resources import files
from pathlib import Path

from outlast.config import nearest
from outlast.errors import ConfigError

_SUFFIX = ".toml"


def shipped_recipes() -> dict[str, str]:
    """Return the text of each recipe by its name."""
    inside = files("outlast").joinpath("recipes")
    folder = inside if inside.is_dir() else Path(__file__).parents[3] / "recipes"
    found = {file.name: file for file in folder.iterdir() if file.name.endswith(_SUFFIX)}
    return {
        name.removesuffix(_SUFFIX): file.read_text(encoding="utf-8") for name, file in sorted(found.items())
    }


def shipped_recipe(name: str, path: str) -> str:
    """Return the text of a recipe, its commands as they are for a copy at a path. Raises ConfigError."""
    recipes = shipped_recipes()
    wanted = name.removesuffix(_SUFFIX)
    if wanted not in recipes:
        raise ConfigError(
            f"There is no recipe {name!r} in the package{nearest(wanted, list(recipes))}.",
            expected="one of " + ", ".join(recipes),
        )
    return recipes[wanted].replace(f"recipes/{wanted}{_SUFFIX}", path)
