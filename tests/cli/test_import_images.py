"""From a Hugging Face ResNet over further training and back: ``import``, ``evaluate``,
``train --initialize-from``, ``export``.
"""

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from outlast.images.manifest import read_image_manifest, write_image_manifest
from outlast.images.pack import PackConfig, pack_images
from support.command_line import Run, settings
from support.images import jpeg, write_images
from support.pretrained import resnet_folder, small_resnet

CLASSES = [f"class {number}" for number in range(10)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ResNet of ten classes with names."""
    return resnet_folder(small_resnet(10), tmp_path_factory.mktemp("theirs") / "model", CLASSES)


@pytest.fixture
def recipe(folder: Path, tmp_path: Path, outlast: Run) -> Path:
    """What the import writes, with a run of one step of next to no learning rate on ten pictures."""
    done = outlast("import", folder, tmp_path / "imported")
    assert done.code == 0, done
    manifest = write_images(tmp_path / "images", (6, 4))
    path = tmp_path / "RUN.toml"
    tables = (tmp_path / "imported" / "recipe.toml").read_text()
    named = tables.replace("[stream]\n", f'[stream]\nmanifest = "{manifest}"\nglobal_batch_size = 2\n', 1)
    run = """
[optimizer]
name = "sgd"
learning_rate = 1e-12
[training]
total_steps = 1
"""
    path.write_text(named + run + f'compilation_cache_dir = "{tmp_path}/compiled"\n')
    return path


def train(outlast: Run, recipe: Path, run_dir: Path, *overrides: str) -> Any:
    start = ("--initialize-from", recipe.parent / "imported")
    return outlast("train", recipe, "--run-dir", run_dir, *start, *settings(*overrides))


def evaluation(outlast: Run, run_dir: Path, *overrides: str) -> dict[str, float]:
    done = outlast("evaluate", run_dir, "--json", *settings(*overrides))
    assert done.code == 0, done
    return json.loads(done.out)


def test_import_and_export_give_the_same_tensors_classes_and_pictures(
    test_data: Path, tmp_path: Path, outlast: Run
) -> None:
    folder = Path(shutil.copytree(test_data / "parity" / "resnet", tmp_path / "theirs"))
    config = json.loads((folder / "config.json").read_text())
    config["id2label"] = dict(enumerate(CLASSES))
    (folder / "config.json").write_text(json.dumps(config))
    told = outlast("import", folder, tmp_path / "imported")
    assert told.code == 0, told
    assert "there is no preprocessor_config.json: 224 pixels and ImageNet's mean" in told.err
    exported = outlast("export", tmp_path / "imported", tmp_path / "model")
    assert exported.code == 0, exported
    assert "were not compared" in exported.err
    assert "was not measured" in (tmp_path / "model" / "README.md").read_text()
    theirs, ours = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "model"))
    assert theirs.keys() == ours.keys()
    # transformers counts batches there; nobody reads the count, and we have none.
    differing = [name for name in theirs if theirs[name].tobytes() != ours[name].tobytes()]
    assert [name for name in differing if not name.endswith("num_batches_tracked")] == []
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    for key in ("depths", "hidden_sizes", "embedding_size", "layer_type", "hidden_act"):
        assert written[key] == config[key]
    assert list(written["id2label"].values()) == CLASSES
    table = tomllib.loads((tmp_path / "imported" / "recipe.toml").read_text())["model"]
    assert (table["widths"], table["stem_width"]) == ([32, 48, 64, 96], 16)


def test_a_run_starts_from_an_import_with_its_statistics_and_its_pictures(
    folder: Path, recipe: Path, tmp_path: Path, outlast: Run
) -> None:
    """A step of next to no rate leaves the parameters as the import has them, and moves the statistics."""
    tables = tomllib.loads(recipe.read_text())
    assert tables["stream"]["images"] == {"image_size": 32, "evaluation_resize": 36}
    assert tables["objective"]["pixel_deviation"] == [0.25, 0.25, 0.25]
    done = train(outlast, recipe, tmp_path / "run")
    assert done.code == 0, done
    assert "initialised by training.seed" not in done.err
    data = f"stream.manifest={tables['stream']['manifest']}"
    assert evaluation(outlast, tmp_path / "imported", data)["num_examples"] == 4
    told = outlast("export", tmp_path / "run", tmp_path / "model").err
    assert "beside those of our evaluation, 4 held-out pictures: apart by" in told
    assert "On 4 held-out pictures its pixels" in (tmp_path / "model" / "README.md").read_text()
    theirs, ours = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "model"))
    for name, value in theirs.items():
        if name.endswith("running_mean"):
            # The batch has a tenth of it: nine tenths are the import's.
            assert (ours[name] != value).any(), name
        elif not name.endswith(("running_var", "num_batches_tracked")):
            np.testing.assert_allclose(ours[name], value, rtol=1e-6, err_msg=name)
    assert (folder / "preprocessor_config.json").read_bytes() == (
        tmp_path / "model" / "preprocessor_config.json"
    ).read_bytes()


def test_a_classifier_of_other_classes_is_made_anew_and_said(
    recipe: Path, tmp_path: Path, outlast: Run
) -> None:
    manifest = write_images(tmp_path / "more", (8, 4))  # twelve classes
    data = f"stream.manifest={manifest}"
    done = train(outlast, recipe, tmp_path / "run", data)
    assert done.code == 0, done
    assert "its classifier has 10 classes, the data 12: initialised by training.seed" in done.err
    outlast("export", tmp_path / "run", tmp_path / "model")
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert found["classifier.1.weight"].shape == (12, 32)
    assert np.abs(found["classifier.1.weight"]).max() < 0.1, "drawn with a deviation of 0.01"
    refused = outlast("evaluate", tmp_path / "imported", *settings(data))
    refused.refused(2, "The model has 10 classes, the data set 12", "--initialize-from")


def test_classes_of_other_names_are_said(recipe: Path, tmp_path: Path, outlast: Run) -> None:
    for name in ("class", "kind"):
        for number in range(10):
            path = tmp_path / name / f"{name} {number}" / "x.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(jpeg(number))
        sources = {split: str(tmp_path / name) for split in ("train", "validation")}
        url = pack_images(sources, str(tmp_path / f"{name} set"), PackConfig(), num_processes=1)
        done = outlast("evaluate", tmp_path / "imported", *settings(f"stream.manifest={url}"))
        assert done.code == 0, done
        assert ("other names: 0 is 'class 0' there and 'kind 0' here" in done.err) == (name == "kind")


def test_a_manifest_of_too_many_classes_is_refused_before_anything_is_allocated(
    recipe: Path, tmp_path: Path, outlast: Run
) -> None:
    manifest, store = read_image_manifest(str(tmp_path / "images" / "manifest.json"))
    write_image_manifest(store, replace(manifest, num_classes=10**9))
    refused = train(outlast, recipe, tmp_path / "run")
    refused.refused(1, "would make 1000000000 classes of 10 images", "manifest.json")
    assert not (tmp_path / "run").exists()


def test_what_does_not_fit_is_refused_with_the_way_out(
    folder: Path, recipe: Path, tmp_path: Path, outlast: Run
) -> None:
    done = train(outlast, recipe, tmp_path / "run", "model.widths=[16, 48]")
    done.refused(2, "stages/1", "recipe.toml")
    assert "tokenizer" not in done.err
    again = outlast("import", folder, tmp_path / "again", "--tokenizer", folder)
    again.refused(2, "A model of images has no tokenizer")
    outlast("import", folder, tmp_path / "imported").refused(2, "is taken")


@pytest.mark.peers
def test_what_transformers_saved_comes_back_and_answers_alike(tmp_path: Path, outlast: Run) -> None:
    import torch
    from transformers import ConvNextImageProcessor, ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = {
        "embedding_size": 16,
        "hidden_sizes": [32, 48],
        "depths": [2, 1],
        "num_labels": 4,
    }
    config = ResNetConfig(layer_type="bottleneck", **sizes)
    theirs: Any = ResNetForImageClassification(config).train()
    theirs(torch.randn(4, 3, 64, 64))  # moves the running statistics
    theirs.eval().save_pretrained(tmp_path / "theirs")
    ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.8, resample=3).save_pretrained(
        tmp_path / "theirs"
    )
    told = outlast("import", tmp_path / "theirs", tmp_path / "imported")
    assert told.code == 0, told
    assert "it resizes bicubically, we do so bilinearly" in told.err
    tables = tomllib.loads((tmp_path / "imported" / "recipe.toml").read_text())
    assert tables["stream"]["images"] == {"image_size": 64, "evaluation_resize": 80}
    assert outlast("export", tmp_path / "imported", tmp_path / "model").code == 0
    ours: Any = ResNetForImageClassification.from_pretrained(tmp_path / "model").eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(images).logits, theirs(images).logits)
