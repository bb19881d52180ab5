"""JPEGs in tiles: every crop is bit-equal with the whole picture's, and an index that lies is passed over."""

import io
import json
import random
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from outlast.errors import ConfigError
from outlast.images.decode import Box, Pixels, Undecodable, open_picture
from outlast.images.jpeg import TILE_INDEX, read_head
from outlast.images.tiles import Grid, add_tile_index, choose_interval, read_grid, read_tiles
from outlast.images.transcode import TiledJpegs
from support.files import from_hexdump
from support.images import encoded, jpeg, needs_jpegtran, noisy_jpeg, picture

MANY = 2**26
STORE = TiledJpegs(max_pixels=MANY)


def tiles_of(content: bytes | bytearray) -> Any:
    head = read_head(memoryview(content))
    assert head is not None
    return read_tiles(memoryview(content), head)


def cjpeg(pixels: Pixels, *options: str) -> bytes:
    """Return a JPEG as the program beside jpegtran writes it."""
    return subprocess.run(
        ["cjpeg", *options], input=encoded(pixels, "PPM"), capture_output=True, check=True
    ).stdout


def borders(rng: random.Random, length: int) -> tuple[int, int]:
    """Return where a crop begins and ends: anywhere, or at the borders of tiles, where errors would show."""
    step = rng.choice((1, 8, 16, 32, 64))
    begin = rng.randrange(0, length, step)
    return begin, min(length, begin + step * rng.randint(1, -(-(length - begin) // step)))


def check_crops(plain: bytes, tiled: bytes, rng: random.Random, count: int) -> None:
    """Check that regions of both pictures are equal, at every scale."""
    assert tiles_of(tiled) is not None
    first, second = (open_picture(memoryview(content), max_pixels=MANY) for content in (plain, tiled))
    assert (first.width, first.height) == (second.width, second.height)
    for _ in range(count):
        left, right = borders(rng, first.width)
        top, bottom = borders(rng, first.height)
        box = Box(left, top, right - left, bottom - top)
        wanted = [max(1, length // rng.choice((1, 2, 3, 4, 8, 20))) for length in box[2:]]
        expected = first.region(box, *wanted).copy()
        assert np.array_equal(expected, second.region(box, *wanted)), (box, wanted)


@needs_jpegtran
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_crops_are_bit_equal(subsampling: int, progressive: bool) -> None:
    rng = random.Random(subsampling)
    for number, (width, height) in enumerate(((500, 375), (129, 257), (64, 64), (31, 500), (7, 5), (1, 1))):
        exif = Image.Exif()
        exif[0x0112] = rng.randint(1, 8)
        options: dict[str, Any] = {"subsampling": subsampling, "progressive": progressive, "exif": exif}
        content = noisy_jpeg(number, width, height, **options)
        tiled = STORE.convert(content)
        assert tiled is not None
        check_crops(content, tiled, rng, 40)


@needs_jpegtran
@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_of_every_orientation(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = noisy_jpeg(9, 233, 170, exif=exif)
    tiled = STORE.convert(content)
    assert tiled is not None
    check_crops(content, tiled, random.Random(orientation), 25)


@needs_jpegtran
@pytest.mark.parametrize("sampling", ["grey", "1x2", "4x1"])
def test_crops_of_odd_samplings(sampling: str) -> None:
    options = ["-grayscale"] if sampling == "grey" else ["-sample", sampling]
    content = cjpeg(picture(4, 200, 150), *options)
    tiled = STORE.convert(content)
    assert tiled is not None
    check_crops(content, tiled, random.Random(1), 40)


@needs_jpegtran
def test_only_the_tiles_of_a_region_are_read() -> None:
    tiled = STORE.convert(noisy_jpeg(3, 512, 384, subsampling=2))
    assert tiled is not None
    tiles = tiles_of(tiled)
    assert tiles.grid == Grid(16, 16, 32, 24)
    width = 16 * 32 // tiles.begins.shape[1]
    cut = tiles.cut(200, 200, 210, 210)
    assert (cut.left % width, cut.top, cut.height) == (0, 176, 64), "a row of MCUs more above and below"
    assert cut.width <= 3 * width
    assert len(cut.content) < len(tiled) / 8
    assert Image.open(io.BytesIO(cut.content)).size == (cut.width, cut.height)


@needs_jpegtran
def test_real_files_are_the_same_in_tiles_or_stay(test_data: Path) -> None:
    folder = test_data / "awkward"
    names: dict[str, Any] = json.loads((folder / "MANIFEST.json").read_text())["images"]
    rng, outcomes = random.Random(0), {"tiled": 0, "unchanged": 0}
    for name in names:
        content = (folder / "images" / name).read_bytes()
        tiled = STORE.convert(content)
        outcomes["unchanged" if tiled is None else "tiled"] += 1
        if tiled is not None:
            check_crops(content, tiled, rng, 3)
            assert STORE.convert(tiled) == tiled, "the same bytes again"
    assert outcomes["tiled"] > 50
    assert outcomes["unchanged"] > 75, "all that are refused, and other formats"


@needs_jpegtran
def test_what_cannot_be_in_tiles_stays_as_it_is() -> None:
    content = jpeg(1, 64, 48)
    assert STORE.convert(content) is not None
    for other in (
        b"",
        encoded(picture(1), "PNG"),
        content[:-200],
        content[:100] + b"\xff\xd9" + content[100:],
        encoded(np.dstack([picture(1), picture(2)[..., :1]]), "TIFF"),
        cjpeg(picture(4, 200, 150), "-sample", "2x2,1x2"),  # one of Pillow's: TurboJPEG has no name for it
    ):
        assert STORE.convert(other) is None
    assert TiledJpegs(max_pixels=64 * 48 - 1).convert(content) is None, "more pixels than the cap"


@needs_jpegtran
def test_an_index_that_lies_is_passed_over() -> None:
    content = noisy_jpeg(5, 200, 120)
    tiled = STORE.convert(content)
    assert tiled is not None
    at = tiled.index(TILE_INDEX) + len(TILE_INDEX)
    first, second = struct.unpack_from(">HH", tiled, at)
    lies = [
        tiled[:at] + struct.pack(">HH", first + 1, second - 1) + tiled[at + 4 :],
        tiled[:at] + struct.pack(">HH", first + second + 2, 0) + tiled[at + 4 :],
        tiled[:at] + bytes(4) + tiled[at + 4 :],
        tiled + b"behind the end",
        tiled[: tiled.index(TILE_INDEX) - 2]
        + struct.pack(">H", 2 + len(TILE_INDEX))
        + TILE_INDEX
        + tiled[tiled.index(b"\xff\xc0") :],
        # The index of one picture before the coded data of another.
        tiled[: at - len(TILE_INDEX) - 4]
        + tiled[at - len(TILE_INDEX) - 4 : tiled.index(b"\xff\xc0")]
        + content[content.index(b"\xff\xc0") :],
    ]
    expected = open_picture(memoryview(content), max_pixels=MANY).region(Box(9, 8, 90, 60), 90, 60).copy()
    for lie in lies:
        assert tiles_of(lie) is None
        found = open_picture(memoryview(lie), max_pixels=MANY).region(Box(9, 8, 90, 60), 90, 60)
        assert np.array_equal(found, expected)


@needs_jpegtran
def test_markers_in_a_wrong_order_are_no_tiles() -> None:
    tiled = bytearray(STORE.convert(noisy_jpeg(5, 200, 120)) or b"")
    tiled[tiled.index(b"\xff\xd1") + 1] = 0xD2
    assert tiles_of(tiled) is None


@needs_jpegtran
def test_damaged_tiles_are_no_picture() -> None:
    tiled = STORE.convert(noisy_jpeg(5, 200, 120))
    assert tiled is not None
    for broken in (tiled[:-40], tiled[: len(tiled) // 2]):
        with pytest.raises(Undecodable):
            open_picture(memoryview(broken), max_pixels=MANY).region(Box(9, 8, 90, 60), 90, 60)


def test_tiles_divide_the_row_and_fit_the_index() -> None:
    assert choose_interval(Grid(16, 16, 32, 24)) == 4
    assert choose_interval(Grid(8, 8, 64, 48)) == 8, "64 pixels again"
    assert choose_interval(Grid(16, 16, 26, 24)) == 2, "nearer than 13"
    assert choose_interval(Grid(16, 16, 31, 24)) == 1, "a prime number of MCUs"
    assert choose_interval(Grid(8, 8, 3, 3)) == 3
    assert choose_interval(Grid(8, 8, 4000, 80)) == 10, "with 8 there would be more tiles than fit"
    assert choose_interval(Grid(8, 8, 1, 8000)) == 1
    assert choose_interval(Grid(8, 8, 1, 40000)) is None


def test_a_jpeg_without_restart_markers_gets_no_index() -> None:
    assert add_tile_index(jpeg(1)) is None
    assert add_tile_index(b"\xff\xd8\xff") is None
    assert read_grid(memoryview(encoded(picture(1), "PNG"))) is None


def test_the_worked_example_is_what_is_written() -> None:
    page = Path(__file__).parents[2] / "docs" / "formats" / "tiled_jpeg.md"
    content = from_hexdump(page.read_text(encoding="utf-8"), 1)
    tiles = tiles_of(content)
    assert tiles.begins.shape == (2, 2)
    index = content.index(TILE_INDEX) - 4
    length = struct.unpack_from(">H", content, index + 2)[0] + 2
    assert add_tile_index(content[:index] + content[index + length :]) == content


def test_without_jpegtran_there_is_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no jpegtran") as caught:
        STORE.versions()
    assert "apt-get install libjpeg-turbo-progs" in str(caught.value)
    (tmp_path / "jpegtran").write_text("not a program")
    (tmp_path / "jpegtran").chmod(0o755)
    with pytest.raises(ConfigError, match="cannot be run"):
        STORE.versions()
