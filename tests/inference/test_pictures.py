"""Loaded classifiers: one answer for a file, its bytes and its pixels, as evaluation has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError, OutlastError
from outlast.images.stream import open_images
from outlast.inference.load import load_model
from outlast.inference.pictures import ImageClassifier
from outlast.inference.text import Model
from support.images import encoded, jpeg, picture, write_images
from support.pretrained import resnet_folder, small_resnet

CLASSES = ("cat", "dog", "犬")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = small_resnet()
    kernel = np.random.default_rng(0).normal(size=model.params["classifier/kernel"].shape) / 50
    params = {**model.params, "classifier/kernel": kernel.astype(np.float32)}
    return resnet_folder(model._replace(params=params), tmp_path_factory.mktemp("models") / "resnet", CLASSES)


@pytest.fixture(scope="module")
def classifier(folder: Path) -> ImageClassifier:
    loaded = load_model(str(folder))
    assert isinstance(loaded, ImageClassifier)
    return loaded


def test_a_picture_is_a_path_or_bytes_or_pixels(classifier: ImageClassifier, tmp_path: Path) -> None:
    pixels = picture(3, 50, 41)
    content = encoded(pixels, "PNG")
    (tmp_path / "a.png").write_bytes(content)
    [alone] = classifier.predict(tmp_path / "a.png")
    assert [answer["label"] for answer in alone] == sorted(CLASSES, key=lambda name: -dict_of(alone)[name])
    assert sum(answer["score"] for answer in alone) == pytest.approx(1)
    together = classifier.predict([str(tmp_path / "a.png"), content, pixels] * 6, top=2)
    assert len(together) == 18
    for answers in together:
        assert [answer["label"] for answer in answers] == [answer["label"] for answer in alone][:2]
        np.testing.assert_allclose(
            [one["score"] for one in answers], [one["score"] for one in alone][:2], rtol=1e-5
        )


def dict_of(answers: Any) -> dict[str, float]:
    return {answer["label"]: answer["score"] for answer in answers}


def test_a_picture_is_shown_as_in_evaluation(classifier: ImageClassifier, tmp_path: Path) -> None:
    manifest = write_images(tmp_path, [3, 2])
    keys: dict[str, Any] = {"image_size": 32, "evaluation_resize": 36, "split": "validation"}
    [batch] = open_images(manifest, global_batch_size=2, evaluation=True, **keys)
    (tmp_path / "one.jpg").write_bytes(jpeg_of(3))
    shown = classifier.preprocess(tmp_path / "one.jpg")
    assert np.array_equal(shown, ((batch["images"][0] / np.float32(255) - 0.5) / 0.25).transpose(2, 0, 1))


def jpeg_of(number: int) -> bytes:
    return jpeg(number, width=40 + number % 7, height=30 + number % 5)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("absent.jpg", r"cannot be read[\s\S]*absent.jpg"),
        (b"no picture", r"cannot identify[\s\S]*in memory"),
        (np.zeros((4, 4), np.uint8), r"array of uint8, of shape \(4, 4\)"),
        (np.zeros((4, 4, 3), np.float32), "array of float32"),
    ],
)
def test_what_is_no_picture_is_refused(classifier: ImageClassifier, picture: Any, message: str) -> None:
    with pytest.raises(OutlastError, match=message):
        classifier.predict(picture)


def test_arrays_and_numbers_that_cannot_be_right_are_refused(classifier: ImageClassifier) -> None:
    with pytest.raises(OutlastError, match=r"shape \(2, 32, 32, 3\)[\s\S]*\(rows, 3, height, width\)"):
        classifier(np.zeros((2, 32, 32, 3), np.float32))
    with pytest.raises(ConfigError, match="Cannot give 0 classes"):
        classifier.predict(picture(1), top=0)


def test_a_folder_that_does_not_say_how_pictures_are_shown_takes_arrays(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.name != "preprocessor_config.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    loaded = load_model(tmp_path)
    assert not isinstance(loaded, Model)
    with pytest.raises(OutlastError, match=r"how pictures are shown[\s\S]*preprocessor_config.json"):
        loaded.predict(picture(1))
    assert loaded(np.zeros((3, 3, 40, 40), np.float32))["logits"].shape == (3, 3)


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_transformers_answers_alike(folder: Path, classifier: ImageClassifier) -> None:
    """The shorter side is the one that is resized to, so no filter of a resize comes in."""
    import torch
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    processor: Any = AutoImageProcessor.from_pretrained(folder)
    theirs: Any = AutoModelForImageClassification.from_pretrained(folder).eval()
    pixels = picture(5, 48, 36)
    inputs = processor(Image.fromarray(pixels), return_tensors="pt")
    np.testing.assert_allclose(classifier.preprocess(pixels), inputs["pixel_values"][0].numpy(), atol=1e-5)
    with torch.no_grad():
        logits = theirs(**inputs).logits
    found = classifier(inputs["pixel_values"].numpy())["logits"]
    np.testing.assert_allclose(found, logits.numpy(), rtol=1e-4, atol=1e-4 * float(logits.abs().max()))
    [answers] = classifier.predict(pixels)
    expected = dict(zip(CLASSES, logits.softmax(-1)[0].tolist(), strict=True))
    assert dict_of(answers) == pytest.approx(expected, rel=1e-3)
