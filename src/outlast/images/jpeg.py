"""What the head of a JPEG says: its size, how it was coded, which way is up.

In: the bytes of a file. Out: a ``JpegHead``, read without decoding anything; None where it is no JPEG, or an
odd one. Nothing that the bytes claim is believed further than they reach.

Source: ISO/IEC 10918-1 (ITU-T T.81), annex B; CIPA DC-008 (Exif 3.0).
"""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

_SOF_8_BIT = (0xC0, 0xC1, 0xC2)  # baseline, extended sequential, progressive
_WITHOUT_LENGTH = (0x01, *range(0xD0, 0xD9))
_SOS, _APP1 = 0xDA, 0xE1
_EXIF = b"Exif\0\0"
_ORIENTATION_TAG = 0x0112


class JpegHead(NamedTuple):
    """Attributes:
    width, height: as stored, before the picture is turned upright.
    orientation: Exif's, 1 to 8; 1 is upright.
    is_plain: whether libjpeg-turbo reads it as Pillow does: 8 bits, grey or three components.
    """

    width: int
    height: int
    orientation: int
    is_plain: bool

    @property
    def is_turned(self) -> bool:
        """Whether rows of the upright picture are columns of the stored one."""
        return self.orientation >= 5


def _is_frame(marker: int) -> bool:
    """Whether a marker begins a frame header. DHT, JPG and DAC lie among them."""
    return 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)


def read_head(content: memoryview) -> JpegHead | None:
    """Read the segments of a JPEG up to its size; None where it is no JPEG, or an odd one."""
    orientation = 1
    for marker, begin, end in _segments(content):
        if marker == _APP1 and bytes(content[begin : begin + 6]) == _EXIF:
            orientation = exif_orientation(bytes(content[begin:end]))
        if _is_frame(marker):
            if end - begin < 6:
                return None
            precision, height, width, components = struct.unpack(">BHHB", content[begin : begin + 6])
            is_plain = marker in _SOF_8_BIT and precision == 8 and components in (1, 3) and height > 0
            return JpegHead(width, height, orientation, is_plain)
    return None


def count_scans(content: memoryview) -> int:
    """Return how many scans a JPEG has, 1 where the first is all that is decoded; 0 of another file."""
    begin, is_progressive, num_components = 0, True, 0
    for marker, begin, end in _segments(content):
        if _is_frame(marker) and end - begin >= 6:
            is_progressive, num_components = marker not in (0xC0, 0xC1), content[begin + 5]
        if marker == _SOS and not is_progressive and content[begin] == num_components:
            return 1
    is_jpeg = bytes(content[:2]) == b"\xff\xd8"
    # In the data of a scan a zero stands behind each 255.
    return 1 + len(re.findall(b"\xff\xda", content[begin:])) if is_jpeg else 0


def _segments(content: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield marker, begin and end of the content of each segment of a JPEG, the head of its first scan (SOS)
    last.
    """
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
        if length < 2 or position + 2 + length > size:
            return
        yield marker, position + 4, position + 2 + length
        if marker == _SOS:
            return
        position += 2 + length


def exif_orientation(segment: bytes) -> int:
    """Return the orientation that the content of a JPEG's Exif segment gives; 1, upright, where it gives none
    or is damaged.

    Source: CIPA DC-008 (Exif 3.0), 4.5 and the tag Orientation; TIFF 6.0, section 2.
    """
    exif = segment.removeprefix(_EXIF)
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
