"""Which part of a picture an example shows: pure functions of its size and of random numbers.

In: width and height of a picture and the numbers of its row. Out: a ``Crop``. The numbers of a row come from
(seed, step, global row) alone, so neither processes nor threads nor a resume can change a crop. It is all
computed with integers, or in single operations that IEEE 754 rounds alike everywhere.
"""

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.images.config import ImagesConfig
from outlast.images.decode import Box
from outlast.prng import bits_at, mix64

_ATTEMPTS = 10
NUMBERS_PER_ROW = 2 * _ATTEMPTS + 3
_ROWS_PER_STEP = 2**24
"""More than any batch has."""
_RATIOS = 1024


class Crop(NamedTuple):
    """The part of a picture that is shown, and whether it is mirrored.

    Attributes:
        box: the region, resized to the size of an example; where ``is_padded``, laid at its place instead.
        is_mirrored: left and right are exchanged afterwards.
        left, top: where in the example the region lies, of a padded crop.
    """

    box: Box
    is_mirrored: bool
    is_padded: bool = False
    left: int = 0
    top: int = 0


def draw_numbers(key: int, step: int, num_steps: int, first_row: int, num_rows: int) -> NDArray[np.uint64]:
    """Return random numbers for rows of consecutive steps: uint64 (num_steps * num_rows, NUMBERS_PER_ROW)."""
    steps = np.arange(step, step + num_steps, dtype=np.int64)[:, None]
    rows = np.arange(first_row, first_row + num_rows, dtype=np.int64)
    streams = bits_at((steps * _ROWS_PER_STEP + rows).reshape(-1), key)
    return mix64(streams[:, None] + np.arange(NUMBERS_PER_ROW, dtype=np.uint64))


def training_crop(width: int, height: int, config: ImagesConfig, numbers: list[int]) -> Crop:
    """Return the crop of a training example.

    Args:
        width, height: of the picture.
        config: of the stream.
        numbers: of its row, from 0 to 2**64 - 1.
    """
    is_mirrored = config.flip and numbers[-1] >> 63 == 1
    if config.crop == "random_resized":
        return Crop(_random_resized(width, height, config, numbers), is_mirrored)
    if config.crop == "padded":
        return _padded(width, height, config, numbers)._replace(is_mirrored=is_mirrored)
    return evaluation_crop(width, height, config)._replace(is_mirrored=is_mirrored)


def evaluation_crop(width: int, height: int, config: ImagesConfig) -> Crop:
    """Return the crop of an evaluated example: as if the picture were resized to a shorter side of
    ``evaluation_resize`` and its middle cut out; the two are done in one resize.
    """
    size, resize = config.image_size, config.resize
    if resize is None:
        return _placed(width, height, size, (width - size) // 2, (height - size) // 2)
    side = max(1, min(width, height) * min(size, resize) // resize)
    return Crop(Box((width - side) // 2, (height - side) // 2, side, side), is_mirrored=False)


def _random_resized(width: int, height: int, config: ImagesConfig, numbers: list[int]) -> Box:
    """Return a region of random area and shape.

    Source: Szegedy et al. (2015), "Going deeper with convolutions", section 6; as in torchvision's
    RandomResizedCrop: ten attempts, then the middle. Difference: the shape is one of 1024 whose logarithms
    lie at equal distances, so that no logarithm is computed here.
    """
    low, high = config.scale
    ratios = _shapes(*config.aspect_ratio)
    for attempt in range(_ATTEMPTS):
        area = width * height * (low + (high - low) * _fraction(numbers[2 * attempt]))
        ratio = ratios[numbers[2 * attempt + 1] * _RATIOS >> 64]
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            return Box(
                _below(numbers[-3], width - wide + 1), _below(numbers[-2], height - tall + 1), wide, tall
            )
    wide, tall = width, height
    if width < height * ratios[0]:
        tall = max(1, round(width / ratios[0]))
    elif width > height * ratios[-1]:
        wide = max(1, round(height * ratios[-1]))
    return Box((width - wide) // 2, (height - tall) // 2, wide, tall)


def _padded(width: int, height: int, config: ImagesConfig, numbers: list[int]) -> Crop:
    """Return a part of the picture with ``padding`` black pixels on each side.

    Source: He et al. (2015), "Deep residual learning for image recognition", section 4.2.
    """
    size, padding = config.image_size, config.padding
    left = _below(numbers[-3], max(0, width + 2 * padding - size) + 1) - padding
    top = _below(numbers[-2], max(0, height + 2 * padding - size) + 1) - padding
    return _placed(width, height, size, left, top)


def _placed(width: int, height: int, size: int, left: int, top: int) -> Crop:
    """Return the part of a square at (left, top) that lies within the picture, and where in the square."""
    begin_x, begin_y = max(0, left), max(0, top)
    end_x, end_y = min(width, left + size), min(height, top + size)
    box = Box(begin_x, begin_y, max(0, end_x - begin_x), max(0, end_y - begin_y))
    return Crop(box, is_mirrored=False, is_padded=True, left=begin_x - left, top=begin_y - top)


@lru_cache(maxsize=16)
def _shapes(low: float, high: float) -> tuple[float, ...]:
    """Return the ratios of width to height, from low to high, their logarithms evenly spaced.

    Computed by decimal arithmetic, which is the same everywhere; the logarithms of C libraries are not.
    """
    with localcontext() as context:
        context.prec = 28
        first, last = Decimal(low).ln(), Decimal(high).ln()
        return tuple(
            float((first + (last - first) * (2 * k + 1) / (2 * _RATIOS)).exp()) for k in range(_RATIOS)
        )


def _fraction(number: int) -> float:
    """Return a number of 64 bits as one from 0 to below 1, on the grid of 2**-53."""
    return (number >> 11) * 2.0**-53


def _below(number: int, limit: int) -> int:
    """Return a number of 64 bits as one from 0 to limit - 1."""
    return number * limit >> 64
