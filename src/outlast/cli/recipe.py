"""The verbs about recipes: ``recipe show`` and ``recipe schema``."""

import json
from pathlib import Path

import click

from outlast.cli.printing import json_option, print_table, recipe_arguments


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
        click.echo(json.dumps({row.key: {"value": row.value, "from": row.origin} for row in rows}))
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

    click.echo(reference_page() if markdown else json.dumps(schema(), indent=1), nl=not markdown)
