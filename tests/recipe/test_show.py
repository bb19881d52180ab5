"""A recipe as resolved: every value, and where it is from."""

import json
from pathlib import Path

import pytest

from outlast.cli.main import run_command_line
from outlast.recipe.show import show_recipe


def test_each_value_says_where_it_is_from(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text(
        '[corpus]\npath = "texts"\n[model]\npreset = "tiny"\n'
        "[[training.phases]]\nsteps = 5\n[[training.phases]]\nsteps = 7\n"
    )
    rows = {row.key: row[1:] for row in show_recipe(path, ["model.hidden_size=64", "training.seed=3"])}
    assert rows["corpus.path"] == (str(tmp_path / "texts"), "file")
    assert rows["model.preset"] == ("tiny", "file")
    assert rows["model.hidden_size"] == (64, "--set model.hidden_size=64")
    assert rows["model.num_layers"] == (2, "derived")
    assert rows["training.phases.1.steps"] == (7, "file")
    assert rows["training.total_steps"] == (12, "derived")
    assert rows["objective.mask_probability"] == (0.15, "derived")
    assert rows["objective.max_predictions"] == (20, "derived")
    assert rows["training.seed"] == (3, "--set training.seed=3")
    assert rows["stream.sequence_length"] == (128, "default")
    assert rows["model.vocab_size"] == (None, "default")
    assert "stream.images.image_size" not in rows


def test_images_have_their_own_keys(tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text('[stream]\npacking = "images"\n')
    rows = {row.key: row[1:] for row in show_recipe(path)}
    assert rows["model.depths"] == ([3, 4, 6, 3], "derived")
    assert rows["stream.images.evaluation_resize"] == (256, "derived")
    assert "stream.sequence_length" not in rows


def test_the_verb_prints_rows_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "RUN.toml"
    path.touch()
    assert run_command_line(["recipe", "show", str(path), "--set", "training.seed=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["key", "value", "from"]
    assert any(line.split() == ["training.seed", "9", "--set", "training.seed=9"] for line in lines)
    assert run_command_line(["recipe", "show", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["training.seed"] == {"value": 0, "from": "default"}
    path.write_text("[training]\nsede = 1\n")
    assert run_command_line(["recipe", "show", str(path)]) == 2
    assert "did you mean 'seed'?" in capsys.readouterr().err
