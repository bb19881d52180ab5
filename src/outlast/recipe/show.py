"""What a recipe comes to, key by key, and where each value is from.

In: a recipe's file and overrides. Out: rows in the order of the tables. A value is from the file, from an
override, the default of its key, or derived: from other keys, a preset or an architecture. What only the data
tells stays None.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from outlast.config import origins, read_toml, to_dict
from outlast.images.config import ONLY_FOR_TEXT
from outlast.models.config import FAMILIES
from outlast.recipe import CLASSIFICATION, MASKED_LM, Recipe, plain_tables, read_recipe
from outlast.recipe.images import resnet_of
from outlast.recipe.text import encoder_of, text_tables
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
    recipe = read_recipe(path, overrides)
    tables = plain_tables(recipe)
    defaults = dict(_leaves({name: to_dict(type(getattr(recipe, name))()) for name in tables}))
    derived, others = _DERIVED[recipe.objective.kind]
    derived = derived(recipe)
    rows: list[Row] = []
    for key, value in _leaves(tables):
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


def _derived_from_text(recipe: Recipe) -> dict[str, Any]:
    model, objective = text_tables(recipe)
    encoder = encoder_of(recipe)
    length = max(phase.sequence_length or 0 for phase in plan_phases(recipe.training, recipe.stream))
    of_model = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "dropout", "attention_dropout")
    return {
        **{f"model.{key}": getattr(encoder, key) for key in (*of_model, "layer_norm_epsilon", "activation")},
        "model.attention": FAMILIES[model.architecture].attentions[0],
        "tokenizer.normalization": recipe.tokenizer.normalization_rule,
        "tokenizer.byte_fallback": recipe.tokenizer.has_byte_fallback,
        "objective.max_predictions": objective.num_predictions(length),
    }


def _derived_from_images(recipe: Recipe) -> dict[str, Any]:
    model = resnet_of(recipe)
    return {
        "model.depths": list(model.depths),
        "model.widths": list(model.widths),
        "model.stem_width": model.stem_width,
        "stream.images.evaluation_resize": recipe.stream.images.resize or 0,
    }


_DERIVED: dict[str, tuple[Callable[[Recipe], dict[str, Any]], tuple[str, ...]]] = {
    MASKED_LM: (_derived_from_text, ("stream.images.",)),
    CLASSIFICATION: (_derived_from_images, tuple(f"stream.{name}" for name in ONLY_FOR_TEXT)),
}
"""By ``objective.kind``: what is derived, and the keys that have no meaning."""
