"""The recipes of ResNet-50: each trains by the real command, a small model here, as it is in the long run."""

import json
import shutil
from pathlib import Path

import pytest

from outlast.run.directory import read_recipe_tables
from outlast.storage import LocalStore
from support.command_line import Run, settings
from support.images import write_images

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = ("resnet50_imagenet_step", "resnet50_imagenet_cosine")
PHOTOGRAPHS = ("Landscape_3", "Landscape_8", "Portrait_2", "Portrait_8")


def losses(run_dir: Path) -> list[dict[str, float]]:
    lines = [path.read_text().splitlines() for path in sorted((run_dir / "metrics").glob("*.jsonl"))]
    return [json.loads(line) for part in lines for line in part]


@pytest.mark.parametrize("name", NAMES)
def test_a_small_model_trains_by_the_recipe(name: str, tmp_path: Path, outlast: Run) -> None:
    """Twelve pictures in batches of four: an epoch has three steps, the run four."""
    manifest = write_images(tmp_path / "images", (6, 6, 4))
    small = settings(
        f"stream.manifest={manifest}",
        "stream.global_batch_size=4",
        "stream.images.image_size=32",
        "stream.images.evaluation_resize=36",
        "model.depths=[1, 1]",
        "model.widths=[8, 16]",
        "training.epochs=1.4",
        "optimizer.warmup_epochs=0.7",
        "training.log_interval_steps=1",
        f"training.compilation_cache_dir={tmp_path}/compiled",
    )
    done = outlast("train", RECIPES / f"{name}.toml", "--run-dir", tmp_path / "run", *small)
    assert done.code == 0, done
    assert "new run of 4 steps" in done.err
    rates = [line["learning_rate"] for line in losses(tmp_path / "run")]
    highest = {"resnet50_imagenet_step": 0.5, "resnet50_imagenet_cosine": 0.4}[name]
    assert rates[:2] == pytest.approx([highest / 2, highest])
    described = read_recipe_tables(LocalStore(tmp_path / "run"))
    assert (described["training"]["total_steps"], described["training"]["epochs"]) == (4, None)
    assert described["optimizer"]["warmup_steps"] == 2
    # The same line goes on: here, with nothing left to do.
    again = outlast("train", RECIPES / f"{name}.toml", "--run-dir", tmp_path / "run", *small)
    assert again.code == 0, again
    assert "resuming from step 4 of 4" in again.err


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_resnet50_trains_on_photographs_by_the_recipe(
    name: str, test_data: Path, tmp_path: Path, outlast: Run
) -> None:
    """The whole model at 224 pixels; a batch of two, and a rate that suits it."""
    for photograph in PHOTOGRAPHS:
        source = test_data / "awkward" / "images" / f"exif-orientation-examples__{photograph}.jpg"
        target = tmp_path / "photographs" / photograph.partition("_")[0] / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    assert outlast("shards", "images", tmp_path / "photographs", "--out", tmp_path / "data").code == 0
    few = settings(
        f"stream.manifest={tmp_path}/data/manifest.json",
        "stream.global_batch_size=2",
        "training.epochs=1.5",
        "training.log_interval_steps=1",
        "training.compute_dtype=float32",
        "optimizer.learning_rate=0.001",
    )
    done = outlast("train", RECIPES / f"{name}.toml", "--run-dir", tmp_path / "run", *few)
    assert done.code == 0, done
    assert "new run of 3 steps, 23.5M parameters" in done.err
    assert [line["step"] for line in losses(tmp_path / "run")] == [1, 2, 3]
