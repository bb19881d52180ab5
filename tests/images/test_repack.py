"""A data set stored anew: the same examples, labels, keys and order; killed, continued, refused, remote."""

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from outlast.cli.main import run_command_line
from outlast.errors import ConfigError, ShardError
from outlast.images.decode import Box, Undecodable, open_picture
from outlast.images.import_tars import import_tars
from outlast.images.index import open_index
from outlast.images.manifest import read_image_manifest
from outlast.images.pixels import RawPixels
from outlast.images.records import FieldRules
from outlast.images.repack import repack_images
from outlast.images.verify import describe_images, summarize_images, verify_images
from support.command import Command, kill_when
from support.datasets import opened
from support.files import serving_folder
from support.hostile import resealed
from support.images import encoded, jpeg, picture, write_images, write_tar

MANY = 2**26
PIXELS = RawPixels(short_side=24, max_pixels=MANY)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def repack(manifest: str, out: Path, pixels: RawPixels, num_processes: int = 1) -> str:
    return repack_images(manifest, str(out), pixels, num_processes=num_processes)


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # pyright: ignore[reportOptionalMemberAccess]


def test_examples_labels_keys_and_order_are_kept(tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "src", [5, 4, 3], broken=[2, 10])
    url = repack(manifest, tmp_path / "out", PIXELS, num_processes=2)
    before, after = read_image_manifest(manifest)[0], read_image_manifest(url)[0]
    assert after.num_classes == before.num_classes
    assert verify_images(url) == []
    number = 0
    for split, entries in before.splits.items():
        for old, new in zip(entries, after.splits[split], strict=True):
            assert (new.name, new.num_examples) == (old.name, old.num_examples)
            found, expected = members(tmp_path / "out" / new.name), members(tmp_path / "src" / old.name)
            index = open_index(opened(tmp_path / "out" / new.index.name), new)
            tar = (tmp_path / "out" / new.name).read_bytes()
            for offset, size, label in zip(*(column.tolist() for column in index), strict=True):
                key, content = f"{number:06d}", tar[offset : offset + size]
                assert label == number
                assert found[f"{key}.cls"] == expected[f"{key}.cls"]
                field = "ppm" if number not in (2, 10) else "jpg"
                assert found[f"{key}.{field}"] == content
                if number in (2, 10):
                    assert content == expected[f"{key}.jpg"], "what cannot be decoded stays as it is"
                number += 1
    described = describe_images(url)
    assert described["provenance"]["repack"]["unchanged"] == {"train": 1, "validation": 1}
    assert summarize_images(described)["stored as"] == "pixels, 2 images as they were"


def test_a_repacking_is_not_gone_on_with_by_another_pillow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_images(tmp_path / "src", [3, 2])
    repack(manifest, tmp_path / "out", PIXELS)
    versions = {**PIXELS.versions(), "pillow": "1.0"}
    monkeypatch.setattr(RawPixels, "versions", lambda _: versions)
    repack(manifest, tmp_path / "out", PIXELS)  # whole: nothing is computed
    for name in ("manifest.json", "done/00001.json"):
        (tmp_path / "out" / name).unlink()
    with pytest.raises(ShardError, match=r"was begun with pillow .*here is 1.0[\s\S]*install pillow"):
        repack(manifest, tmp_path / "out", PIXELS)


def test_a_repacking_goes_on_where_it_stopped(tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "src", [3, 3, 2])
    repack(manifest, tmp_path / "out", PIXELS)
    whole = contents(tmp_path / "out")
    for name in ("manifest.json", "done/00001.json", "shard-000001.index.safetensors"):
        (tmp_path / "out" / name).unlink()
    kept = (tmp_path / "out" / "shard-000000.tar").stat().st_ino
    repack(manifest, tmp_path / "out", PIXELS)
    assert contents(tmp_path / "out") == whole, "the same bytes"
    assert (tmp_path / "out" / "shard-000000.tar").stat().st_ino == kept, "what was finished stays"
    with pytest.raises(ShardError, match="another corpus or configuration"):
        repack(manifest, tmp_path / "out", RawPixels(short_side=24, max_pixels=5))


