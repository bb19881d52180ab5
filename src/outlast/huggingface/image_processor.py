"""``preprocessor_config.json``: how pictures become what an image model sees, both ways.

In: the file of a Hugging Face folder, or the numbers of a recipe. Out: the numbers, or the file's content.
What our stream cannot do exactly is said by name, never taken for something else.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from outlast.errors import ConfigError

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
        shorter_side: what the shorter side is resized to before the middle is cut out.
        mean, deviation: of each channel, from 0 to 1.
        differences: what the file asks for and our stream does otherwise, in words.
    """

    image_size: int
    shorter_side: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    differences: tuple[str, ...] = ()


def image_processor_config(
    *, image_size: int, shorter_side: int, mean: Sequence[float], deviation: Sequence[float]
) -> dict[str, Any]:
    """Return the content of ``preprocessor_config.json``: evaluation as our stream has it.

    Args:
        image_size: pixels of the square that the model sees.
        shorter_side: what the shorter side is resized to before the middle is cut out.
        mean, deviation: of each channel, from 0 to 1.
    """
    return {
        "image_processor_type": "ConvNextImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": image_size},
        "crop_pct": image_size / shorter_side,
        "resample": _BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(deviation),
    }


def read_image_processor(folder: Path) -> ImageProcessor | None:
    """Read the file of a folder, of transformers' processors for ResNet, ViT and the like.

    Returns:
        None where there is no such file.

    Raises:
        ConfigError: a file that cannot be read or says what no stream does; the key is named.
    """
    path = folder / PREPROCESSOR_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
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

    def _sizes(self, differences: list[str]) -> tuple[int, int]:
        """Return the side of the square, and what the shorter side is resized to before it is cut out."""
        size = self.values.get("size")
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
        crop = self.values.get("crop_size", side)
        found = cast(dict[str, Any], crop).get("height") if isinstance(crop, dict) else crop
        pixels = self._pixels("crop_size", found)
        if pixels > side:
            raise self._wrong("crop_size", crop, f"at most the size, {side}")
        return pixels, side

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
