"""All keys of a recipe: the page and the schema say what the code says."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from outlast.cli.main import run_command_line
from outlast.models.config import FAMILIES
from outlast.recipe.schema import keys_of, recipe_schema, reference_page

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "reference" / "recipe.md"
RECIPES = sorted((CHECKOUT / "recipes").glob("*.toml"))


def test_the_page_of_all_keys_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), (
        "do: outlast recipe schema --markdown > docs/reference/recipe.md"
    )


def test_every_key_and_table_says_what_it_means() -> None:
    silent = [
        part.name
        for table, keys in keys_of()
        for part in (table, *keys)
        if not part.fields.get("description")
    ]
    assert not silent, "do: write a docstring below the field"


def test_the_marks_of_what_may_change() -> None:
    # Of the tables that are told apart the first: what runs on text.
    keys = {key.name: key.fields for _, keys in reversed([*keys_of()]) for key in keys}
    operation = {name for name, fields in keys.items() if "x-operation" in fields}
    assert {name for name in keys if name.startswith("checkpoint.")} <= operation
    assert {"stream.prefetch_batches", "training.compute_dtype", "shards.num_processes"} <= operation
    assert not operation & {"stream.packing", "training.seed", "model.dropout", "tokenizer.kind"}
    places = {name for name, fields in keys.items() if "x-location" in fields}
    assert places == {
        *("corpus.path", "corpus.validation_path", "tokenizer.path", "stream.manifest"),
        *("stream.sources.manifest", "stream.cache_dir", "training.compilation_cache_dir"),
    }
    assert keys["model.architecture"]["enum"] == list(FAMILIES)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_schema_takes_every_shipped_recipe(path: Path) -> None:
    jsonschema.validate(finite(tomllib.loads(path.read_text(encoding="utf-8"))), recipe_schema())


@pytest.mark.parametrize(
    "data",
    [
        {"stream": {"sequence_lenght": 5}},
        {"model": {"architecture": "nonsense"}},
        {"model": {"architecture": "resnet", "num_heads": 2}},
        {"objective": {"kind": "classification", "whole_words": True}},
        {"training": {"phases": [{"sequence_length": 5}]}},
    ],
)
def test_the_schema_refuses_what_a_recipe_refuses(data: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, recipe_schema())


def test_the_verb_prints_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command_line(["recipe", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == recipe_schema()
    assert run_command_line(["recipe", "schema", "--markdown"]) == 0
    assert capsys.readouterr().out == reference_page()


def finite(value: Any) -> Any:
    """Return plain data with infinity as a large number: JSON, for which the schema is, has none."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return 1e300 if value == math.inf else value