@pytest.mark.long
def test_a_killed_repacking_leaves_nothing_to_clean(local_command: Command, tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "src", [40, 40, 40])
    line = [
        "shards",
        "repack",
        manifest,
        "--store",
        "pixels",
        "--short-side",
        "24",
        "--processes",
        "2",
        "--out",
    ]
    local_command.run(*line, tmp_path / "whole")
    for name in ("plan.json", "done/00000.json", "shard-000000.tar"):
        process = local_command.start(*line, tmp_path / name.replace("/", "-"))
        kill_when(process, (tmp_path / name.replace("/", "-") / name).exists)
        local_command.run(*line, tmp_path / name.replace("/", "-"))
        assert contents(tmp_path / name.replace("/", "-")) == contents(tmp_path / "whole")


def test_a_remote_set_and_damaged_ones(tmp_path: Path) -> None:
    manifest = write_images(tmp_path / "src", [3, 2])
    expected = read_image_manifest(repack(manifest, tmp_path / "a", PIXELS))[0].fingerprint
    with serving_folder(tmp_path / "src") as url:
        found = repack(f"{url}/manifest.json", tmp_path / "b", PIXELS)
    assert read_image_manifest(found)[0].fingerprint == expected
    with pytest.raises(ConfigError, match="over itself"):
        repack(manifest, tmp_path / "src", PIXELS)
    for name, message in (
        ("shard-000000.tar", "The tar is not"),
        ("shard-000000.index.safetensors", "The index is not"),
    ):
        path = tmp_path / "src" / name
        sound = path.read_bytes()
        path.write_bytes(
            sound[:-700] + bytes([sound[-700] ^ 1]) + sound[-699:] if len(sound) > 700 else sound[:-1] + b"\7"
        )
        with pytest.raises(ShardError, match=message) as caught:
            repack(manifest, tmp_path / f"c{name}", PIXELS)
        assert name in str(caught.value.where)
        path.write_bytes(sound)


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_images(tmp_path / "src", [3, 2])
    line = ["shards", "repack", manifest, "--out", str(tmp_path / "out"), "--processes", "1", "--store"]
    assert run_command_line([*line, "pixels", "--short-side", "7"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "manifest.json")
    shapes = {
        Image.open(io.BytesIO(c)).size
        for n, c in members(tmp_path / "out" / "shard-000000.tar").items()
        if "ppm" in n
    }
    assert {min(shape) for shape in shapes} == {7}
    line[4] = str(tmp_path / "tiles")
    assert run_command_line([*line, "restart"]) == 2
    assert "'restart' is not 'pixels'" in capsys.readouterr().err
    assert not (tmp_path / "tiles").exists()


def test_a_set_in_tiles_is_refused_and_its_tars_make_another(tmp_path: Path) -> None:
    """Older versions stored JPEGs in tiles, which stay JPEGs for every program."""
    manifest = Path(write_images(tmp_path / "src", [3, 2]))
    document = json.loads(manifest.read_text())
    document["provenance"] = {"repack": {"store": "restart"}, "source": document["provenance"]}
    manifest.write_bytes(resealed(document))
    with pytest.raises(ShardError, match="JPEGs in tiles") as caught:
        read_image_manifest(str(manifest))
    assert caught.value.where == str(manifest)
    assert "outlast shards import TAR... --out DIR" in str(caught.value.remedy)
    tars = {"train": [str(tmp_path / "src" / "shard-000000.tar")]}
    assert verify_images(import_tars(tars, str(tmp_path / "again"), FieldRules(), num_processes=1)) == []


def test_long_and_foreign_names_are_kept(tmp_path: Path) -> None:
    names = ["日本/写真", "x" * 300, "deep/" * 40 + "a", os.fsdecode(b"caf\xe9")]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for number, name in enumerate(names):
            for field, content in (("JPG", jpeg(number)), ("cls", str(number).encode())):
                info = tarfile.TarInfo(f"{name}.{field}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    (tmp_path / "t.tar").write_bytes(buffer.getvalue())
    source = import_tars(
        {"train": [str(tmp_path / "t.tar")]}, str(tmp_path / "src"), FieldRules(), num_processes=1
    )
    url = repack(source, tmp_path / "out", PIXELS)
    assert verify_images(url) == []
    assert [*members(tmp_path / "out" / "t.tar")] == [f"{n}.{f}" for n in names for f in ("ppm", "cls")]


def test_pixels_are_upright_and_shrunk_once() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = jpeg(3, 90, 60, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    stored = RawPixels(short_side=30, max_pixels=MANY).convert(content)
    assert stored is not None
    expected = upright.resize((30, 45), Image.Resampling.BILINEAR)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(stored))), np.asarray(expected))
    small = RawPixels(short_side=60, max_pixels=MANY).convert(content)
    assert small is not None
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(small))), np.asarray(upright)), "never enlarged"
    assert RawPixels(short_side=60, max_pixels=90 * 60 - 1).convert(content) is None
    assert RawPixels(short_side=60, max_pixels=MANY).convert(content[:-30]) is None
    assert RawPixels(short_side=10, max_pixels=MANY).convert(encoded(picture(1, 900, 3), "PNG")) is not None


