"""What a recipe comes to, key by key, and where each value is from.

In: a recipe's file and overrides. Out: rows in the order of the tables. A value is from the file, from an
override, the default of its key, or derived: from other keys, a preset or an architecture. What only the data
tells stays None.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from outlast.config import origins, read_toml, to_dict
from outlast.images.config import ONLY_FOR_TEXT
from outlast.models.config import FAMILIES, resolve_model
from outlast.models.resnet_config import resolve_resnet
from outlast.recipe import ImageRecipe, Recipe, make_run_recipe, read_tables
from outlast.training.phase_plan import plan_phases

FILE, DEFAULT, DERIVED = "file", "default", "derived"


class Row(NamedTuple):
    """A key of a recipe, its value as plain data, and where the value is from."""

    key: str
    value: Any
    origin: str


def show_recipe(path: Path, overrides: Sequence[str] = ()) -> list[Row]:
    """Return every key of a recipe. Raises ConfigError listing every mistake."""
    given = dict(_leaves(read_toml(path.expanduser())))
    recipe = make_run_recipe(read_tables(path, overrides), where=str(path), overrides=overrides)
    defaults = dict(_leaves(to_dict(type(recipe)())))
    derived = _derived_from_images(recipe) if isinstance(recipe, ImageRecipe) else _derived(recipe)
    of_text = tuple(f"stream.{name}" for name in ONLY_FOR_TEXT)
    others = of_text if isinstance(recipe, ImageRecipe) else ("stream.images.",)
    rows: list[Row] = []
    for key, value in _leaves(to_dict(recipe)):
        if key.startswith(others):
            continue
        (place, *_) = origins(key, FILE if key in given else DEFAULT, overrides)
        if place == DEFAULT and value is None and key in derived:
            value, place = derived[key], DERIVED
        elif place == DEFAULT and value != defaults.get(key):
            place = DERIVED
        rows.append(Row(key, value, place))
    return rows


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of tables by their dotted names; those of an array of tables by number."""
    items: Any = None
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in cast(list[Any], value)):
        items = enumerate(cast(list[Any], value))
    if items is None:
        yield name, value
        return
    for key, inner in items:
        yield from _leaves(inner, f"{name}.{key}" if name else str(key))


def _derived(recipe: Recipe) -> dict[str, Any]:
    length = max(phase.sequence_length for phase in plan_phases(recipe.training, recipe.stream))
    encoder = resolve_model(
        recipe.model,
        vocab_size=recipe.model.vocab_size or recipe.tokenizer.vocab_size,
        special_ids={"pad": 0},
        sequence_length=length,
        next_sentence=recipe.objective.next_sentence,
    )
    of_model = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "dropout", "attention_dropout")
    return {
        **{f"model.{key}": getattr(encoder, key) for key in (*of_model, "layer_norm_epsilon", "activation")},
        "model.attention": FAMILIES[recipe.model.architecture].attentions[0],
        "tokenizer.normalization": recipe.tokenizer.normalization_rule,
        "tokenizer.byte_fallback": recipe.tokenizer.has_byte_fallback,
        "objective.max_predictions": recipe.objective.num_predictions(length),
    }


def _derived_from_images(recipe: ImageRecipe) -> dict[str, Any]:
    model = resolve_resnet(recipe.model, num_classes=2)  # only the data tells how many there are
    return {
        "model.depths": list(model.depths),
        "model.widths": list(model.widths),
        "model.stem_width": model.stem_width,
        "stream.images.evaluation_resize": recipe.stream.images.resize or 0,
    }
