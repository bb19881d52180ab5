"""JPEGs in tiles: restart markers cut the coded picture into pieces that are read on their own.

In: a baseline JPEG of one scan with a restart interval that divides its rows. Out: the same JPEG with an
index of where each interval lies, in a segment of its own, so that it stays a JPEG for every program; and,
the other way, a smaller JPEG of the intervals that a region touches. The pixels of the region are the same to
the last bit as in the whole picture: one MCU more is taken on each side where there is one, because chroma is
interpolated over the border. docs/formats/tiled_jpeg.md is normative.

Source: ISO/IEC 10918-1 (ITU-T T.81), B.2.4.4 (restart intervals), E.1.4 and F.1.1.5.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlast.images.jpeg import APP9, SOS, TILE_INDEX, JpegHead, is_frame, read_head, segments

_DRI, _EOI = 0xDD, 0xD9
_BLOCK = 8
_MARKER_BYTES = 2
_MOST_LENGTH = 2**16 - 1
_MOST_TILES = (2**16 - 1 - _MARKER_BYTES - len(TILE_INDEX)) // 2
_SEQUENTIAL = (0xC0, 0xC1)
_COLOUR_SEGMENTS = (0xE0, 0xEE)
"""JFIF and Adobe: they say what the components are, so a cut keeps them. Other APPn do not change pixels."""
_WANTED_WIDTH = 64
"""Of a tile in pixels: narrower ones are read a little less and take up more (docs/results/images.md)."""


class Grid(NamedTuple):
    """MCUs of a picture: their size in pixels, how many across and down."""

    mcu_width: int
    mcu_height: int
    across: int
    down: int


class Cut(NamedTuple):
    """A JPEG of a part of a picture: where in the picture it begins, and its size."""

    content: memoryview | bytearray
    left: int
    top: int
    width: int
    height: int


@dataclass(frozen=True)
class Tiles:
    """Where the tiles of a JPEG lie.

    Attributes:
        content: the JPEG.
        head: of it.
        grid: its MCUs.
        header: what a cut begins with: all up to the coded data that pixels depend on.
        size_at: where in the header height and width stand.
        begins, ends: of the coded data of each tile, int64 of shape (rows, tiles across).
    """

    content: memoryview
    head: JpegHead
    grid: Grid
    header: bytes
    size_at: int
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    def cut(self, left: int, top: int, right: int, bottom: int) -> Cut:
        """Return a JPEG that shows the region from (left, top) to before (right, bottom), and around it what
        its pixels depend on. Coordinates are those of the stored picture, not turned upright.
        """
        grid = self.grid
        mcus = grid.across // self.begins.shape[1]
        first = max(0, left // grid.mcu_width - 1) // mcus
        stop = min(self.begins.shape[1], -(-(-(-right // grid.mcu_width) + 1) // mcus))
        first_row = max(0, top // grid.mcu_height - 1)
        stop_row = min(grid.down, -(-bottom // grid.mcu_height) + 1)
        x, y = first * mcus * grid.mcu_width, first_row * grid.mcu_height
        width = min(stop * mcus * grid.mcu_width, self.head.width) - x
        height = min(stop_row * grid.mcu_height, self.head.height) - y

        begins = self.begins[first_row:stop_row, first]
        ends = self.ends[first_row:stop_row, first:stop]
        # The tiles of a row lie one behind the other; each takes the marker behind it along.
        lasts = (ends[:, -1] + _MARKER_BYTES).tolist()
        rows = [self.content[begin:end] for begin, end in zip(begins.tolist(), lasts, strict=True)]
        cut = bytearray().join((self.header, *rows))
        struct.pack_into(">HH", cut, self.size_at, height, width)
        lengths = ends[:, -1] + _MARKER_BYTES - begins
        starts = len(self.header) + np.cumsum(lengths) - lengths
        markers = (ends - begins[:, None] + (starts[:, None] + 1)).reshape(-1)
        codes = np.frombuffer(cut, np.uint8)
        codes[markers] = _end_codes(len(markers))
        return Cut(cut, x, y, width, height)


def choose_interval(grid: Grid) -> int | None:
    """Return how many MCUs wide a tile shall be, a divisor of the row; None where no index holds them all."""
    wanted = max(1, _WANTED_WIDTH // grid.mcu_width)
    divisors = [width for width in range(1, grid.across + 1) if grid.across % width == 0]
    fitting = [width for width in divisors if grid.across // width * grid.down <= _MOST_TILES]
    return min(fitting, key=lambda width: max(width, wanted) / min(width, wanted), default=None)


def read_grid(content: memoryview) -> Grid | None:
    """Return the MCUs of a JPEG, as one scan of all components has them; None where its head is odd."""
    for marker, begin, end in segments(content):
        if is_frame(marker):
            return _grid(content[begin:end])
    return None


def add_tile_index(content: bytes) -> bytes | None:
    """Return a JPEG with the index of its restart intervals; None where they are no tiles of a whole row.

    An index that it has already is replaced.
    """
    content = _without_index(content)
    scan = _read_scan(memoryview(content))
    if scan is None:
        return None
    codes = np.frombuffer(content, np.uint8)[scan.begin :]
    marked = np.flatnonzero((codes[:-1] == 0xFF) & (codes[1:] >= 0xD0) & (codes[1:] <= _EOI)) + scan.begin
    num_tiles = scan.grid.across // scan.interval * scan.grid.down
    if len(marked) < num_tiles or num_tiles > _MOST_TILES:
        return None
    ends = marked[:num_tiles]
    begins = np.concatenate(([scan.begin], ends[:-1] + _MARKER_BYTES))
    lengths = ends - begins
    if lengths.max() > _MOST_LENGTH:
        return None
    index = TILE_INDEX + lengths.astype(">u2").tobytes()
    segment = struct.pack(">BBH", 0xFF, APP9, _MARKER_BYTES + len(index)) + index
    # What stands behind the end of the picture is no part of it.
    picture = content[: ends[-1] + _MARKER_BYTES]
    tiled = picture[: scan.frame_at] + segment + picture[scan.frame_at :]
    head = read_head(memoryview(tiled))
    return tiled if head is not None and read_tiles(memoryview(tiled), head) is not None else None


def read_tiles(content: memoryview, head: JpegHead) -> Tiles | None:
    """Return where the tiles of a JPEG lie; None where it has no index, or one that is not true of it.

    An index that says what the markers between the tiles do not is passed over: the JPEG is then read whole.
    """
    if head.tile_index is None:
        return None
    begin, end = head.tile_index
    scan = _read_scan(content)
    if scan is None or (end - begin) % 2:
        return None
    lengths = np.frombuffer(content[begin:end], ">u2").astype(np.int64)
    grid = scan.grid
    if not len(lengths) or len(lengths) != grid.across // scan.interval * grid.down:
        return None
    ends = np.cumsum(lengths + _MARKER_BYTES) - _MARKER_BYTES + scan.begin
    if ends[-1] + _MARKER_BYTES != len(content):
        return None
    codes = np.frombuffer(content, np.uint8)
    if (codes[ends] != 0xFF).any() or (codes[ends + 1] != _end_codes(len(ends))).any():
        return None
    shape = (grid.down, grid.across // scan.interval)
    begins, ends = (ends - lengths).reshape(shape), ends.reshape(shape)
    return Tiles(content, head, grid, scan.header, scan.size_at, begins, ends)


def _without_index(content: bytes) -> bytes:
    parts, kept_to = list[bytes](), 0
    for marker, begin, end in segments(memoryview(content)):
        if marker == APP9 and content[begin : begin + len(TILE_INDEX)] == TILE_INDEX:
            parts.append(content[kept_to : begin - 4])
            kept_to = end
    return b"".join((*parts, content[kept_to:]))


class _Scan(NamedTuple):
    grid: Grid
    interval: int
    frame_at: int
    begin: int
    """Of the coded data."""
    header: bytes
    """The head of the JPEG without what no pixel depends on."""
    size_at: int
    """Where height and width stand in the header."""


def _read_scan(content: memoryview) -> _Scan | None:
    """Read the head of a sequential JPEG of one scan, whose restart interval divides its rows of MCUs."""
    grid: Grid | None = None
    interval = frame_at = components = size_at = 0
    parts, size = [content[:2]], 2
    for marker, begin, end in segments(content):
        if marker >= 0xE0 and marker not in _COLOUR_SEGMENTS:  # APPn, comments
            continue
        parts.append(content[begin - 4 : end])
        if marker == _DRI and end - begin == 2:
            (interval,) = struct.unpack(">H", content[begin:end])
        elif is_frame(marker):
            if grid is not None or marker not in _SEQUENTIAL:
                return None
            grid, frame_at, size_at = _grid(content[begin:end]), begin - 4, size + 5
            components = content[begin + 5] if grid else 0
        elif marker == SOS and grid and interval and end > begin and content[begin] == components:
            whole_rows = grid.across % interval == 0
            return _Scan(grid, interval, frame_at, end, b"".join(parts), size_at) if whole_rows else None
        size += end - begin + 4
    return None


def _grid(frame: memoryview) -> Grid | None:
    if len(frame) < 6 or len(frame) != 6 + 3 * frame[5]:
        return None
    height, width, components = struct.unpack(">HHB", frame[1:6])
    factors = [frame[at] for at in range(7, len(frame), 3)]
    # The blocks of a single component are its MCUs, whatever factors it has.
    wide = max((factor >> 4 for factor in factors), default=0) if components > 1 else 1
    tall = max((factor & 15 for factor in factors), default=0) if components > 1 else 1
    if not (wide and tall and width and height):
        return None
    mcu_width, mcu_height = _BLOCK * wide, _BLOCK * tall
    return Grid(mcu_width, mcu_height, -(-width // mcu_width), -(-height // mcu_height))


@lru_cache(maxsize=256)
def _end_codes(count: int) -> NDArray[np.uint8]:
    """Return the second bytes of the markers behind so many tiles: RST0, ..., RST7, RST0, ..., and EOI."""
    codes = ((np.arange(count) & 7) + 0xD0).astype(np.uint8)
    codes[-1] = _EOI
    codes.setflags(write=False)
    return codes
