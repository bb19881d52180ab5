"""The verbs about recipes: ``init``, ``recipe show`` and ``recipe schema``."""

import json
import shlex
from pathlib import Path

import click

from outlast.cli.printing import echo, echo_json, json_option, print_table, recipe_arguments
from outlast.errors import listed
from outlast.logs import log


@click.command()
@click.option("--text", metavar="PATH", help="A file, folder, glob or URL of raw text.  [default: none]")
@click.option(
    "--images", metavar="PATH", help="A folder of pictures with a folder for each class.  [default: none]"
)
@click.option(
    "--recipe", metavar="NAME", help="One of the recipes that come with the package.  [default: none]"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="RUN.toml",
    show_default=True,
    help="The recipe to write; never one that is there.",
)
def init(text: str | None, images: str | None, recipe: str | None, out: Path) -> None:
    """Look at text or pictures and write a recipe that trains on them.

    Format, encoding, language and size are found out; vocabulary, lengths, model and steps are fitted to
    them. Prints the commands that come next.
    """
    from outlast.errors import ConfigError
    from outlast.init.write import write_for_pictures, write_for_text, write_shipped
    from outlast.recipe.shipped import shipped_recipes

    writers = ((write_for_text, text), (write_for_pictures, images), (write_shipped, recipe))
    given = [(write, name) for write, name in writers if name is not None]
    if len(given) != 1:
        raise ConfigError(
            "What the recipe is for is not said, or said more than once.",
            expected="one of --text PATH, --images PATH, --recipe NAME",
            remedy="NAME is one of " + ", ".join(shipped_recipes()),
        )
    ((write, name),) = given
    written = write(name, out.expanduser())
    for line in written.found:
        log.info("%s", line)
    echo(out)
    log.info("%s", listed("next:", (f"  {shlex.join(['outlast', *words])}" for words in written.commands)))


@click.group()
def recipe() -> None:
    """Look at a recipe; list all keys that there are."""


@recipe.command("show")
@recipe_arguments
@json_option
def recipe_show(recipe: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Print every key as resolved, and where its value is from.

    That is the file, an override, the default, or derived: from other keys, the preset or the architecture.
    What only the data tells is null.
    """
    from outlast.recipe.show import show_recipe

    rows = show_recipe(recipe, overrides)
    if as_json:
        echo_json({row.key: {"value": row.value, "from": row.origin} for row in rows})
        return
    cells = [(row.key, json.dumps(row.value, ensure_ascii=False), row.origin) for row in rows]
    print_table(("key", "value", "from"), cells)


@recipe.command("schema")
@click.option("--markdown", is_flag=True, help="Print the page of all keys instead.")
def recipe_schema(markdown: bool) -> None:
    """Print the JSON schema of a recipe, for editors.

    Save it beside the recipe and name it in its first line, as `#:schema recipe.schema.json`.
    """
    from outlast.recipe.schema import recipe_schema as schema
    from outlast.recipe.schema import reference_page

    echo((reference_page() if markdown else json.dumps(schema(), indent=1)).rstrip("\n"))
