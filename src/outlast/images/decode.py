"""Images from bytes: a region of a picture at no more than the scale that is needed.

In: the bytes of an image file. Out: a ``Picture`` that knows its size, and regions of it as uint8 arrays of
shape (height, width, 3), RGB, upright by the Exif orientation of a JPEG. Baseline and progressive JPEGs of
one or three components are read by libjpeg-turbo, shrunk while decoding where less is wanted; everything
else, and whatever libjpeg-turbo only reads with a warning, by Pillow, whose word is final, save for pictures
of floats or of 32-bit integers: no scale of theirs is known, so they count as undecodable. Nothing larger
than the cap on pixels is decoded. All of it gives up Python's lock, so threads decode side by side.

The bytes of a region do not depend on the processor's vector units: libjpeg-turbo's accurate transform and
OpenCV's bilinear resize compute with integers, and their fast versions give what their plain ones give.
"""

import io
import re
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.errors import explained
from outlast.images.jpeg import JpegHead, count_scans, exif_orientation, read_head
from outlast.logs import log

Pixels = NDArray[np.uint8]

PILLOW_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "GIF", "TIFF", "WEBP", "TGA", "SGI")
"""Among Pillow's readers are some that start other programs; these are the ones that do not."""
_KEPT_BYTES = 2**24
"""The largest decoded picture for which a thread keeps its memory."""
_SHRINK_FROM = 3
"""From this ratio on a bilinear resize leaves out too much: boxes of pixels are averaged first."""
MOST_SCANS = 32
"""The scans of a JPEG may pass over so many times ``max_pixels``. Usual encoders make 10, of CMYK 18."""
_LEAST_SCAN_BYTES = 10
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")
"""Pillow's modes of a single channel with more than 8 bits."""
_RAW_HEADER = re.compile(rb"P6\s([0-9]{1,10})\s([0-9]{1,10})\s255\s")
_MOST_HEADER_BYTES = 32


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
        """Return a region, perhaps shrunk, but not below (height, width).

        The memory is used again by the next call of the same thread.

        Raises:
            Undecodable: the picture is damaged.
        """


def need_decoders() -> None:
    """Raise ConfigError naming the extra where a library that decodes is not installed; load none."""
    for name in ("cv2", "simplejpeg", "PIL"):
        if find_spec(name) is None:
            error = ModuleNotFoundError(name=name)
            raise explained(error) or error


def open_picture(content: memoryview, *, max_pixels: int) -> Picture:
    """Read the head of a picture.

    Args:
        content: the bytes of an image file.
        max_pixels: width times height must not exceed it.

    Raises:
        Undecodable: it is no picture or too large a one.
    """
    raw = _RAW_HEADER.match(content[:_MOST_HEADER_BYTES])
    if raw is not None:
        width, height, begin = int(raw[1]), int(raw[2]), raw.end()
        _check_size(content, width, height, max_pixels)
        if begin + width * height * 3 <= len(content):
            return _RawPicture(content, begin, width, height)
    head = read_head(content)
    if head is None or not head.is_plain:
        return _PillowPicture(content, head, max_pixels)
    _check_size(content, head.width, head.height, max_pixels)
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


def mirror(pixels: Pixels) -> None:
    """Exchange left and right in place."""
    import cv2

    cv2.flip(pixels, 1, dst=pixels)


