"""Images from bytes: a region of a picture at no more than the scale that is needed.

In: the bytes of an image file. Out: a ``Picture`` that knows its size, and regions of it as uint8 arrays of
shape (height, width, 3), RGB, upright by the Exif orientation of a JPEG. Baseline and progressive JPEGs of
one or three components are read by libjpeg-turbo, shrunk while decoding where less is wanted; everything
else, and whatever libjpeg-turbo only reads with a warning, by Pillow, whose word is final. Nothing larger
than the cap on pixels is decoded. All of it gives up Python's lock, so threads decode side by side.

The bytes of a region do not depend on the processor's vector units: libjpeg-turbo's accurate transform and
OpenCV's bilinear resize compute with integers, and their fast versions give what their plain ones give.
"""

import io
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

PILLOW_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP", "TGA", "SGI")
"""Among Pillow's readers are some that start other programs; these are the ones that do not."""
_KEPT_BYTES = 2**24
"""The largest decoded picture for which a thread keeps its memory."""
_SHRINK_FROM = 3
"""From this ratio on a bilinear resize leaves out too much: boxes of pixels are averaged first."""

_SOF_8_BIT = (0xC0, 0xC1, 0xC2)  # baseline, extended sequential, progressive
_WITHOUT_LENGTH = (0x01, *range(0xD0, 0xD9))
_SOS = 0xDA
_APP1 = 0xE1
_EXIF = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112


class Undecodable(Exception):
    """The bytes are no picture, a damaged one, or one larger than the cap. The text says which."""


class Box(NamedTuple):
    """A region of a picture in its upright pixels."""

    left: int
    top: int
    width: int
    height: int


class Picture(ABC):
    """A picture whose head has been read. ``width`` and ``height`` are those of the upright picture."""

    width: int
    height: int

    @abstractmethod
    def region(self, box: Box, width: int, height: int) -> Pixels:
        """Return a region, perhaps shrunk, but to no less than (height, width) where it has as much.

        The memory is used again by the next call of the same thread.

        Raises:
            Undecodable: the picture is damaged.
        """


def open_picture(content: memoryview, *, max_pixels: int) -> Picture:
    """Read the head of a picture.

    Args:
        content: the bytes of an image file.
        max_pixels: width times height must not exceed it.

    Raises:
        Undecodable: it is no picture or too large a one.
    """
    head = _read_jpeg_head(content)
    if head is None or not head.is_plain:
        return _PillowPicture(content, head.orientation if head else 1, max_pixels)
    _check_pixels(head.width, head.height, max_pixels)
    return _JpegPicture(content, head, max_pixels)