def test_a_name_with_slashes_in_front_is_readable_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "t.tar", [(".//a.jpg", jpeg(1)), (".//a.cls", b"1")])
    source = import_tars({"train": [str(path)]}, str(tmp_path / "src"), FieldRules(), num_processes=1)
    url = repack(source, tmp_path / "out", PIXELS)
    assert [*members(tmp_path / "out" / "t.tar")] == ["a.ppm", "a.cls"]
    assert verify_images(repack(url, tmp_path / "again", PIXELS)) == []


def test_pixels_of_real_files(test_data: Path) -> None:
    folder = test_data / "awkward"
    images: dict[str, Any] = json.loads((folder / "MANIFEST.json").read_text())["images"]
    store = RawPixels(short_side=2**20, max_pixels=MANY)
    for name, expected in images.items():
        stored = store.convert((folder / "images" / name).read_bytes())
        assert (stored is not None) == ("sha256_rgb_pixels" in expected), name
        if stored is not None and (expected.get("exif_orientation") or 1) == 1:
            found = open_picture(memoryview(stored), max_pixels=MANY)
            pixels = found.region(Box(0, 0, found.width, found.height), found.width, found.height)
            assert hashlib.sha256(pixels.tobytes()).hexdigest() == expected["sha256_rgb_pixels"], name


def test_pixels_are_read_where_they_lie() -> None:
    content = encoded(picture(5), "PPM")
    found = open_picture(memoryview(content), max_pixels=MANY)
    region = found.region(Box(3, 4, 20, 10), 20, 10)
    assert np.shares_memory(region, np.frombuffer(content, np.uint8))
    assert np.array_equal(region, picture(5)[4:14, 3:23])


@pytest.mark.parametrize(
    "content",
    [
        b"P6\n40 30\n255\n" + bytes(40 * 30 * 3 - 1),
        b"P6\n0 30\n255\n" + bytes(100),
        b"P6\n99999 99999\n255\n" + bytes(100),
        b"P6\n4294967297 1\n255\n" + bytes(100),
        b"P6 40",
    ],
)
def test_pixels_that_lie_are_refused(content: bytes) -> None:
    with pytest.raises(Undecodable):
        open_picture(memoryview(content), max_pixels=MANY)


@pytest.mark.parametrize(
    "header", [b"P6\n# a comment\n40 30\n255\n", b"P6\n40 30\n# x\n255\n", b"P6  40 30 255\n"]
)
def test_odd_headers_are_pillows(header: bytes) -> None:
    found = open_picture(memoryview(header + picture(1).tobytes()), max_pixels=MANY)
    assert np.array_equal(found.region(Box(0, 0, 40, 30), 40, 30), picture(1))


def test_a_set_of_other_formats_stays_or_is_decoded(tmp_path: Path) -> None:
    grey = encoded(picture(1)[..., 0], "PNG")
    path = write_tar(
        tmp_path / "t.tar", [("a.png", grey), ("a.cls", b"3"), ("b.png", b"none"), ("b.cls", b"1")]
    )
    source = import_tars({"train": [str(path)]}, str(tmp_path / "src"), FieldRules(), num_processes=1)
    repack(source, tmp_path / "pixels", PIXELS)
    assert [*members(tmp_path / "pixels" / "t.tar")] == ["a.ppm", "a.cls", "b.png", "b.cls"]
