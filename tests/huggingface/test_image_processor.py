"""preprocessor_config.json: what is written is read, other processors' keys, and what is refused."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.huggingface.image_processor import (
    PREPROCESSOR_NAME,
    ImageProcessor,
    image_processor_config,
    read_image_processor,
    show_as_transformers,
)
from outlast.images.config import ImagesConfig
from outlast.images.crops import evaluation_crop
from outlast.images.decode import open_picture, resize_into

OURS = image_processor_config(
    image_size=224, shorter_side=256, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.25, 0.3)
)
CONVNEXT = {
    **{key: value for key, value in OURS.items() if key not in ("do_center_crop", "crop_size")},
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": 224},
    "crop_pct": 0.875,
}
"""As the hub's ResNets have it, and early exports of ours."""


def read(folder: Path, base: dict[str, Any] = CONVNEXT, **changes: Any) -> ImageProcessor:
    values = {key: value for key, value in {**base, **changes}.items() if value is not ...}
    (folder / PREPROCESSOR_NAME).write_text(json.dumps(values))
    found = read_image_processor(folder)
    assert found is not None
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    expected = ImageProcessor(
        image_size=224, shorter_side=256, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.25, 0.3)
    )
    assert read(tmp_path) == read(tmp_path, OURS) == expected
    for size, side, written in ((384, 439, 439), (512, 512, 512), (224, 200, 224), (32, None, None)):
        ours = image_processor_config(
            image_size=size, shorter_side=side, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.25, 0.3)
        )
        found = read(tmp_path, ours)
        assert (found.image_size, found.shorter_side, found.differences) == (size, written, ())
    for side in range(
        32, 400
    ):  # the share is a float, and transformers takes the whole pixels of the quotient
        sizes: dict[str, Any] = {"size": {"shortest_edge": 32}, "crop_pct": 32 / side}
        assert read(tmp_path, **sizes).shorter_side == side


CENTER = {
    "crop_pct": ...,
    "do_center_crop": True,
    "crop_size": {"height": 200, "width": 200},
}


def test_without_a_file_there_is_none(tmp_path: Path) -> None:
    assert read_image_processor(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "sizes", "told"),
    [
        ({"size": 224, "crop_pct": 0.875}, (224, 256), ""),
        (
            {"crop_pct": ..., "do_center_crop": True, "size": {"shortest_edge": 256}, "crop_size": 224},
            (224, 256),
            "",
        ),
        (
            {"crop_pct": ..., "do_center_crop": True, "crop_size": {"height": 200, "width": 200}},
            (200, 224),
            "",
        ),
        ({"crop_pct": ..., "size": {"height": 96, "width": 96}}, (96, 96), "squeezes"),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.9}, (384, 384), "squeezes"),
        ({"resample": 3}, (224, 256), "bicubically"),
        ({**CENTER, "do_resize": False}, (200, None), ""),
    ],
)
def test_the_keys_of_other_processors(
    tmp_path: Path, changes: dict[str, Any], sizes: tuple[int, int | None], told: str
) -> None:
    found = read(tmp_path, **changes)
    assert (found.image_size, found.shorter_side) == sizes
    assert told in " ".join(found.differences)
    assert bool(told) == bool(found.differences)


def test_pixels_that_are_not_normalised(tmp_path: Path) -> None:
    found = read(tmp_path, do_normalize=False)
    assert (found.mean, found.deviation) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", None),
        ("size", {"shortest_edge": 0}),
        ("size", {"shortest_edge": 10**9}),
        ("size", {"height": 224, "width": 200}),
        ("crop_pct", 0),
        ("crop_pct", True),
        ("image_mean", [0.5]),
        ("image_mean", ["0.5", 0.5, 0.5]),
        ("image_std", [0.0, 0.5, 0.5]),
        ("rescale_factor", 1),
        ("do_resize", False),
    ],
)
def test_what_no_stream_does_is_named(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        read(tmp_path, **{key: value})
    assert PREPROCESSOR_NAME in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / PREPROCESSOR_NAME).write_text(content)
    with pytest.raises(ConfigError, match="image processor"):
        read_image_processor(tmp_path)


ORIENTED = ("Landscape_3", "Landscape_8", "Portrait_2", "Portrait_8")


def photographs(test_data: Path) -> list[bytes]:
    """Real pictures: of 32 pixels, and photographs that their Exif orientation turns."""
    with tarfile.open(test_data / "cifar10/cifar10-test-000000.tar") as tar:
        small = [tar.extractfile(member).read() for member in tar.getmembers()[:8:2]]  # type: ignore[union-attr]
    files = [path for name in ORIENTED for path in (test_data / "awkward/images").rglob(f"*{name}.jpg")]
    return small + [path.read_bytes() for path in files]


@pytest.mark.peers
@pytest.mark.parametrize("size", [32, 96, 224, 384, 512])
@pytest.mark.parametrize("resize", [None, 0])
def test_what_is_measured_is_what_transformers_shows(
    test_data: Path, tmp_path: Path, size: int, resize: int | None
) -> None:
    """Where nothing is resized, it is our evaluation to the last bit, too."""
    from PIL import Image, ImageOps
    from transformers import AutoImageProcessor

    config = ImagesConfig(image_size=size, evaluation_resize=resize)
    written = image_processor_config(
        image_size=size, shorter_side=config.resize, mean=(0.0,) * 3, deviation=(1.0,) * 3
    )
    (tmp_path / PREPROCESSOR_NAME).write_text(json.dumps(written))
    processor: Any = AutoImageProcessor.from_pretrained(tmp_path)
    pictures = photographs(test_data)
    assert len(pictures) >= 8
    for content in pictures:
        with Image.open(io.BytesIO(content)) as opened:
            image = ImageOps.exif_transpose(opened)
            theirs = processor(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0) * 255
        shown = show_as_transformers(content, image_size=size, shorter_side=config.resize)
        assert shown is not None
        np.testing.assert_allclose(shown, theirs, rtol=0, atol=1e-3)
        ours = evaluated(content, config)
        if resize == 0:
            np.testing.assert_array_equal(shown, ours)
        else:
            assert np.abs(shown.astype(int) - ours).mean() < 25


def evaluated(content: bytes, config: ImagesConfig) -> Any:
    """Return a picture as our evaluation shows it."""
    picture = open_picture(memoryview(content), max_pixels=2**26)
    crop = evaluation_crop(picture.width, picture.height, config)
    image = np.zeros((config.image_size, config.image_size, 3), np.uint8)
    if not crop.is_padded:
        resize_into(picture.region(crop.box, config.image_size, config.image_size), image)
        return image
    region = picture.region(crop.box, crop.box.width, crop.box.height)
    image[crop.top : crop.top + crop.box.height, crop.left : crop.left + crop.box.width] = region
    return image
