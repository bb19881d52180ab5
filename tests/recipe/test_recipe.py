"""The recipe as a whole: what is in the repository is valid, and plain data makes the same recipe again."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from outlast.checkpoint.config import CheckpointConfig
from outlast.cli.main import main
from outlast.config import to_dict
from outlast.errors import ConfigError
from outlast.objectives.config import MlmConfig
from outlast.recipe import Recipe, in_steps, make_recipe, plain_tables, read_recipe
from outlast.recipe.text import text_tables

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def test_there_are_recipes() -> None:
    assert {"quickstart_python.toml", "roberta_tiny.toml"} <= {path.name for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_valid_and_comes_back_from_json(path: Path) -> None:
    recipe = read_recipe(path)
    for plain in (to_dict(recipe), plain_tables(recipe)):
        assert make_recipe(json.loads(json.dumps(plain)), where="again") == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_commands_in_a_recipes_head_exist(path: Path) -> None:
    """They are parsed, not run: a flag that was renamed is noticed."""
    text = re.sub(r" \\\n# +", " ", path.read_text(encoding="utf-8"))
    lines = re.findall(r"^# +outlast (.*)$", text, re.MULTILINE)
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
    # The architecture says the one, the kind of run the other.
    defaults = Recipe(
        objective=MlmConfig(mask_probability=0.15), checkpoint=CheckpointConfig(best_metric="loss")
    )
    assert read_recipe(path) == defaults


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


def test_attention_is_checked_at_the_length_of_every_phase() -> None:
    """The longest is sparse; only the shorter one is among the lengths that the library plans by itself."""
    model = {"architecture": "bigbird", "random_blocks": "transformers", "block_size": 256}
    phases = [{"steps": 1, "sequence_length": 4096}, {"steps": 1, "sequence_length": 8192}]
    given = {"model": {**model, "max_positions": 8192}, "training": {"phases": phases[1:]}}
    make_recipe(given, where="here")
    with pytest.raises(ConfigError, match="not 3 random blocks of 256 tokens"):
        make_recipe({**given, "training": {"phases": phases}}, where="here")


@pytest.mark.parametrize(
    ("model", "objective", "share"),
    [
        ({}, {}, 0.15),
        ({"architecture": "modernbert"}, {}, 0.3),
        ({"architecture": "modernbert"}, {"mask_probability": 0.15}, 0.15),
        ({"architecture": "bert"}, {"mask_probability": 0.3}, 0.3),
    ],
)
def test_the_share_of_masks_is_the_architectures_unless_given(
    model: dict[str, Any], objective: dict[str, Any], share: float
) -> None:
    recipe = make_recipe({"model": model, "objective": objective}, where="test")
    assert text_tables(recipe)[1].mask_probability == share
    assert to_dict(recipe)["objective"]["mask_probability"] == share


def test_next_sentences_need_pairs_and_a_model_with_that_head() -> None:
    pairs = {"model": {"architecture": "bert"}, "stream": {"packing": "pairs"}}
    both = {**pairs, "objective": {"next_sentence": True}}
    for given, expected in ((both, True), (pairs, False)):
        assert text_tables(make_recipe(given, where="test"))[1].next_sentence == expected
    with pytest.raises(ConfigError, match=r"needs examples of two segments") as caught:
        make_recipe({**both, "stream": {}}, where="test")
    assert 'stream.packing = "pairs"' in str(caught.value)
    with pytest.raises(ConfigError, match="A roberta model has no next-sentence head"):
        make_recipe({**both, "model": {}}, where="test")


@pytest.mark.parametrize(
    ("tables", "metric", "told"),
    [
        ({}, "acuracy", "no metric 'acuracy'; did you mean 'accuracy'"),
        ({}, "next_sentence_loss", r"objective\.next_sentence = true"),
        ({"stream": {"packing": "images"}}, "perplexity", "no metric 'perplexity'"),
    ],
)
def test_a_metric_that_the_evaluations_have_not_is_refused(
    tables: dict[str, Any], metric: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        make_recipe({**tables, "checkpoint": {"best_metric": metric}}, where="here")
    assert caught.value.where == "checkpoint.best_metric"


def test_whole_words_need_shards_that_tell_them() -> None:
    whole = {"objective": {"whole_words": True}}
    assert make_recipe(whole, where="here").shards.words == "pieces"
    assert make_recipe({**whole, "shards": {"words": "mecab"}}, where="here").shards.words == "mecab"
    assert make_recipe({}, where="here").shards.words is None
    with pytest.raises(
        ConfigError, match=r"(?s)shards are not to tell where words begin.*leave shards\.words out"
    ):
        make_recipe({**whole, "shards": {"words": "none"}}, where="here")


def test_a_recipe_of_images_takes_no_key_of_text() -> None:
    images: dict[str, Any] = {"stream": {"packing": "images"}, "optimizer": {"clip_norm": math.inf}}
    recipe = make_recipe(images, where="here")
    assert (recipe.model.architecture, recipe.objective.kind) == ("resnet", "classification")
    plain = plain_tables(recipe)
    assert "corpus" not in plain
    assert make_recipe(json.loads(json.dumps(plain, allow_nan=False)), where="again") == recipe
    resnet, classification = "architecture = 'resnet'", "kind = 'classification'"
    for table, key, told in (
        ("corpus", "path", r"(?s)learns from images, and this table is of text.*\[corpus\]"),
        (
            "model",
            "num_heads",
            rf"model\.num_heads: unknown key with {resnet}; it belongs to 'roberta', 'bert'",
        ),
        ("model", "dephts", rf"model\.dephts: unknown key with {resnet}; did you mean 'depths'"),
        ("objective", "whole_words", f"unknown key with {classification}; it belongs to 'masked_lm'"),
        ("stream", "sequence_length", "belongs to text"),
    ):
        with pytest.raises(ConfigError, match=told):
            make_recipe(
                {**images, table: {**images.get(table, {}), key: 64 if key == "sequence_length" else "64"}},
                where="here",
            )


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"model": {"architecture": "resnet"}}, 'set stream.packing to "images"'),
        (
            {"model": {"architecture": "bert"}, "stream": {"packing": "images"}},
            "A bert model learns from text",
        ),
        ({"objective": {"kind": "classification"}}, "A roberta model has no objective of the kind classific"),
        ({"model": {"architecture": "nonsense"}}, "model.architecture: expected one of .*'bert'.*'resnet'"),
        ({"model": {"stem": "small"}}, "unknown key with architecture = 'roberta'; it belongs to 'resnet'"),
        ({"model": 3}, "model: Input should be"),
    ],
)
def test_architecture_kind_and_packing_must_fit(tables: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_recipe(tables, where="here")


def test_the_names_that_objectives_had_are_read() -> None:
    assert make_recipe({"objective": {"name": "mlm"}}, where="here") == make_recipe({}, where="here")
    images: dict[str, Any] = {"stream": {"packing": "images"}}
    assert make_recipe({**images, "objective": {"name": "classify"}}, where="here") == make_recipe(
        images, where="here"
    )
    with pytest.raises(ConfigError, match=r"objective\.name: unknown key"):
        make_recipe({"objective": {"name": "classif"}}, where="here")


def test_what_images_cannot_have() -> None:
    stream = {"packing": "images"}
    with pytest.raises(ConfigError, match="batch norm takes its statistics over the whole batch"):
        make_recipe({"stream": stream, "training": {"num_microbatches": 2}}, where="here")
    with pytest.raises(ConfigError, match="images have none"):
        make_recipe({"stream": stream, "training": {"phases": [{"steps": 5}]}}, where="here")
    with pytest.raises(ConfigError, match="has no attention"):
        make_recipe({"stream": stream, "training": {"attention_kernel": "plain"}}, where="here")
    with pytest.raises(ConfigError, match="make no ResNet"):
        make_recipe({"stream": stream, "model": {"depths": [1]}}, where="here")


def test_images_may_be_counted_in_epochs() -> None:
    given: dict[str, Any] = {
        "stream": {"packing": "images", "global_batch_size": 64},
        "optimizer": {"name": "sgd", "schedule": "step", "warmup_epochs": 0.9, "decay_epochs": 20},
        "training": {"epochs": 90},
    }
    recipe = make_recipe(given, where="here")
    found = in_steps(recipe, 1000)
    assert (found.optimizer.warmup_steps, found.optimizer.decay_steps) == (14, 312)  # of 14.06 and 312.5
    assert found.training.total_steps == 1406
    assert in_steps(found, 5) == found, "what is in steps stays"
    assert make_recipe(json.loads(json.dumps(to_dict(found))), where="again") == found
    assert in_steps(recipe, 1).training.total_steps == 1
    with pytest.raises(ConfigError, match=r"(?s)given twice.*--set training\.epochs"):
        make_recipe({**given, "training": {"epochs": 90, "total_steps": 5}}, where="here")


def test_text_may_be_counted_in_epochs_but_not_in_phases() -> None:
    recipe = make_recipe({"training": {"epochs": 3}, "optimizer": {"warmup_epochs": 0.5}}, where="here")
    found = in_steps(recipe, 320)
    assert (found.training.total_steps, found.training.epochs, found.optimizer.warmup_steps) == (30, None, 5)
    for table, key, remedy in (
        ("training", "epochs", "leave it out"),
        ("optimizer", "warmup_epochs", r"give optimizer\.warmup_steps"),
        ("optimizer", "decay_epochs", r"give optimizer\.decay_steps"),
    ):
        tables: dict[str, Any] = {"training": {"phases": [{"steps": 5}]}}
        with pytest.raises(ConfigError, match=rf"(?s)in phases is measured in steps.*{remedy}"):
            make_recipe({**tables, table: {**tables.get(table, {}), key: 2}}, where="here")
    sources = [{"manifest": "a/manifest.json", "tokens": 5}]
    with pytest.raises(ConfigError, match=r"(?s)budget of tokens.*training\.epochs"):
        make_recipe({"training": {"epochs": 3}, "stream": {"sources": sources}}, where="here")


def test_places_begin_at_the_file_or_at_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in a file means the same from every folder; what is typed means what it says there."""
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "RUN.toml"
    path.write_text(
        '[corpus]\npath = ["texts", "~/mine", "/abs", "s3://bucket/x"]\n'
        '[[stream.sources]]\nmanifest = "data/manifest.json"\nweight = 1\n'
    )
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("HOME", "/home/me")
    recipe = read_recipe(Path("../RUN.toml"), ["tokenizer.path=tokens", "stream.cache_dir=~/cache"])
    assert recipe.corpus.path == (str(tmp_path / "texts"), "/home/me/mine", "/abs", "s3://bucket/x")
    assert recipe.stream.sources[0].manifest == str(tmp_path / "data" / "manifest.json")
    assert recipe.tokenizer.path == str(tmp_path / "elsewhere" / "tokens")
    assert recipe.stream.cache_dir == "/home/me/cache"
    with pytest.raises(ConfigError, match=r"corpus\.path"):
        read_recipe(path, ["corpus.path=5"])


def test_the_name_of_a_data_set_is_no_path(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text('[corpus]\nformat = "huggingface"\npath = ["owner/name", "saved"]\n')
    (tmp_path / "saved").mkdir()
    assert read_recipe(path).corpus.path == ("owner/name", str(tmp_path / "saved"))
