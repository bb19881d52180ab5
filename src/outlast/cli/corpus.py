"""The verbs of the data half up to the shards: ``corpus`` and ``prepare``."""

import os
from pathlib import Path
from typing import Any

import click

from outlast.cli.printing import echo, print_data_set, recipe_arguments, verify_option


@click.command()
@recipe_arguments
@click.option("--out", required=True, help="Folder or URL for the files: train.00000 and so on.")
@click.option(
    "--num-files",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Files that each split is divided into.",
)
@click.option(
    "--by",
    type=click.Choice(["documents", "bytes"]),
    default="documents",
    show_default=True,
    help="What the files share evenly.",
)
def corpus(recipe: Path, overrides: tuple[str, ...], out: str, num_files: int, by: Any) -> None:
    """Write the corpus as text: a sentence on each line, a blank line between documents.

    Needs the recipe's first table alone; corpus.sentences says what a sentence is (none: a line).
    """
    from outlast.corpus.write import write_corpus
    from outlast.recipe import read_recipe

    write_corpus(read_recipe(recipe, overrides).corpus, out, num_files=num_files, by=by)
    echo(out)


@click.command()
@recipe_arguments
@click.option("--out", required=True, help="Folder or URL for tokenizer, shards and manifest.")
@click.option(
    "--task", metavar="I/N", help="Build only this share of the shards: 0/8 to 7/8.  [default: all of them]"
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    help="Build on a Ray cluster: auto, local or HOST:PORT (extra `ray`).  [default: on this machine]",
)
@verify_option
def prepare(
    recipe: Path, overrides: tuple[str, ...], out: str, task: str | None, ray: str | None, verify: bool
) -> None:
    """Make tokenizer and token shards from raw text.

    Continues where a killed run stopped.
    """
    from outlast.build.tasks import parse_task
    from outlast.prepare.build import prepare_data
    from outlast.recipe import read_recipe

    parsed = read_recipe(recipe, overrides)
    manifest = prepare_data(parsed, out, task=parse_task(task), ray=ray, verify=verify)
    if manifest is None:
        echo("this share is done; the manifest follows with the last one")
    else:
        print_data_set(manifest, recipe, is_named=_is_same(manifest, parsed.stream.manifest))


def _is_same(url: str, named: str | None) -> bool:
    return named is not None and os.path.realpath(url) == os.path.realpath(named)