def _shrink(region: Pixels, across: int, down: int) -> Pixels:
    across, down = (count if count >= _SHRINK_FROM else 1 for count in (across, down))
    if across == down == 1:
        return region
    height, width = region.shape[0] // down, region.shape[1] // across
    boxes = region[: height * down, : width * across].reshape(height, down, width, across, 3)
    return (boxes.sum(axis=(1, 3), dtype=np.uint32) // (across * down)).astype(np.uint8)


def _check_size(content: memoryview, width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise Undecodable(f"the picture is {width} x {height} pixels")
    if width * height > max_pixels:
        raise Undecodable(f"{width} x {height} pixels are more than stream.images.max_pixels, {max_pixels}")
    # Each scan of a progressive JPEG, of which a hundred bytes are enough, goes over all pixels again.
    most_scans = MOST_SCANS * max_pixels // (width * height)
    if len(content) // _LEAST_SCAN_BYTES > most_scans and (num_scans := count_scans(content)) > most_scans:
        raise Undecodable(
            f"{num_scans} scans of {width} x {height} pixels are more than {MOST_SCANS} times "
            f"stream.images.max_pixels, {max_pixels}"
        )


@dataclass
class _JpegPicture(Picture):
    content: memoryview
    head: JpegHead
    max_pixels: int

    def __post_init__(self) -> None:
        sizes = (self.head.width, self.head.height)
        self.width, self.height = sizes[::-1] if self.head.is_turned else sizes

    def region(self, box: Box, width: int, height: int) -> Pixels:
        scale = self._scale(-(-self.width * width // box.width), -(-self.height * height // box.height))
        stored = _stored(_at_scale(box, self, scale), self, scale)
        try:
            decoded = self._decode(stored, scale)
        except ValueError:
            picture = _PillowPicture(self.content, self.head, self.max_pixels)
            return picture.region(box, width, height)
        return _side_by_side(_upright(decoded, self.head.orientation))

    def _scale(self, width: int, height: int) -> int:
        """Return the least scale, in eighths, at which the upright picture has a width and a height."""
        # Of the scales between half and whole none is faster than the whole.
        for scale in (1, 2, 3, 4):
            if _scaled(self.width, scale) >= width and _scaled(self.height, scale) >= height:
                return scale
        return 8

    def _decode(self, box: Box, scale: int) -> Pixels:
        """Decode a box of the stored picture at a scale. Raises ValueError where libjpeg-turbo warns."""
        import simplejpeg

        width, height = self.head.width, self.head.height
        options: dict[str, Any] = {}
        if width * height * 3 <= _KEPT_BYTES:
            options["buffer"] = _kept_memory()
        if scale < 8:
            options["min_width"], options["min_height"] = _scaled(width, scale), _scaled(height, scale)
            options["min_factor"] = 8 / scale
        decoded: Pixels = simplejpeg.decode_jpeg(self.content, "RGB", **options)
        return decoded[box.top : box.top + box.height, box.left : box.left + box.width]


class _RawPicture(Picture):
    """A binary PPM of 8 bits: pixels as they are, nothing is copied."""

    def __init__(self, content: memoryview, begin: int, width: int, height: int) -> None:
        pixels = np.frombuffer(content, np.uint8, width * height * 3, begin)
        self._pixels = pixels.reshape(height, width, 3)
        self.width, self.height = width, height

    def region(self, box: Box, width: int, height: int) -> Pixels:
        del width, height
        return self._pixels[box.top : box.top + box.height, box.left : box.left + box.width]


class _PillowPicture(Picture):
    def __init__(self, content: memoryview, head: JpegHead | None, max_pixels: int) -> None:
        from PIL import Image, UnidentifiedImageError

        _register_formats()
        _raise_pillows_cap(max_pixels)
        orientation = head.orientation if head else 1
        try:
            with Image.open(io.BytesIO(content), formats=PILLOW_FORMATS) as image:
                _check_size(content, *image.size, max_pixels)
                _check_depth(image)
                image.load()
                if image.mode in _DEEP and np.asarray(image).max() > 255:
                    _warn_of_white()
                if head is None and image.format in ("JPEG", "MPO"):
                    orientation = exif_orientation(image.info.get("exif", b""))
                if image.mode == "P" and "transparency" in image.info:
                    image = image.convert("RGBA")
                pixels: Pixels = np.asarray(image.convert("RGB"))
        except (Undecodable, MemoryError):
            raise
        except UnidentifiedImageError:  # its text has the address of an object, another one in every run
            raise Undecodable(f"cannot identify its format: it begins with {bytes(content[:8])!r}") from None
        except Exception as error:  # the readers of a dozen formats raise whatever they meet
            raise Undecodable(f"{type(error).__name__}: {error}") from None
        self._pixels = _upright(pixels, orientation)
        self.height, self.width = self._pixels.shape[:2]

    def region(self, box: Box, width: int, height: int) -> Pixels:
        del width, height
        bottom, right = box.top + box.height, box.left + box.width
        return _side_by_side(self._pixels[box.top : bottom, box.left : right])


@lru_cache(maxsize=1)
def _register_formats() -> None:
    """Let Pillow know the formats that it does not know from the start."""
    for name in ("TiffImagePlugin", "WebPImagePlugin", "TgaImagePlugin", "SgiImagePlugin"):
        import_module(f"PIL.{name}")


def _raise_pillows_cap(max_pixels: int) -> None:
    """Let Pillow read what our own cap allows: above its cap it warns, above twice its cap it refuses."""
    from PIL import Image

    with _pillow:
        if Image.MAX_IMAGE_PIXELS is not None and max_pixels > Image.MAX_IMAGE_PIXELS:
            Image.MAX_IMAGE_PIXELS = max_pixels


def _check_depth(image: Any) -> None:
    """Check that there is a scale from a picture's values to those of 8 bits. Raises Undecodable.

    Of one channel with 16 bits there is: Pillow's, that of PNG and PGM files among them (which some of its
    versions read as "I"). Others come without: white may be 1, or 4095.
    """
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        kind = "floats" if image.mode == "F" else "signed or 32-bit integers"
        raise Undecodable(f"its pixels are {kind}, of which nobody knows what is white: convert it to 8 bits")


@lru_cache(maxsize=1)
def _warn_of_white() -> None:
    log.warning(
        "a grey picture of 16 bits is taken as Pillow converts it to RGB: all values above 255 are white; "
        "convert such pictures to 8 bits (docs/guides/images.md)"
    )


def _scaled(length: int, scale: int) -> int:
    """Return a length of a picture that libjpeg-turbo shrinks to so many eighths."""
    return -(-length * scale // 8)


def _at_scale(box: Box, picture: Picture, scale: int) -> Box:
    """Return the pixels of a picture at a scale, in eighths, that a box of it touches."""
    width, height = _scaled(picture.width, scale), _scaled(picture.height, scale)
    left, right = box.left * width // picture.width, -(-(box.left + box.width) * width // picture.width)
    top, bottom = box.top * height // picture.height, -(-(box.top + box.height) * height // picture.height)
    return Box(left, top, right - left, bottom - top)


def _side_by_side(region: Pixels) -> Pixels:
    """Return a region as what reads it wants it: rows may lie apart, the pixels of a row may not."""
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


def _stored(box: Box, picture: _JpegPicture, scale: int) -> Box:
    """Return where a box of the upright picture lies in the stored one: what ``_upright`` does, undone."""
    left, top, width, height = box
    if picture.head.orientation in (2, 3, 6, 7):
        left = _scaled(picture.width, scale) - left - width
    if picture.head.orientation in (3, 4, 7, 8):
        top = _scaled(picture.height, scale) - top - height
    return Box(top, left, height, width) if picture.head.is_turned else Box(left, top, width, height)


_pillow = threading.Lock()
_threads = threading.local()


def _kept_memory() -> Pixels:
    """Return memory of the calling thread, the same at every call: fresh pages cost a tenth of the decode."""
    held: Pixels | None = getattr(_threads, "held", None)
    if held is None:
        held = _threads.held = np.empty(_KEPT_BYTES, np.uint8)
    return held
