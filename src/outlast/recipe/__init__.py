"""The recipe: one TOML file that describes a data set and a run, validated whole by every verb.

In: a file and overrides. Out: a frozen ``Recipe``, one field per table. This package is free of jax, so the
data half validates the model's table too, and a mistake shows before an hour of preparation rather than after
it.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from outlast.config import (
    apply_overrides,
    build,
    checked,
    fields_of,
    nearest,
    read_toml,
    resolve_locations,
    to_dict,
)
from outlast.errors import ConfigError
from outlast.models.resnet_config import RESNET
from outlast.objectives.config import in_todays_words
from outlast.recipe.images import image_tables, resolve_images
from outlast.recipe.length import in_steps as in_steps
from outlast.recipe.length import with_total_steps
from outlast.recipe.tables import CLASSIFICATION as CLASSIFICATION
from outlast.recipe.tables import MASKED_LM as MASKED_LM
from outlast.recipe.tables import Recipe as Recipe
from outlast.recipe.text import resolve_text, text_tables


@dataclass(frozen=True, kw_only=True)
class RecipeKind:
    """What the objective of a kind asks of the other tables.

    Attributes:
        data: what it learns from.
        tables: returns its ``[model]`` and ``[objective]``, or refuses others.
        resolve: completes a recipe of the kind, and checks that its keys fit together.
        without: the tables that have no meaning with it.
    """

    data: Literal["text", "images"]
    tables: Callable[[Recipe], object]
    resolve: Callable[[Recipe], Recipe]
    without: tuple[str, ...] = ()


RECIPE_KINDS: dict[str, RecipeKind] = {
    MASKED_LM: RecipeKind(data="text", tables=text_tables, resolve=resolve_text),
    CLASSIFICATION: RecipeKind(
        data="images",
        tables=image_tables,
        resolve=resolve_images,
        without=("corpus", "cleaning", "tokenizer", "shards"),
    ),
}
"""By ``objective.kind``."""


@checked
def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe. Raises ConfigError listing every mistake with its key."""
    return make_recipe(read_tables(path, overrides), where=str(path), overrides=overrides)


def read_tables(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the tables of a recipe before they are validated, with every place in them absolute: a relative
    path of the file begins at the file's folder, one of an override at the working folder.
    """
    path = Path(path).expanduser()
    of_file = _locate(read_toml(path), path.absolute().parent)
    return _locate(apply_overrides(of_file, overrides), Path.cwd())


def _locate(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    located = resolve_locations(Recipe, data, folder)
    corpus = data.get("corpus")
    if isinstance(corpus, dict) and cast(dict[str, Any], corpus).get("format") == "huggingface":
        for key in ("path", "validation_path"):  # a name where there is no such folder
            if key in corpus:
                located["corpus"][key] = _folder_or_name(corpus[key], located["corpus"][key])
    return located


def _folder_or_name(given: Any, located: Any) -> Any:
    if isinstance(given, list):
        return [_folder_or_name(*both) for both in zip(cast(list[Any], given), located, strict=True)]
    return located if isinstance(located, str) and os.path.exists(located) else given


def make_recipe(data: dict[str, Any], *, where: str, overrides: Sequence[str] = ()) -> Recipe:
    """Validate plain data as a recipe, then what no table can check by itself. Raises ConfigError.

    Args:
        where: the data comes from.
        overrides: what ``apply_overrides`` has set in it.
    """
    data = with_kinds(data)
    recipe = build(Recipe, data, where=where, overrides=overrides)
    recipe = with_total_steps(recipe, data.get("training", {}))
    _check_data(recipe)
    return _with_metric(RECIPE_KINDS[recipe.objective.kind].resolve(recipe))


def with_kinds(data: dict[str, Any]) -> dict[str, Any]:
    """Return the tables of a recipe with the keys that tell tables apart, where it leaves them out: pictures
    are for a ResNet, and what a ResNet does is classification.
    """
    stream, model, objective = (data.get(name, {}) for name in ("stream", "model", "objective"))
    if not all(isinstance(table, dict) for table in (stream, model, objective)):
        return data  # a mistake, which will be named
    of_images = model.get("architecture", RESNET if stream.get("packing") == "images" else "") == RESNET
    if of_images:
        model = {"architecture": RESNET, **model}
    kind = CLASSIFICATION if of_images else MASKED_LM
    return {**data, "model": model, "objective": {"kind": kind, **in_todays_words(objective)}}


def kind_of(tables: dict[str, Any]) -> str:
    """Return ``objective.kind`` of the plain tables of a recipe."""
    return with_kinds(tables)["objective"]["kind"]


def plain_tables(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as plain values, without the tables that have no meaning for its kind."""
    without = RECIPE_KINDS[recipe.objective.kind].without
    return {name: value for name, value in to_dict(recipe).items() if name not in without}


def _check_data(recipe: Recipe) -> None:
    """Check that the tables are about data that the model reads. Raises ConfigError."""
    kind, found = RECIPE_KINDS[recipe.objective.kind], recipe.stream.data
    kind.tables(recipe)
    if found != kind.data:
        raise ConfigError(
            f"A {recipe.model.architecture} model learns from {kind.data}, and stream.packing = "
            f'"{recipe.stream.packing}" is of {found}.',
            where="model.architecture, stream.packing",
            remedy=f'set model.architecture to "{RESNET}" for images, or leave it out'
            if found == "images"
            else 'set stream.packing to "images"',
        )
    for name in kind.without:
        if getattr(recipe, name) != fields_of(Recipe)[name].default:
            raise ConfigError(
                f"A {recipe.model.architecture} model learns from {kind.data}, and this table is of text.",
                where=f"[{name}]",
                remedy="leave it out",
            )


def _with_metric(recipe: Recipe) -> Recipe:
    """Return the recipe with the metric that says which checkpoint is the best. Raises ConfigError."""
    report, checkpoint = recipe.objective.report, recipe.checkpoint
    metric = report.best if checkpoint.best_metric is None else checkpoint.best_metric
    if metric not in report.names:
        raise ConfigError(
            f"The evaluations of this run have no metric {metric!r}{nearest(metric, report.names)}",
            where="checkpoint.best_metric",
            expected=", ".join(report.names),
            remedy="choose one of these; those of next sentences come with objective.next_sentence = true",
        )
    return replace(recipe, checkpoint=replace(checkpoint, best_metric=metric))
