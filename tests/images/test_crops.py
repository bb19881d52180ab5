"""Crops are pure functions of numbers; their distribution is the paper's."""

from typing import Any

import numpy as np
import pytest

from outlast.errors import ConfigError
from outlast.images.config import ImagesConfig, ImageStreamConfig
from outlast.images.crops import Crop, draw_numbers, evaluation_crop, training_crop
from outlast.images.decode import Box
from outlast.prng import derive_key

NUMBERS = draw_numbers(derive_key(3, "crops"), 0, 50, 0, 200)


def crops(config: ImagesConfig, width: int, height: int) -> list[Crop]:
    return [training_crop(width, height, config, row) for row in NUMBERS.tolist()]


def test_crops_never_change() -> None:
    config = ImagesConfig()
    found = [training_crop(500, 375, config, row) for row in NUMBERS[:4].tolist()]
    assert found == GOLDEN, found


GOLDEN = [
    Crop(Box(362, 100, 133, 168), is_mirrored=True),
    Crop(Box(13, 71, 309, 279), is_mirrored=True),
    Crop(Box(87, 73, 346, 299), is_mirrored=False),
    Crop(Box(142, 41, 276, 292), is_mirrored=True),
]


def test_numbers_depend_on_step_and_row_alone() -> None:
    key = derive_key(9, "crops")
    together = draw_numbers(key, 5, 3, 0, 8).reshape(3, 8, -1)
    for step in range(3):
        for first in (0, 4):
            alone = draw_numbers(key, 5 + step, 1, first, 4)
            assert np.array_equal(together[step, first : first + 4], alone)
    assert len(np.unique(together)) == together.size
    assert not np.array_equal(together, draw_numbers(derive_key(8, "crops"), 5, 3, 0, 8).reshape(3, 8, -1))


def test_random_resized_crops_have_the_area_and_the_shape_of_the_paper() -> None:
    found = crops(ImagesConfig(), 1000, 1000)
    areas = np.array([crop.box.width * crop.box.height for crop in found]) / 1e6
    shapes = np.log([crop.box.width / crop.box.height for crop in found])
    assert 0.079 < areas.min() < areas.max() <= 1
    # Large areas of a long shape do not fit and are drawn anew, so the mean is below that of the range.
    assert 0.46 < areas.mean() < 0.5
    assert np.abs(shapes).max() < np.log(4 / 3) + 0.01
    assert abs(shapes.mean()) < 0.01
    assert abs(np.mean([crop.is_mirrored for crop in found]) - 0.5) < 0.02
    for crop in found:
        box = crop.box
        assert 0 <= box.left <= 1000 - box.width
        assert 0 <= box.top <= 1000 - box.height
    centers = np.mean([(c.box.left + c.box.width / 2, c.box.top + c.box.height / 2) for c in found], axis=0)
    assert np.abs(centers - 500).max() < 10


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 999), (999, 1), (3, 2000), (224, 224)])
def test_every_size_has_a_crop(width: int, height: int) -> None:
    for config in (ImagesConfig(), ImagesConfig(image_size=32, crop="padded"), ImagesConfig(crop="center")):
        for crop in (*crops(config, width, height)[:200], evaluation_crop(width, height, config)):
            box = crop.box
            assert box.width >= 1
            assert box.height >= 1
            assert 0 <= box.left <= width - box.width
            assert 0 <= box.top <= height - box.height


def test_padded_crops_reach_every_offset() -> None:
    config = ImagesConfig(image_size=32, crop="padded", padding=4, flip=False)
    found = {(c.box.left - c.left, c.box.top - c.top) for c in crops(config, 32, 32)}
    assert found == {(x, y) for x in range(-4, 5) for y in range(-4, 5)}
    assert not any(crop.is_mirrored for crop in crops(config, 32, 32))


def test_evaluation_shows_the_middle() -> None:
    assert evaluation_crop(500, 375, ImagesConfig()).box == Box(86, 23, 328, 328)
    assert evaluation_crop(375, 500, ImagesConfig()).box == Box(23, 86, 328, 328)
    unchanged = evaluation_crop(32, 32, ImagesConfig(image_size=32, crop="padded"))
    assert unchanged == Crop(Box(0, 0, 32, 32), is_mirrored=False, is_padded=True)
    small = evaluation_crop(20, 32, ImagesConfig(image_size=32, evaluation_resize=0))
    assert (small.box, small.left, small.top) == (Box(0, 0, 20, 32), 6, 0)


def test_the_table_refuses_what_does_not_belong() -> None:
    stream_fields: list[tuple[dict[str, Any], str]] = [
        ({"images": ImagesConfig(flip=False)}, "stream.images belongs to packing"),
        ({"packing": "images", "sequence_length": 64}, "stream.sequence_length belongs to text"),
        ({"packing": "images", "special_tokens": False}, "stream.special_tokens belongs to text"),
    ]
    for fields, message in stream_fields:
        with pytest.raises(ValueError, match=message):
            ImageStreamConfig(**fields)
    image_fields: list[tuple[dict[str, Any], str]] = [
        ({"scale": (0.5, 0.1)}, "scale must rise"),
        ({"aspect_ratio": (2.0, 1.0)}, "aspect_ratio must rise"),
        ({"scale": (0.0, 1.0)}, "scale must rise"),
    ]
    for fields, message in image_fields:
        with pytest.raises(ValueError, match=message):
            ImagesConfig(**fields)


def test_a_recipe_names_the_key() -> None:
    from outlast.recipe import make_recipe

    good = {"packing": "images", "images": {"image_size": 32, "crop": "padded"}}
    assert make_recipe({"stream": good}, where="x").stream.images == ImagesConfig(
        image_size=32, crop="padded"
    )
    with pytest.raises(ConfigError, match=r"stream\.images\.image_sise: unknown key.*image_size"):
        make_recipe({"stream": {"packing": "images", "images": {"image_sise": 32}}}, where="x")
    with pytest.raises(ConfigError, match=r"stream\.images belongs to packing"):
        make_recipe({"stream": {"images": {"image_size": 32}}}, where="x")
