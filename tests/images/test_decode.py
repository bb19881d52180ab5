"""Real and broken image files: decoded to the last bit as Pillow does, turned upright, or refused."""

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from outlast.images import decode
from outlast.images.decode import (
    Box,
    Pixels,
    Undecodable,
    mirror,
    open_picture,
    resize_into,
)
from support.images import encoded, jpeg, picture

MANY = 2**26
IS_LIKE = 12
"""Mean difference of two likenesses of a picture of large squares."""


def whole(content: bytes, max_pixels: int = MANY) -> Pixels:
    found = open_picture(memoryview(content), max_pixels=max_pixels)
    return found.region(Box(0, 0, found.width, found.height), found.width, found.height).copy()


def test_real_files_are_what_pillow_reads(test_data: Path) -> None:
    folder = test_data / "awkward"
    images: dict[str, Any] = json.loads((folder / "MANIFEST.json").read_text())["images"]
    outcomes: dict[str, int] = {"equal": 0, "upright": 0, "refused": 0}
    for name, expected in images.items():
        content = (folder / "images" / name).read_bytes()
        if "sha256_rgb_pixels" not in expected:
            with pytest.raises(Undecodable):
                whole(content)
            outcomes["refused"] += 1
            continue
        pixels = whole(content)
        if (expected.get("exif_orientation") or 1) == 1:
            assert hashlib.sha256(pixels.tobytes()).hexdigest() == expected["sha256_rgb_pixels"], name
            outcomes["equal"] += 1
        else:
            upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
            assert np.array_equal(pixels, np.asarray(upright)), name
            outcomes["upright"] += 1
    assert outcomes == {"equal": 78, "upright": 10, "refused": 75}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = jpeg(5, 48, 32, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    assert np.array_equal(whole(content), expected)
    found = open_picture(memoryview(content), max_pixels=MANY)
    assert (found.height, found.width) == expected.shape[:2]
    box = Box(3, 5, 20, 11)
    assert np.array_equal(found.region(box, 20, 11), expected[5:16, 3:23])


def test_a_region_is_shrunk_while_decoding_and_shows_the_same() -> None:
    content = jpeg(7, 1600, 1200)
    found = open_picture(memoryview(content), max_pixels=MANY)
    box = Box(400, 200, 800, 600)
    large = found.region(box, 800, 600).copy()
    assert large.shape == (600, 800, 3)
    small = found.region(box, 100, 75)
    assert small.shape == (75, 100, 3), "an eighth, and no less than was asked for"
    shrunk = np.asarray(Image.fromarray(large).resize((100, 75), Image.Resampling.BOX))
    assert np.abs(shrunk.astype(int) - small).mean() < IS_LIKE
    assert found.region(box, 201, 75).shape == (225, 300, 3), "three eighths"


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP", "PPM", "GIF"])
def test_other_formats_by_pillow(kind: str) -> None:
    pixels = picture(3)
    content = encoded(pixels, kind, **({"lossless": True} if kind == "WEBP" else {}))
    if kind == "GIF":
        assert np.abs(whole(content).astype(int) - pixels).mean() < IS_LIKE
    else:
        assert np.array_equal(whole(content), pixels)


def test_grey_and_transparent_pictures_have_three_channels() -> None:
    grey = picture(1)[..., 0]
    assert np.array_equal(whole(encoded(grey, "PNG")), np.repeat(grey[..., None], 3, axis=2))
    assert whole(encoded(grey, "JPEG")).shape == (*grey.shape, 3)
    alpha = np.dstack([picture(2), picture(3)[..., :1]])
    assert np.array_equal(whole(encoded(alpha, "PNG")), alpha[..., :3])
    palette = Image.fromarray(picture(4)).quantize(16)
    palette.info["transparency"] = bytes(16)
    buffer = io.BytesIO()
    palette.save(buffer, "PNG", transparency=bytes(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert whole(buffer.getvalue()).shape == picture(4).shape


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot identify"),
        (b"%!PS-Adobe-3.0 EPSF-3.0", "cannot identify"),
        (jpeg(1)[:-40], "truncated"),
        (jpeg(1)[:60], "cannot identify|[Tt]runcated|broken"),
        (encoded(picture(1), "PNG")[:-100], "truncated|unrecognized|broken|SyntaxError|image file"),
    ],
)
def test_what_is_no_picture_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(Undecodable, match=message):
        whole(content)


def test_pixels_are_capped_before_anything_is_decoded() -> None:
    for content in (jpeg(1, 40, 30), encoded(picture(1, 40, 30), "PNG")):
        assert whole(content, max_pixels=1200).shape == (30, 40, 3)
        with pytest.raises(Undecodable, match="40 x 30 pixels are more than"):
            whole(content, max_pixels=1199)
    bomb = bytearray(encoded(picture(1, 40, 30), "PPM"))
    with pytest.raises(Undecodable):
        whole(bytes(bomb.replace(b"40 30", b"60000 60000")))


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_scans_times_pixels_are_capped_before_anything_is_decoded(mode: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(picture(0)).convert(mode).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    assert whole(content, max_pixels=1200).shape == (30, 40, 3)
    last = content.rindex(b"\xff\xda")
    many = content[:-2] + content[last:-2] * 100 + content[-2:]
    with pytest.raises(Undecodable, match=r"scans of 40 x 30 .* more than 32 times stream\.images\.max_pix"):
        whole(many, max_pixels=1200)
    decode.open_picture(memoryview(many), max_pixels=12000)


def test_the_cap_is_ours_also_where_pillow_has_a_lower_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    content = encoded(picture(1, 40, 30), "PNG")
    assert whole(content, max_pixels=1200).shape == (30, 40, 3)
    with pytest.raises(Undecodable, match=r"more than stream\.images\.max_pixels"):
        whole(content, max_pixels=1199)


@pytest.mark.parametrize(("kind", "step"), [("PNG", 1), ("TIFF", 1), ("TIFF", -1), ("PPM", 1)])
def test_16_bits_of_grey_are_converted_as_pillow_does_and_said_once(
    kind: str, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    dark = (np.arange(1200, dtype=np.uint16) % 256).reshape(30, 40)
    decode._warn_of_white.cache_clear()  # pyright: ignore[reportPrivateUsage]
    order = "<u2" if step > 0 else ">u2"
    assert np.array_equal(whole(encoded(dark.astype(order), kind))[..., 1], dark)
    assert caplog.messages == [], "nothing is lost"
    for _ in range(2):
        bright = whole(encoded((dark * 256).astype(order), kind))
        assert np.array_equal(bright[..., 1], np.where(dark, 255, 0))
    assert ["above 255 are white" in message for message in caplog.messages] == [True]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_pictures_without_a_known_scale_are_undecodable(dtype: str) -> None:
    content = encoded(picture(1)[..., 0].astype(dtype), "TIFF")
    with pytest.raises(Undecodable, match="convert it to 8 bits"):
        whole(content)


def test_bytes_between_segments_do_not_hide_the_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = jpeg(5, 48, 32, exif=exif)
    behind_exif = 4 + int.from_bytes(content[4:6], "big")
    stray = content[:behind_exif] + b"\0\0\0" + content[behind_exif:]
    assert np.array_equal(whole(stray), whole(content))


def test_a_reason_is_the_same_in_every_run() -> None:
    with pytest.raises(Undecodable) as caught:
        whole(b"no picture at all")
    assert str(caught.value) == "cannot identify its format: it begins with b'no pictu'"


def test_resizing_is_bilinear_and_far_shrinking_takes_means() -> None:
    step = np.zeros((4, 4, 3), np.uint8)
    step[:, 2:] = 200
    target = np.empty((4, 8, 3), np.uint8)
    resize_into(step, target)
    assert target[0, :, 0].tolist() == [0, 0, 0, 50, 150, 200, 200, 200]
    checks = np.indices((64, 64)).sum(axis=0) % 2 * 200
    small = np.empty((8, 8, 3), np.uint8)
    resize_into(np.repeat(checks[..., None], 3, 2).astype(np.uint8), small)
    assert (small == 100).all()


def test_mirroring_exchanges_left_and_right_in_place() -> None:
    for width in (*range(1, 70), 224):
        pixels = picture(width, width, 9)
        mirrored = pixels.copy()
        mirror(mirrored)
        assert np.array_equal(mirrored, pixels[:, ::-1]), width


RESIZE = """
import hashlib
import numpy as np
from outlast.prng import uniform_bits
from outlast.images.decode import resize_into

digest = hashlib.sha256()
target = np.empty((224, 224, 3), np.uint8)
for number in range(60):
    height, width = 60 + 7 * number, 40 + 6 * number
    pixels = (uniform_bits(height * width * 3, number) & np.uint64(255)).astype(np.uint8)
    resize_into(pixels.reshape(height, width, 3)[3:, 5:], target)
    digest.update(target)
print(digest.hexdigest())
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the names of the vector units are those of x86-64"
)
def test_a_resize_does_not_depend_on_vector_units() -> None:
    units = "SSE4_1,SSE4.1,SSSE3,SSE4_2,SSE4.2,POPCNT,AVX,FP16,FMA3,AVX2,AVX512_SKX,AVX512-SKX"
    found = {
        subprocess.run(
            [sys.executable, "-c", RESIZE],
            env={**os.environ, **given},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for given in ({}, {"OPENCV_CPU_DISABLE": units}, {"OPENCV_IPP": "disabled"})
    }
    assert len(found) == 1
