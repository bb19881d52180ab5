"""What the owner writes into the run directory at the start: recipe and tokenizer.

In: the parts of a run. Out: what ``directory`` reads (formats/run_directory.md).
"""

from typing import Any

from outlast.checkpoint.attempts import Attempt
from outlast.recipe import plain_tables
from outlast.run.directory import write_description
from outlast.run.kind import Parts
from outlast.storage import split_url


def keep_description(attempt: Attempt, parts: Parts[Any, Any]) -> None:
    """Write the recipe and the labels into the run directory.

    Raises:
        Fenced: a later attempt has claimed the run.
    """
    attempt.check_owned()
    labels = parts.kind.keep_labels(parts.stream, attempt.store)
    described = {"recipe": _with_whole_urls(parts), **labels, "identity": parts.identity}
    write_description(attempt, described)


def _with_whole_urls(parts: Parts[Any, Any]) -> dict[str, Any]:
    """Return the recipe, resolved, so that the run can be evaluated from any folder."""
    recipe = plain_tables(parts.recipe)
    urls = [f"{each.store.url}/{split_url(each.url)[1]}" for each in parts.stream.data_sets]
    if parts.recipe.stream.sources:
        for fields, url in zip(recipe["stream"]["sources"], urls, strict=True):
            fields["manifest"] = url
    else:
        recipe["stream"]["manifest"] = urls[0]
    return recipe
