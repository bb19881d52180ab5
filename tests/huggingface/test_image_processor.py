"""preprocessor_config.json: what is written is read, other processors' keys, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import ConfigError
from outlast.huggingface.image_processor import (
    PREPROCESSOR_NAME,
    ImageProcessor,
    image_processor_config,
    read_image_processor,
)

OURS = image_processor_config(
    image_size=224, shorter_side=256, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.25, 0.3)
)


def read(folder: Path, **changes: Any) -> ImageProcessor:
    values = {key: value for key, value in {**OURS, **changes}.items() if value is not ...}
    (folder / PREPROCESSOR_NAME).write_text(json.dumps(values))
    found = read_image_processor(folder)
    assert found is not None
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read(tmp_path) == ImageProcessor(
        image_size=224, shorter_side=256, mean=(0.4, 0.5, 0.6), deviation=(0.2, 0.25, 0.3)
    )
    for side in range(
        32, 400
    ):  # the share is a float, and transformers takes the whole pixels of the quotient
        sizes = {"size": {"shortest_edge": 32}, "crop_pct": 32 / side}
        assert read(tmp_path, **sizes).shorter_side == side


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
    ],
)
def test_the_keys_of_other_processors(
    tmp_path: Path, changes: dict[str, Any], sizes: tuple[int, int], told: str
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
