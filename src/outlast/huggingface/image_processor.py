"""``preprocessor_config.json``: how pictures become what an image model sees, both ways.

In: the file of a Hugging Face folder, or the numbers of a recipe. Out: the numbers, or the file's content.
What our stream cannot do exactly is said by name, never taken for something else.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.storage.regular import read_whole

PREPROCESSOR_NAME = "preprocessor_config.json"

_SQUEEZED_FROM = 384
"""From this size on ConvNextImageProcessor squeezes a picture into the square and cuts nothing off."""
_BILINEAR = 2
_RESAMPLING = {
    0: "to the nearest pixel",
    1: "by Lanczos' filter",
    3: "bicubically",
    4: "by boxes",
    5: "by Hamming's",
}
_MOST_PIXELS = 16_384


@dataclass(frozen=True, kw_only=True)
class ImageProcessor:
    """How a picture is shown in evaluation.

    Attributes:
        image_size: pixels of the square that the model sees.
        shorter_side: what the shorter side is resized to before the middle is cut out; None: the picture is
            not resized, and what the square has more than the picture is black.
        mean, deviation: of each channel, from 0 to 1.
        differences: what the file asks for and our stream does otherwise, in words.
    """

    image_size: int
    shorter_side: int | None
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    differences: tuple[str, ...] = ()


def image_processor_config(
    *, image_size: int, shorter_side: int | None, mean: Sequence[float], deviation: Sequence[float]
) -> dict[str, Any]:
    """Return the content of ``preprocessor_config.json``: evaluation as our stream has it.

    It is a plain resize of the shorter side and the middle of it, at any size; the class of that name is in
    every version of the library, with and without torchvision.

    Args:
        image_size: pixels of the square that the model sees.
        shorter_side: what the shorter side is resized to before the middle is cut out; None: it is not
            resized, and what the square has more than the picture is black.
        mean, deviation: of each channel, from 0 to 1.
    """
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": shorter_side is not None,
        "size": {"shortest_edge": max(shorter_side or image_size, image_size)},
        "resample": _BILINEAR,
        "do_center_crop": True,
        "crop_size": {"height": image_size, "width": image_size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(deviation),
    }


def show_as_transformers(
    content: bytes, *, image_size: int, shorter_side: int | None
) -> NDArray[np.uint8] | None:
    """Return the pixels that transformers makes of a picture by ``image_processor_config``, before they are
    normalised: uint8 (image_size, image_size, 3); None where Pillow cannot read it.

    Source: transformers 5.23, ``PilBackend``. Its pipelines turn pictures upright, as here.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except Exception:  # the readers of a dozen formats raise whatever they meet
        return None
    if shorter_side is not None:
        side, long = max(shorter_side, image_size), max(image.size)
        longer = int(side * long / min(image.size))
        size = (longer, side) if image.width == long else (side, longer)
        image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = ((length - image_size) // 2 for length in image.size)
    # What lies outside of the picture is black.
    return np.asarray(image.crop((left, top, left + image_size, top + image_size)))


def read_image_processor(folder: Path) -> ImageProcessor | None:
    """Read the file of a folder, of transformers' processors for ResNet, ViT and the like.

    Returns:
        None where there is no such file.

    Raises:
        ConfigError: a file that cannot be read or says what no stream does; the key is named.
    """
    path = folder / PREPROCESSOR_NAME
    try:
        values = json.loads(read_whole(path))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise ConfigError(f"The image processor cannot be read: {error}", where=str(path)) from None
    if not isinstance(values, dict):
        raise ConfigError("The image processor is not a JSON object.", where=str(path))
    return _Reader(cast(dict[str, Any], values), str(path)).processor()


class _Reader:
    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def processor(self) -> ImageProcessor:
        differences: list[str] = []
        resample = self.values.get("resample", _BILINEAR)
        if resample != _BILINEAR:
            how = _RESAMPLING.get(resample, "otherwise") if isinstance(resample, int) else "otherwise"
            differences.append(f"it resizes {how}, we do so bilinearly")
        image_size, shorter_side = self._sizes(differences)
        factor = self.values.get("rescale_factor", 1 / 255)
        if (
            self.values.get("do_rescale", True) is not True
            or not _is_number(factor)
            or abs(factor * 255 - 1) > 1e-3
        ):
            raise self._wrong("rescale_factor", factor, "do_rescale, by 1/255")
        mean, deviation = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        if self.values.get("do_normalize", True):
            mean, deviation = self._channels("image_mean", 0.0), self._channels("image_std", 1e-6)
        return ImageProcessor(
            image_size=image_size,
            shorter_side=shorter_side,
            mean=mean,
            deviation=deviation,
            differences=tuple(differences),
        )

    def _sizes(self, differences: list[str]) -> tuple[int, int | None]:
        """Return the side of the square, and what the shorter side is resized to before it is cut out."""
        size = self.values.get("size")
        if self.values.get("do_resize", True) is not True:
            if not self.values.get("do_center_crop"):
                raise self._wrong("do_resize", self.values["do_resize"], "do_center_crop beside it")
            return self._crop_pixels(size), None
        edges = cast(dict[str, Any], size) if isinstance(size, dict) else {"shortest_edge": size}
        if "shortest_edge" not in edges:
            side = self._pixels("size", edges.get("height"))
            if edges.get("width") != side:
                raise self._wrong("size", size, "a square")
            if not self.values.get("do_center_crop"):
                differences.append("it squeezes a picture into the square, we cut off what sticks out")
            return self._crop(side)
        side = self._pixels("size", edges["shortest_edge"])
        share = self.values.get("crop_pct")
        if share is None:
            return self._crop(side)
        if not _is_number(share) or not 0 < share <= 1:
            raise self._wrong("crop_pct", share, "a share above 0, up to 1")
        if side >= _SQUEEZED_FROM:
            differences.append("it squeezes a picture into the square, we cut off what sticks out")
            return side, side
        return side, self._pixels("crop_pct", int(side / share + 1e-6))

    def _crop(self, side: int) -> tuple[int, int]:
        if not self.values.get("do_center_crop"):
            return side, side
        pixels = self._crop_pixels(side)
        if pixels > side:
            raise self._wrong("crop_size", pixels, f"at most the size, {side}")
        return pixels, side

    def _crop_pixels(self, otherwise: Any) -> int:
        crop = self.values.get("crop_size", otherwise)
        found = cast(dict[str, Any], crop) if isinstance(crop, dict) else {"height": crop, "width": crop}
        pixels = self._pixels("crop_size", found.get("height"))
        if found.get("width") != pixels:
            raise self._wrong("crop_size", crop, "a square")
        return pixels

    def _pixels(self, key: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= _MOST_PIXELS:
            raise self._wrong(key, value, f"pixels, from 1 to {_MOST_PIXELS}")
        return value

    def _channels(self, key: str, least: float) -> tuple[float, float, float]:
        value = self.values.get(key)
        numbers = cast(list[Any], value) if isinstance(value, list) else []
        if len(numbers) != 3 or not all(_is_number(number) and least <= number <= 1 for number in numbers):
            raise self._wrong(key, value, "three numbers, from 0 to 1")
        red, green, blue = (float(number) for number in numbers)
        return red, green, blue

    def _wrong(self, key: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{key} is {str(value)[:100]}.", where=self.where, expected=expected)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
