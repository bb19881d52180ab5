"""Existing tars become a data set: indexed where they lie, copied otherwise, found again after a kill."""

import io
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from outlast.cli.main import main
from outlast.errors import ConfigError, OutlastError, ShardError
from outlast.images.import_tars import import_tars
from outlast.images.index import open_index, read_index
from outlast.images.manifest import check_num_classes, parse_image_manifest, read_image_manifest
from outlast.images.pixels import RawPixels
from outlast.images.records import FieldRules
from outlast.images.repack import repack_images
from outlast.images.verify import describe_images, summarize_images, verify_images
from outlast.shards.manifest import read_manifest
from outlast.storage import open_store
from support.datasets import opened
from support.files import serving_folder
from support.hostile import resealed
from support.images import jpeg, write_images, write_tar
from support.s3 import S3Server, s3_variables


def files(first: int, count: int) -> list[tuple[str, bytes]]:
    numbers = range(first, first + count)
    return [part for n in numbers for part in ((f"{n}.jpg", jpeg(n)), (f"{n}.cls", str(n % 7).encode()))]


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    for number in range(3):
        write_tar(tmp_path / "tars" / f"t-{number:03d}.tar", files(10 * number, 4 + number))
    return tmp_path / "tars"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_tars_in_place_are_indexed_and_not_touched(tars: Path) -> None:
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in tars.iterdir()}
    url = import_tars({"train": [f"{tars}/t-{{000..002}}.tar"]}, str(tars), FieldRules(), num_processes=1)
    assert all((path.stat().st_ino, path.read_bytes()) == found for path, found in before.items())
    manifest, _ = read_image_manifest(url)
    entries = manifest.shards("train")
    assert [entry.num_examples for entry in entries] == [4, 5, 6]
    assert manifest.num_classes == 7
    for number, entry in enumerate(entries):
        index = open_index(opened(tars / entry.index.name), entry)
        content = (tars / entry.name).read_bytes()
        for record, (offset, size, label) in enumerate(zip(*index, strict=True)):
            assert content[offset : offset + size] == jpeg(10 * number + record)
            assert label == (10 * number + record) % 7
        assert (index.offset.dtype, index.size_bytes.dtype, index.label.dtype) == (
            np.uint64,
            np.uint32,
            np.int32,
        )


def test_a_tar_in_place_that_was_cut_is_not_to_be_deleted(tars: Path) -> None:
    names = {"train": [f"{tars}/t-{{000..002}}.tar"]}
    import_tars(names, str(tars), FieldRules(), num_processes=1)
    write_tar(tars / "t-002.tar", files(20, 2))
    with pytest.raises(ShardError, match=r"own lie in it.* delete plan\.json, manifest\.json and"):
        import_tars(names, str(tars), FieldRules(), num_processes=1)
    for name in ("plan.json", "manifest.json"):
        (tars / name).unlink()
    shutil.rmtree(tars / "done")
    manifest, _ = read_image_manifest(import_tars(names, str(tars), FieldRules(), num_processes=1))
    assert [entry.num_examples for entry in manifest.shards("train")] == [4, 5, 2]


