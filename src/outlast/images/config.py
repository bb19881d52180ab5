"""The ``[stream.images]`` table: the size of an example, and which part of its picture it shows. And the
``[stream]`` table with that table in it.
"""

from typing import Annotated, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt, model_validator

from outlast.config import Operation, table
from outlast.stream.config import StreamConfig

Ratio = Annotated[float, pydantic.Field(gt=0, le=1000)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]

ONLY_FOR_TEXT = ("sources", "sequence_length", "special_tokens")
_SHRUNK = 256 / 224
"""How much larger than an example the field makes a picture before it cuts out its middle."""


@table
class ImagesConfig:
    image_size: PositiveInt = 224
    """Height and width of an example in pixels."""
    crop: Literal["random_resized", "padded", "center"] = "random_resized"
    """What a training example shows: a region of random area and shape, resized; a part of the picture with a
    black border, not resized (for small images); or its middle, as in evaluation."""
    scale: tuple[Share, Share] = (0.08, 1.0)
    """Of random_resized: the least and the greatest share of the picture's area."""
    aspect_ratio: tuple[Ratio, Ratio] = (3 / 4, 4 / 3)
    """Of random_resized: the least and the greatest width for a height of 1."""
    padding: NonNegativeInt = 4
    """Of padded: pixels of the border on each side."""
    flip: bool = True
    """Exchange left and right in half of the training examples."""
    evaluation_resize: NonNegativeInt | None = None
    """In evaluation, and of center: the shorter side that the picture is resized to before the middle of
    image_size is cut out; 0: it is not resized. Default: 256 for 224 and in proportion; of padded 0."""
    max_pixels: PositiveInt = 2**26
    """A picture of more pixels counts as undecodable, as does a JPEG of scans over 32 times as many."""
    max_undecodable: Operation[Share] = 0.01
    """The run stops when more than this share of the images could not be decoded, and more than one."""
    decode_threads: Operation[PositiveInt | None] = None
    """Threads that decode; default: one for each core of the process."""

    @property
    def resize(self) -> int | None:
        """The shorter side in evaluation, None where the picture is not resized."""
        if self.evaluation_resize is None:
            return None if self.crop == "padded" else round(self.image_size * _SHRUNK)
        return self.evaluation_resize or None

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        for name in ("scale", "aspect_ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"stream.images.{name} must rise, from above 0: found {low} and {high}")
        return self


@table
class ImageStreamConfig(StreamConfig):
    images: ImagesConfig = ImagesConfig()
    """Only with packing = "images": how large an example is and what of its picture it shows."""

    @model_validator(mode="after")
    def _refuse_what_does_not_belong(self) -> Self:
        # What differs from its default has been set.
        if self.packing != "images":
            if self.images != ImageStreamConfig.images:
                raise ValueError('stream.images belongs to packing = "images"')
            return self
        for name in ONLY_FOR_TEXT:
            if getattr(self, name) != getattr(ImageStreamConfig, name):
                raise ValueError(f'stream.{name} belongs to text, and packing is "images": leave it out')
        return self