def resize_into(region: Pixels, target: Pixels) -> None:
    """Fill the target (height, width, 3) with a region, resized bilinearly. The target is contiguous.

    Unlike Pillow's, the resize does not widen its filter when it shrinks; a region that is three times as
    large or more is averaged over boxes of pixels first.
    """
    import cv2

    height, width = target.shape[:2]
    region = _shrink(region, region.shape[1] // width, region.shape[0] // height)
    if region.shape == target.shape:
        target[...] = region
        return
    cv2.resize(region, (width, height), dst=target, interpolation=cv2.INTER_LINEAR)


def mirror_into(pixels: Pixels, target: Pixels) -> None:
    """Fill the target with the pixels, left and right exchanged."""
    import cv2

    cv2.flip(pixels, 1, dst=target)


def _shrink(region: Pixels, across: int, down: int) -> Pixels:
    across, down = (count if count >= _SHRINK_FROM else 1 for count in (across, down))
    if across == down == 1:
        return region
    height, width = region.shape[0] // down, region.shape[1] // across
    boxes = region[: height * down, : width * across].reshape(height, down, width, across, 3)
    return (boxes.sum(axis=(1, 3), dtype=np.uint32) // (across * down)).astype(np.uint8)


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise Undecodable(f"the picture is {width} x {height} pixels")
    if width * height > max_pixels:
        raise Undecodable(f"{width} x {height} pixels are more than stream.images.max_pixels, {max_pixels}")


class _JpegHead(NamedTuple):
    width: int
    height: int
    orientation: int
    is_plain: bool
    """Whether libjpeg-turbo reads it as Pillow does: 8 bits, grey or three components."""


@dataclass
class _JpegPicture(Picture):
    content: memoryview
    head: _JpegHead
    max_pixels: int

    def __post_init__(self) -> None:
        sizes = (self.head.width, self.head.height)
        self.width, self.height = sizes if self.head.orientation < 5 else sizes[::-1]

    def region(self, box: Box, width: int, height: int) -> Pixels:
        import simplejpeg

        # The whole picture is decoded, at a scale at which the region has what is wanted.
        wanted = [-(-self.width * width // box.width), -(-self.height * height // box.height)]
        if self.head.orientation >= 5:
            wanted.reverse()
        options: dict[str, Any] = {}
        if self.head.width * self.head.height * 3 <= _KEPT_BYTES:
            options["buffer"] = _kept_memory()
        try:
            # Of the scales between whole and half none is faster than the whole.
            decoded: Pixels = simplejpeg.decode_jpeg(
                self.content, "RGB", min_width=wanted[0], min_height=wanted[1], min_factor=2, **options
            )
        except ValueError:
            picture = _PillowPicture(self.content, self.head.orientation, self.max_pixels)
            return picture.region(box, width, height)
        return _cut(_upright(decoded, self.head.orientation), box, self)


class _PillowPicture(Picture):
    def __init__(self, content: memoryview, orientation: int, max_pixels: int) -> None:
        from PIL import Image

        _register_formats()
        try:
            with Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
                _check_pixels(*image.size, max_pixels)
                image.load()
                if image.mode == "P" and "transparency" in image.info:
                    image = image.convert("RGBA")
                pixels: Pixels = np.asarray(image.convert("RGB"))
        except (Undecodable, MemoryError):
            raise
        except Exception as error:  # the readers of a dozen formats raise whatever they meet
            raise Undecodable(f"{type(error).__name__}: {error}") from None
        self._pixels = _upright(pixels, orientation)
        self.height, self.width = self._pixels.shape[:2]

    def region(self, box: Box, width: int, height: int) -> Pixels:
        return _cut(self._pixels, box, self)


@lru_cache(maxsize=1)
def _register_formats() -> None:
    """Let Pillow know the formats that it does not know from the start."""
    for name in ("TiffImagePlugin", "WebPImagePlugin", "TgaImagePlugin", "SgiImagePlugin"):
        import_module(f"PIL.{name}")


def _cut(pixels: Pixels, box: Box, picture: Picture) -> Pixels:
    """Cut a region, given in the pixels of the picture, out of the picture at some scale."""
    height, width = pixels.shape[:2]
    left, right = box.left * width // picture.width, -(-(box.left + box.width) * width // picture.width)
    top, bottom = box.top * height // picture.height, -(-(box.top + box.height) * height // picture.height)
    region = pixels[top:bottom, left:right]
    # Rows may lie apart, but what reads them wants the pixels of a row side by side.
    return region if region.strides[1:] == (3, 1) and region.strides[0] > 0 else region.copy()


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turn and mirror a picture as its Exif orientation 1 to 8 says; a view."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _read_jpeg_head(content: memoryview) -> _JpegHead | None:
    """Read the segments of a JPEG up to its size; None where it is no JPEG, or an odd one."""
    orientation = 1
    for marker, begin, end in _segments(content):
        if marker == _APP1 and bytes(content[begin : begin + 6]) == _EXIF:
            orientation = _exif_orientation(bytes(content[begin + 6 : end]))
        # The markers of frames; DHT, JPG and DAC lie among them.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if end - begin < 6:
                return None
            precision, height, width, components = struct.unpack(">BHHB", content[begin : begin + 6])
            is_plain = marker in _SOF_8_BIT and precision == 8 and components in (1, 3) and height > 0
            return _JpegHead(width, height, orientation, is_plain)
    return None


def _segments(content: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin and end of the content of each segment of a JPEG up to the image data."""
    position, size = 2, len(content)
    if bytes(content[:2]) != b"\xff\xd8":
        return
    while position + 4 <= size and content[position] == 0xFF:
        marker = content[position + 1]
        if marker == 0xFF:  # filling
            position += 1
            continue
        if marker in _WITHOUT_LENGTH:
            position += 2
            continue
        length = content[position + 2] << 8 | content[position + 3]
        if marker == _SOS or length < 2 or position + 2 + length > size:
            return
        yield marker, position + 4, position + 2 + length
        position += 2 + length


def _exif_orientation(exif: bytes) -> int:
    """Return the orientation that Exif data gives; 1, upright, where it gives none or is damaged.

    Source: CIPA DC-008 (Exif 3.0), 4.5 and the tag Orientation; TIFF 6.0, section 2.
    """
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    try:
        if order is None or struct.unpack_from(order + "H", exif, 2)[0] != 42:
            return 1
        (begin,) = struct.unpack_from(order + "I", exif, 4)
        (count,) = struct.unpack_from(order + "H", exif, begin)
        for entry in range(begin + 2, begin + 2 + 12 * count, 12):
            tag, kind, length, value = struct.unpack_from(order + "HHIH", exif, entry)
            if tag == _ORIENTATION_TAG:
                return value if kind == 3 and length == 1 and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


_threads = threading.local()


def _kept_memory() -> Pixels:
    """Return memory of the calling thread, the same at every call: fresh pages cost a tenth of the decode."""
    held: Pixels | None = getattr(_threads, "held", None)
    if held is None:
        held = _threads.held = np.empty(_KEPT_BYTES, np.uint8)
    return held