def test_tars_from_elsewhere_are_copied_byte_for_byte(tars: Path, tmp_path: Path) -> None:
    splits = {"train": [f"{tars}/t-000.tar", f"{tars}/t-002.tar"], "validation": [f"{tars}/t-001.tar"]}
    url = import_tars(splits, str(tmp_path / "out"), FieldRules(), num_processes=2)
    manifest, _ = read_image_manifest(url)
    assert {split: len(entries) for split, entries in manifest.splits.items()} == {
        "train": 2,
        "validation": 1,
    }
    for path in tars.glob("*.tar"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    with pytest.raises(ShardError, match="no split 'test'"):
        manifest.shards("test")


def test_tars_on_a_server_and_in_a_bucket(
    tars: Path, tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_variables(s3_server.url).items():
        monkeypatch.setenv(name, value)
    here = import_tars({"train": [f"{tars}/t-{{000..002}}.tar"]}, str(tmp_path / "a"), FieldRules())
    expected = read_image_manifest(here)[0].fingerprint
    with serving_folder(tars) as url:
        tars_there = {"train": [f"{url}/t-{{000..002}}.tar"]}
        there = import_tars(tars_there, str(tmp_path / "b"), FieldRules(), copy=True)
    assert read_image_manifest(there)[0].fingerprint == expected
    bucket = open_store(f"{s3_server.new_bucket()}/tars")
    for path in tars.glob("*.tar"):
        bucket.create(path.name, [path.read_bytes()])
    found = import_tars(
        {"train": [f"{bucket.url}/t-{{000..002}}.tar"]}, bucket.url, FieldRules(), num_processes=1
    )
    assert read_image_manifest(found)[0].fingerprint == expected


def test_an_import_goes_on_where_it_stopped(tars: Path, tmp_path: Path) -> None:
    def run(folder: str) -> dict[str, bytes]:
        splits = {"train": [f"{tars}/t-{{000..002}}.tar"]}
        import_tars(splits, str(tmp_path / folder), FieldRules(), num_processes=1)
        return contents(tmp_path / folder)

    whole = run("out")
    for name in ("manifest.json", "done/00001.json", "t-001.index.safetensors"):
        (tmp_path / "out" / name).unlink()
    kept = (tmp_path / "out" / "t-000.tar").stat().st_ino
    assert run("out") == whole
    assert (tmp_path / "out" / "t-000.tar").stat().st_ino == kept, "what was finished was not done again"
    assert run("out") == whole, "nothing to do"
    with pytest.raises(ShardError, match="another corpus or configuration"):
        import_tars({"train": [f"{tars}/t-000.tar"]}, str(tmp_path / "out"), FieldRules())


def test_what_cannot_be_imported_says_so(tars: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="No tar"):
        import_tars({}, out, FieldRules())
    with pytest.raises(ShardError, match="no such tar"):
        import_tars({"train": [f"{tars}/t-{{000..003}}.tar"]}, out, FieldRules())
    with pytest.raises(ConfigError, match=r"Two tars have the name 't-000\.tar'"):
        import_tars({"train": [f"{tars}/t-000.tar"], "validation": [f"{tars}/t-000.tar"]}, out, FieldRules())
    with pytest.raises(ShardError, match=r"This is a folder[\s\S]*/\*\.tar'[\s\S]*outlast shards images"):
        import_tars({"train": [str(tars)]}, out, FieldRules())
    with pytest.raises(ConfigError, match="cannot be that of a shard"):
        import_tars({"train": [str(write_tar(tmp_path / "a b.tar", files(0, 1)))]}, out, FieldRules())
    (tmp_path / "cut.tar").write_bytes((tars / "t-000.tar").read_bytes()[:1500])
    splits = {"train": [f"{tars}/t-000.tar", str(tmp_path / "cut.tar")]}
    with pytest.raises(ShardError, match=r"the others are kept. Portion 1: The tar ends") as caught:
        import_tars(splits, out, FieldRules(), num_processes=1)
    assert "cut.tar, byte " in str(caught.value.where)
    empty = write_tar(tmp_path / "empty.tar", [("README", b"")])
    with pytest.raises(ShardError, match="no example"):
        import_tars({"train": [str(empty)]}, str(tmp_path / "none"), FieldRules(), num_processes=1)


def test_each_failing_tar_is_told_once(tars: Path, tmp_path: Path) -> None:
    for number in (0, 2):
        path = tars / f"t-{number:03d}.tar"
        path.write_bytes(path.read_bytes()[:1500])
    line = [
        "shards",
        "import",
        f"{tars}/t-{{000..002}}.tar",
        "--out",
        str(tmp_path / "out"),
        "--processes",
        "1",
    ]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 1
    for number in (0, 2):
        assert f"{done.output}{done.exception}".count(f"t-{number:03d}.tar") == 1
    assert "portion 2 failed; the others go on" in done.output


@pytest.mark.parametrize("name", ["a b.tar", ".a.tar", "a" * 190 + ".tar", "é.tar"])
def test_a_name_that_no_shard_may_have_is_refused_with_the_rule(name: str, tmp_path: Path) -> None:
    tar = write_tar(tmp_path / name, files(0, 1))
    with pytest.raises(ConfigError, match="cannot be that of a shard") as caught:
        import_tars({"train": [str(tar)]}, str(tmp_path / "out"), FieldRules(), num_processes=1)
    assert "no dot in front, and not more than 200 characters" in str(caught.value.expected)


def test_links_and_absolute_names_are_skipped_where_that_is_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as tar:
        for name, content in (*files(1, 2), ("/etc/x.jpg", b"abc"), ("../y.jpg", b"abc"), *files(3, 1)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            if name == "1.jpg":
                link = tarfile.TarInfo("1.txt")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(link)
    with pytest.raises(ShardError, match=r"'1\.txt' is a symbolic link\.") as caught:
        import_tars({"train": [str(path)]}, str(tmp_path / "stop"), FieldRules(), num_processes=1)
    assert "--on-bad skip" in str(caught.value.remedy)
    out = str(tmp_path / "skip")
    url = import_tars({"train": [str(path)]}, out, FieldRules(on_bad="skip"), num_processes=1)
    manifest, _ = read_image_manifest(url)
    assert manifest.shards("train")[0].num_examples == 3
    assert manifest.provenance["counts"]["train"]["skipped_members"] == 3
    assert "3 skipped members were left out" in caplog.messages
    shown = [message for message in caplog.messages if message.startswith("skipped: t.tar, byte ")]
    assert [message.rpartition(": ")[2] for message in shown] == [
        "'1.txt' is a symbolic link",
        "'/etc/x.jpg' has an absolute name",
        "'../y.jpg' has a name with `..` in it",
    ]
    assert verify_images(url) == []
    assert "3 skipped members of train" in summarize_images(describe_images(url))["left out"]
    pixels = RawPixels(short_side=16, max_pixels=2**20)
    again = repack_images(url, str(tmp_path / "again"), pixels, num_processes=1)
    assert verify_images(again) == []


def test_patterns_name_the_tars_that_are_there(
    tars: Path, tmp_path: Path, s3_server: S3Server, s3_environment: pytest.MonkeyPatch
) -> None:
    def names(*patterns: str) -> list[str]:
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        url = import_tars({"train": patterns}, str(out), FieldRules(), num_processes=1)
        return [entry.name for entry in read_image_manifest(url)[0].shards("train")]

    every = [f"t-{number:03d}.tar" for number in range(3)]
    assert names(f"{tars}/*.tar") == every
    assert names(f"{tars}/t-{{002,000}}*.tar", f"{tars}/t-00[1].tar") == [every[2], every[0], every[1]]
    bucket = open_store(f"{s3_server.new_bucket()}/some/tars")
    for path in tars.glob("*.tar"):
        bucket.create(path.name, [path.read_bytes()])
    bucket.create("t-000.txt", [b"not meant"])
    assert names(f"{bucket.url}/t-*.tar") == every
    with pytest.raises(ShardError, match="No file matches") as caught:
        names(f"{bucket.url}/u-*.tar")
    assert caught.value.where == f"{bucket.url}/u-*.tar"
    with serving_folder(tars) as url, pytest.raises(ShardError, match="gives no list of its files") as caught:
        names(f"{url}/t-*.tar")
    assert "braces" in str(caught.value.remedy)


@pytest.mark.parametrize("names", [("x", "x.tar"), ("x.index.safetensors", "x.tar"), ("plan.json",)])
def test_a_tar_takes_no_name_that_the_data_set_needs(names: tuple[str, ...], tmp_path: Path) -> None:
    tars = [str(write_tar(tmp_path / name, files(0, 1))) for name in names]
    with pytest.raises(ConfigError, match="is taken"):
        import_tars({"train": tars}, str(tmp_path / "out"), FieldRules(), num_processes=1)
    assert not (tmp_path / "out").exists()


def test_a_label_far_beyond_the_images_is_refused_until_it_is_repaired(tmp_path: Path) -> None:
    def run(label: int) -> str:
        content = [("a.jpg", jpeg(1)), ("a.cls", str(label).encode())]
        splits = {"train": [str(write_tar(tmp_path / "t.tar", content)), str(good)]}
        return import_tars(splits, str(tmp_path), FieldRules(), num_processes=1)

    good = write_tar(tmp_path / "good.tar", files(1, 3))
    for label in (10**9, 2**16):
        with pytest.raises(
            ShardError, match=f"label {label} would make {label + 1} classes of 4 im"
        ) as caught:
            run(label)
        assert caught.value.where == "t.tar, byte 512, 'a', of the split train"
        assert not (tmp_path / "manifest.json").exists()
    assert (tmp_path / "done" / "00001.json").exists(), "the other tar is not read again"
    url = run(21_840)
    manifest, _ = read_image_manifest(url)
    assert manifest.num_classes == 21_841, "a sample keeps the labels of the whole"
    assert verify_images(url) == []
    with pytest.raises(ShardError, match="would make 70000 classes of 4 images"):
        check_num_classes(replace(manifest, num_classes=70_000), where=url)
    check_num_classes(replace(manifest, num_classes=3, classes=("a", "b", "c")), where=url)


def test_real_tars_of_gnu_tar(test_data: Path, tmp_path: Path) -> None:
    names = [
        f"a-gnutar-{kind}.tar"
        for kind in ("gnu", "oldgnu", "posix", "ustar", "v7", "longnames-pax", "longnames-gnu")
    ]
    rules = FieldRules(on_bad="skip")
    paths = [str(test_data / "awkward" / "tar-gnu" / name) for name in names]
    manifest, _ = read_image_manifest(import_tars({"train": paths}, str(tmp_path), rules, num_processes=1))
    shards = {entry.name: entry for entry in manifest.shards("train")}
    assert {shards[name].num_examples for name in names[:5]} == {8}
    indexes = [open_index(opened(tmp_path / shards[name].index.name), shards[name]) for name in names[:5]]
    assert len({index.label.tobytes() for index in indexes}) == 1
    assert len({index.size_bytes.tobytes() for index in indexes}) == 1


def test_every_awkward_tar_is_imported_whole_or_refused(test_data: Path, tmp_path: Path) -> None:
    folder = test_data / "awkward"
    tars: dict[str, Any] = json.loads((folder / "MANIFEST.json").read_text())["tars"]
    rules = FieldRules(image="jpg;txt;c;h;in", on_bad="skip")
    outcomes = {"imported": 0, "no example": 0, "refused": 0}
    for number, name in enumerate(tars):
        out = tmp_path / f"{number}"
        try:
            url = import_tars({"train": [str(folder / name)]}, str(out), rules, num_processes=1)
        except OutlastError as error:
            assert not (out / "manifest.json").exists()
            assert not list(out.glob("*.tar*")), name
            outcomes["no example" if "no example" in error.message else "refused"] += 1
            continue
        assert verify_images(url) == [], name
        outcomes["imported"] += 1
    assert outcomes == {"imported": 9, "no example": 38, "refused": 41}


def test_damaged_manifests_and_indexes_are_refused(tmp_path: Path) -> None:
    url = write_images(tmp_path, [3, 2])
    content = Path(url).read_bytes()
    with pytest.raises(ShardError, match="holds 'images', not text"):
        read_manifest(url)
    for before, after, message in (
        (b'"num_classes": 5', b'"num_classes": 6', "fingerprint does not match"),
        (b'"num_examples": 3', b'"num_examples": 90', "cannot hold 90 images"),
    ):
        edited = content.replace(before, after)
        assert edited != content
        with pytest.raises(ShardError, match="edited or damaged"):
            parse_image_manifest(edited, where="x")
        with pytest.raises(ShardError, match=message):
            parse_image_manifest(resealed(json.loads(edited)), where="x")
    entry = read_image_manifest(url)[0].shards("train")[0]
    other = read_image_manifest(url)[0].shards("validation")[0]
    index = (tmp_path / entry.index.name).read_bytes()
    with pytest.raises(ShardError, match="tar_sha256 is"):
        read_index(index, other, where="x")
    for column, value, message in (
        (0, 2**40, "beyond the tar"),
        (0, 513, "multiples of 512"),
        (0, 0, "multiples of 512"),
        (1, 0, "no bytes"),
        (1, 2**31, "beyond the tar"),
        (2, 2**32 - 1, "label holds -1"),
    ):
        begin = len(index) - 16 * 3 + (0, 8 * 3, 12 * 3)[column]
        width = 8 if column == 0 else 4
        damaged = index[:begin] + value.to_bytes(width, "little") + index[begin + width :]
        with pytest.raises(ShardError, match=message):
            read_index(damaged, entry, where="x")
