"""A ResNet on images by the real command: killed and gone on with, evaluated, exported."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from support.command import Command, kill_when
from support.images import write_images

RECIPE = """
[stream]
packing = "images"
global_batch_size = 4
[stream.images]
image_size = 32
[model]
architecture = "resnet"
preset = "resnet18"
depths = [1, 2]
widths = [8, 16]
[optimizer]
name = "sgd"
learning_rate = 0.05
clip_norm = inf
schedule = "cosine"
[training]
total_steps = 300
evaluation_interval_steps = 150
log_interval_steps = 4
[checkpoint]
interval_steps = 30
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that names its data set: 24 pictures to train on, 6 held out, each of a class of its own."""
    folder = tmp_path_factory.mktemp("images")
    manifest = write_images(folder, (12, 12, 6))
    path = folder / "RUN.toml"
    path.write_text(RECIPE.replace("[stream]", f'[stream]\nmanifest = "{manifest}"', 1))
    return path


def train(command: Command, recipe: Path, run_dir: Path) -> str:
    return command.run("train", recipe, "--run-dir", run_dir, *command.overrides)


def evaluate(command: Command, run_dir: Path) -> dict[str, float]:
    return json.loads(command.run("evaluate", run_dir, "--json", *command.overrides).splitlines()[-1])


def test_killed_a_run_ends_with_the_same_parameters_and_statistics(
    command: Command, recipe: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(command, recipe, whole)
    for commits in (1, 2):
        process = command.start("train", recipe, "--run-dir", broken, *command.overrides)
        kill_when(process, lambda: len(list(broken.glob("commits/*.json"))) >= commits)  # noqa: B023
    assert "resuming from step" in train(command, recipe, broken)
    assert command.digest(broken) == command.digest(whole)
    found = evaluate(command, whole)
    assert found["num_examples"] == 6
    assert "perplexity" not in found
    assert evaluate(command, broken) == found, "the running statistics, too, are the same"

    model = tmp_path / "model"
    command.run("export", whole, model)
    config = json.loads((model / "config.json").read_text())
    assert (config["depths"], config["hidden_sizes"], len(config["id2label"])) == ([1, 2], [8, 16], 30)
    shown = json.loads((model / "preprocessor_config.json").read_text())
    assert (shown["size"], shown["crop_size"]["height"]) == ({"shortest_edge": 37}, 32)
    tensors = load_file(model / "model.safetensors")
    name = "resnet.encoder.stages.1.layers.1.layer.1.normalization.running_var"
    assert (tensors[name] != 1).all(), "they have moved"


def test_a_recipe_and_its_data_must_be_of_one_kind(
    command: Command, recipe: Path, manifest: Path, tmp_path: Path
) -> None:
    text = ("--set", f"stream.manifest={manifest}")
    output = command.run("train", recipe, "--run-dir", tmp_path / "a", *text, expect=1)
    assert "The data set holds no images." in output
    output = command.train(recipe.parent / "manifest.json", tmp_path / "b", expect=1)
    assert "The data set holds 'images', not text." in output
