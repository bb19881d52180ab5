"""Sets of images that are complete, with a tar or an index lost: the same line makes the same bytes again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.errors import ShardError
from outlast.images.import_tars import import_tars
from outlast.images.pack import PackConfig, pack_images
from outlast.images.pixels import RawPixels
from outlast.images.records import FieldRules
from outlast.images.repack import repack_images
from support.images import jpeg, write_images


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def imported(folder: Path, out: Path) -> str:
    write_images(folder, [3, 2])
    return import_tars({"train": [f"{folder}/*.tar"]}, str(out), FieldRules(), num_processes=1)


def packed(folder: Path, out: Path) -> str:
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(3):
            (folder / label / f"{number}.jpg").write_bytes(jpeg(number))
    return pack_images({"train": str(folder)}, str(out), PackConfig(most_images=3), num_processes=1)


def repacked(folder: Path, out: Path) -> str:
    store = RawPixels(short_side=24, max_pixels=2**26)
    return repack_images(write_images(folder, [3, 2]), str(out), store, num_processes=1)


@pytest.mark.parametrize("make", [imported, packed, repacked])
def test_what_is_lost_is_made_again(make: Callable[[Path, Path], str], tmp_path: Path) -> None:
    make(tmp_path / "source", tmp_path / "out")
    expected = contents(tmp_path / "out")
    tar, other = sorted((tmp_path / "out").glob("*.tar"))
    tar.unlink()
    index = other.with_suffix(".index.safetensors")
    index.write_bytes(index.read_bytes()[:-1])
    make(tmp_path / "source", tmp_path / "out")
    assert contents(tmp_path / "out") == expected


def test_a_tar_that_lies_in_the_set_itself_cannot_be_made_again(tmp_path: Path) -> None:
    write_images(tmp_path, [3, 2])
    (tmp_path / "manifest.json").unlink()
    line = {"train": sorted(map(str, tmp_path.glob("*.tar")))}
    for path in (*tmp_path.glob("*.index.safetensors"), *tmp_path.glob("done/*"), tmp_path / "plan.json"):
        path.unlink(missing_ok=True)
    import_tars(line, str(tmp_path), FieldRules(), num_processes=1)
    tar = Path(line["train"][0])
    tar.write_bytes(tar.read_bytes()[:-512])
    with pytest.raises(ShardError, match="another corpus or configuration"):
        import_tars(line, str(tmp_path), FieldRules(), num_processes=1)
