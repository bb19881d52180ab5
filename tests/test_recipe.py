"""The recipe as a whole: what is in the repository is valid, and plain data makes the same recipe again."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

from outlast.cli.main import main
from outlast.config import to_dict
from outlast.errors import ConfigError
from outlast.recipe import Recipe, make_recipe, read_recipe

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.toml"))


def test_there_are_recipes() -> None:
    assert {"quickstart_python.toml", "roberta_tiny.toml"} <= {path.name for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_comes_back_from_json(path: Path) -> None:
    recipe = read_recipe(path)
    again = make_recipe(json.loads(json.dumps(to_dict(recipe))), where="again")
    assert again == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_commands_in_a_recipes_head_exist(path: Path) -> None:
    """They are parsed, not run: a flag that was renamed is noticed."""
    lines = re.findall(r"^# +outlast (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    for line in lines:
        verb, *arguments = shlex.split(line)
        command = main.get_command(main.make_context("outlast", [verb], resilient_parsing=True), verb)
        assert command is not None, line
        if not hasattr(command, "commands"):
            command.make_context(verb, arguments)


def test_values_of_every_kind_come_back_from_json() -> None:
    recipe = make_recipe(
        {
            "corpus": {"path": ["a", "b"], "exclude": ["**/test/**"]},
            "tokenizer": {"user_defined_symbols": ["<x>"]},
            "optimizer": {"clip_norm": math.inf},
            "training": {"evaluation_interval_steps": 5},
        },
        where="here",
    )
    assert recipe.corpus.path == ("a", "b")
    assert recipe.optimizer.clip_norm == math.inf
    assert make_recipe(json.loads(json.dumps(to_dict(recipe))), where="again") == recipe


def test_an_empty_recipe_is_all_defaults(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.touch()
    assert read_recipe(path) == Recipe()


def test_overrides_go_before_validation(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text("[training]\ntotal_steps = -1\n")
    assert read_recipe(path, ["training.total_steps=7", "corpus.path=5/a"]).training.total_steps == 7


def test_a_run_over_pairs_asks_for_pairs_of_its_length() -> None:
    model = {"architecture": "bert"}
    pairs = {"stream": {"packing": "pairs", "sequence_length": 64}, "model": model}
    named = {**pairs, "shards": {"pairs": {"lengths": [128]}}}
    assert make_recipe(pairs, where="here").shards.pairs.lengths == (64,)
    assert make_recipe(named, where="here").shards.pairs.lengths == (128,)
    assert make_recipe({}, where="here").shards.pairs.lengths is None


def test_a_model_with_one_token_type_takes_no_pairs() -> None:
    """Its table of token types has one row: the second segment's would be outside of it."""
    with pytest.raises(ConfigError, match=r"roberta[\s\S]*token types[\s\S]*bert"):
        make_recipe({"stream": {"packing": "pairs"}, "model": {"architecture": "roberta"}}, where="here")
