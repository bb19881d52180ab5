"""Pictures decoded once and stored as pixels: binary PPM, upright, RGB, no larger than is wanted.

In: the bytes of an image file. Out: the same picture as a PPM of 8 bits, its shorter side shrunk to
``short_side`` where it was longer; None where it cannot be decoded. Nothing is enlarged. The filter is a
triangle as wide as the shrinking (Pillow's BILINEAR, in integers), so the bytes are the same on every machine
with the same Pillow and libjpeg-turbo.
"""

from dataclasses import dataclass
from importlib.metadata import version

from outlast.images.decode import Box, Pixels, Undecodable, open_picture

_LIBRARIES = ("pillow", "simplejpeg")


@dataclass(frozen=True, kw_only=True)
class RawPixels:
    """A store of decoded pictures.

    Attributes:
        short_side: of a stored picture in pixels, at most.
        max_pixels: a larger picture is not decoded.
    """

    short_side: int
    max_pixels: int
    field: str = "ppm"

    def versions(self) -> dict[str, str]:
        """Return what the bytes depend on beside this package."""
        return {name: version(name) for name in _LIBRARIES}

    def convert(self, content: bytes) -> bytes | None:
        """Return a PPM, None where the image cannot be decoded and stays as it is."""
        try:
            picture = open_picture(memoryview(content), max_pixels=self.max_pixels)
            pixels = picture.region(Box(0, 0, picture.width, picture.height), picture.width, picture.height)
        except Undecodable:
            return None
        pixels = _shrunk(pixels, self.short_side)
        height, width = pixels.shape[:2]
        return b"P6\n%d %d\n255\n" % (width, height) + pixels.tobytes()


def _shrunk(pixels: Pixels, short_side: int) -> Pixels:
    import numpy as np
    from PIL import Image

    height, width = pixels.shape[:2]
    shorter = min(height, width)
    if shorter <= short_side:
        return pixels
    size = [(2 * length * short_side + shorter) // (2 * shorter) for length in (width, height)]
    return np.asarray(Image.fromarray(pixels).resize((size[0], size[1]), Image.Resampling.BILINEAR))
