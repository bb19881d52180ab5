"""Images become shards: from folders, lists and Parquet files, the same bytes however often it was killed."""

import csv
import io
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import CorpusError, OutlastError, ShardError
from outlast.images.import_tars import import_tars
from outlast.images.index import open_index
from outlast.images.manifest import ImageManifest, read_image_manifest
from outlast.images.pack import PackConfig, pack_images
from outlast.images.records import FieldRules
from outlast.images.tar_writer import ImageShardWriter
from outlast.images.verify import describe_images, summarize_images, verify_images
from outlast.storage import LocalStore
from support.command import Command, kill_when
from support.datasets import opened
from support.files import from_hexdump
from support.images import encoded, jpeg, picture

CLASSES = ("bird", "cat", "あひる")
COUNT = 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of classes: picture n is of class n mod 3."""
    for number in range(COUNT):
        path = tmp_path / "src" / CLASSES[number % 3] / f"deep{number % 2}" / f"{number:03d}.JPG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    (tmp_path / "src" / "bird" / "Thumbs.db").write_bytes(b"no picture")
    return tmp_path / "src"


def packed(url: str) -> dict[bytes, int]:
    """Return the label of each image of the training split, checked against the tars' own labels."""
    manifest, store = read_image_manifest(url)
    found: dict[bytes, int] = {}
    for entry in manifest.shards("train"):
        path = store.local_path(entry.name)
        assert path is not None
        content = path.read_bytes()
        index = open_index(opened(path.with_name(entry.index.name)), entry)
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            labels = [tar.extractfile(m).read() for m in tar if m.name.endswith(".cls")]  # pyright: ignore[reportOptionalMemberAccess]
        assert [int(label) for label in labels] == index.label.tolist()
        for offset, size, label in zip(*(column.tolist() for column in index), strict=True):
            found[content[offset : offset + size]] = label
    assert verify_images(url) == []
    return found


def pack(source: Path, out: Path, **options: Any) -> str:
    return pack_images({"train": str(source)}, str(out), PackConfig(**options), num_processes=1)


def test_a_folder_of_classes(folder: Path, tmp_path: Path) -> None:
    url = pack(folder, tmp_path / "out", most_images=7)
    assert packed(url) == {jpeg(number): number % 3 for number in range(COUNT)}
    manifest, _ = read_image_manifest(url)
    assert manifest.classes == CLASSES
    assert [entry.num_examples for entry in manifest.shards("train")] == [7, 7, 7, 7, 2]
    assert [entry.name for entry in manifest.shards("train")][-1] == "train-000004.tar"
    lines = summarize_images(describe_images(url))
    assert lines["train"].startswith("30 images in 5 shards")
    assert "あひる" in lines["classes"]


def test_shards_are_bounded_in_bytes_and_mixed(folder: Path, tmp_path: Path) -> None:
    manifest, _ = read_image_manifest(pack(folder, tmp_path / "a", most_bytes=16_384))
    sizes = [entry.size_bytes for entry in manifest.shards("train")]
    assert max(sizes) <= 16_384 + 1024
    labels = list(packed(str(tmp_path / "a" / "manifest.json")).values())
    assert labels != sorted(labels)
    pack(folder, tmp_path / "b", seed=None)
    labels = list(packed(str(tmp_path / "b" / "manifest.json")).values())
    assert labels == sorted(labels)


def test_plain_tar_reads_it_and_an_import_agrees(folder: Path, tmp_path: Path) -> None:
    url = pack(folder, tmp_path / "out")
    tar = tmp_path / "out" / "train-000000.tar"
    listed = subprocess.run(["tar", "-tf", tar], capture_output=True, text=True, check=True)
    assert listed.stdout.splitlines()[:2] == ["000000000.jpg", "000000000.cls"]
    assert listed.stderr == ""
    imported, _ = read_image_manifest(
        import_tars({"train": [str(tar)]}, str(tmp_path / "again"), FieldRules(), num_processes=1)
    )
    assert imported.shards("train") == read_image_manifest(url)[0].shards("train")


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_lists(folder: Path, tmp_path: Path, kind: str) -> None:
    path = folder / f"list.{kind}"
    rows = [(file.relative_to(folder).as_posix(), int(file.stem)) for file in sorted(folder.rglob("*.JPG"))]
    with path.open("w", newline="", encoding="utf-8") as file:
        if kind == "jsonl":
            file.writelines(json.dumps({"image": name, "label": label}) + "\n" for name, label in rows)
        else:
            writer = csv.writer(file, delimiter="," if kind == "csv" else "\t")
            writer.writerows([("label", "image"), *((label, name) for name, label in rows)])
    url = pack(path, tmp_path / "out")
    assert packed(url) == {jpeg(number): number for number in range(COUNT)}
    assert read_image_manifest(url)[0].classes is None


def test_parquet_files_as_hugging_face_has_them(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    contents = [encoded(picture(n), "PNG") if n % 4 == 0 else jpeg(n) for n in range(COUNT)]
    names = json.dumps({"info": {"features": {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}}})
    for part in range(2):
        rows = range(part * 15, part * 15 + 15)
        images = [{"bytes": contents[n], "path": f"{n}.jpg"} for n in rows]
        table = arrow.table({"image": images, "label": [n % 3 for n in rows]})
        table = table.replace_schema_metadata({"huggingface": names})
        (tmp_path / "src").mkdir(exist_ok=True)
        parquet.write_table(table, tmp_path / "src" / f"train-{part:05d}-of-00002.parquet", row_group_size=4)
    url = pack(tmp_path / "src", tmp_path / "out", most_images=6)
    assert packed(url) == {content: n % 3 for n, content in enumerate(contents)}
    manifest = read_image_manifest(url)[0]
    assert manifest.classes == ("a", "b", "c")
    assert [entry.num_examples for entry in manifest.shards("train")] == [6, 6, 3, 6, 6, 3]
    table = arrow.table({"image": [{"bytes": None, "path": "/etc/passwd"}], "label": [0]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(CorpusError, match="The image has 0 bytes") as caught:
        pack(tmp_path / "x.parquet", tmp_path / "none")
    assert "x.parquet, row 0" in str(caught.value.where)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder as ``save_to_disk`` of `datasets` 5.2 writes it, and a file of its cache."""
    arrow, streams = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.ipc")
    names = json.dumps({"info": {"features": {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}}})
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    schema = arrow.schema({"image": kind, "label": arrow.int64()}, {"huggingface": names})
    folder = tmp_path / "saved"
    folder.mkdir()
    for part in range(2):
        rows = list(range(part * 15, part * 15 + 15))
        with streams.new_stream(folder / f"data-{part:05d}-of-00002.arrow", schema) as file:
            for some in (rows[:7], rows[7:]):
                images = [{"bytes": jpeg(n), "path": f"{n}.jpg"} for n in some]
                file.write_batch(
                    arrow.record_batch([arrow.array(images, kind), [n % 3 for n in some]], schema=schema)
                )
    files = [{"filename": f"data-{part:05d}-of-00002.arrow"} for part in range(2)]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": "train"}))
    (folder / "dataset_info.json").write_text("{}")
    (folder / "cache-1234.arrow").write_bytes(b"another data set")
    return folder


def test_a_data_set_that_datasets_saved(saved: Path, tmp_path: Path) -> None:
    url = pack(saved, tmp_path / "out", most_images=6)
    assert packed(url) == {jpeg(n): n % 3 for n in range(COUNT)}
    manifest = read_image_manifest(url)[0]
    assert manifest.classes == ("a", "b", "c")
    assert [entry.num_examples for entry in manifest.shards("train")] == [6, 6, 3, 6, 6, 3]


def test_what_of_a_saved_data_set_is_refused(saved: Path, tmp_path: Path) -> None:
    state, first = saved / "state.json", saved / "data-00000-of-00002.arrow"
    whole, content = state.read_text(), first.read_bytes()
    for listed, message in (
        ('{"_data_files": [{"filename": "../outside.arrow"}]}', "names '../outside.arrow'"),
        ('{"_data_files": [{"filename": "dataset_info.json"}]}', "names 'dataset_info.json'"),
        ("[" * 5000, "cannot be read"),
        ("{}", "cannot be read"),
    ):
        state.write_text(listed)
        with pytest.raises(CorpusError, match=message):
            pack(saved, tmp_path / "out")
    state.write_text(whole)
    first.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorpusError, match="Arrow file cannot be read"):
        pack(saved, tmp_path / "out")
    (saved / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(CorpusError, match=r"(?s)several splits.*/train --validation"):
        pack(saved, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.csv", "image,label\nbird/deep0/000.JPG,\n", "line has no image or no label"),
        ("list.csv", "path,label\nx,1\n", "line has no image or no label"),
        ("list.csv", "image,label\n../outside.jpg,1\n", "outside the folder"),
        ("list.csv", "image,label\n/etc/passwd,1\n", "outside the folder"),
        ("list.csv", "image,label\nnone.jpg,1\n", "no file 'none.jpg'"),
        ("list.csv", "image,label\n", "list is empty"),
        ("list.csv", "image,label\nbird/deep0/000.JPG, -1\n", "label is -1"),
        ("list.csv", "image,label\nbird/deep0/000.JPG,5000000000\n", "label is 5000000000"),
        ("list.csv", "image,label\nbird/deep0/000.JPG,65536\n", "65537 classes of 1 images"),
        ("list.jsonl", "{}\n", "line has no image or no label"),
        ("list.jsonl", "{\n", "cannot be read"),
        ("list.jsonl", "[" * 5000, "cannot be read"),
        ("x.parquet", "no parquet", "Parquet file cannot be read"),
    ],
)
def test_what_is_no_list_is_refused(
    folder: Path, tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / "outside.jpg").write_bytes(jpeg(1))
    (folder / name).write_text(content)
    with pytest.raises(CorpusError, match=message) as caught:
        pack(folder / name, tmp_path / "out")
    assert caught.value.where is not None
    assert name in caught.value.where


def test_labels_are_all_numbers_or_all_names(folder: Path, tmp_path: Path) -> None:
    """A single stray label would otherwise make names of all, sorted as text: 10 before 2."""
    path, other = folder / "list.csv", folder / "other.jsonl"
    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*.JPG"))]

    def labelled(labels: list[str]) -> None:
        rows = (f"{name},{label}\n" for name, label in zip(names, labels, strict=True))
        path.write_text("image,label\n" + "".join(rows))

    numbers = [str(number) for number in range(COUNT)]
    labelled([*numbers[:5], "5 ", *numbers[6:]])
    url = pack(path, tmp_path / "out")
    manifest, _ = read_image_manifest(url)
    assert (manifest.classes, manifest.num_classes) == (None, COUNT)
    assert sorted(packed(url).values()) == list(range(COUNT))
    labelled([*numbers[:5], "five", *numbers[6:]])
    with pytest.raises(CorpusError, match="'five' is a name, but 29 labels are numbers") as caught:
        pack(path, tmp_path / "none")
    assert caught.value.where == f"{path}, line 7"
    labelled(["cat"] * COUNT)
    other.write_text(json.dumps({"image": names[0], "label": 3}))
    sources = {"train": str(path), "validation": str(other)}
    with pytest.raises(CorpusError, match="3 is a number, but 30 labels are names") as caught:
        pack_images(sources, str(tmp_path / "none"), PackConfig(), num_processes=1)
    assert caught.value.where == f"{other}, line 1"


def test_other_names_of_the_same_numbers_are_another_build(folder: Path, tmp_path: Path) -> None:
    path = folder / "list.csv"
    for name in ("cat", "dog"):
        path.write_text(f"image,label\nbird/deep0/000.JPG,{name}\n")
        if name == "cat":
            pack(path, tmp_path / "out")
    with pytest.raises(ShardError, match="another corpus or configuration"):
        pack(path, tmp_path / "out")


def test_a_listed_image_without_a_suffix_is_of_the_type_of_its_bytes(folder: Path, tmp_path: Path) -> None:
    (folder / "photograph").write_bytes(jpeg(1))
    (folder / "list.csv").write_text("image,label\nphotograph,4\n")
    assert packed(pack(folder / "list.csv", tmp_path / "out")) == {jpeg(1): 4}
    with tarfile.open(tmp_path / "out" / "train-000000.tar") as tar:
        assert tar.getnames() == ["000000000.jpg", "000000000.cls"]


def test_a_text_that_is_named_as_a_picture_is_of_no_known_type(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "cat" / "words.jpg").write_text("no picture")
    with pytest.raises(CorpusError, match=r"is of no known type: it begins with b'no pictu'"):
        pack(folder, tmp_path / "out")
    assert len(packed(pack(folder, tmp_path / "skipped", on_bad="skip"))) == COUNT
    assert "1 images were left out" in caplog.text


def write_parquet(path: Path, labels: list[Any], names: list[str] | None = None) -> str:
    """Write a table of pictures as Hugging Face has them; return its path."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [{"bytes": jpeg(n), "path": None} for n in range(len(labels))]
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if names else None
    table = arrow.table({"image": images, "label": labels}).replace_schema_metadata(metadata)
    parquet.write_table(table, path)
    return str(path)


def test_tables_agree_about_the_names_of_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = write_parquet(tmp_path / "train.parquet", [0, 1], ["cat", "dog"])
    out = str(tmp_path / "out")
    for other in (["dog", "cat"], ["cat"], ["cat", "dog", "cow"]):
        held_out = write_parquet(tmp_path / "held_out.parquet", [0], other)
        with pytest.raises(CorpusError, match=f"in {train}") as caught:
            pack_images({"train": train, "validation": held_out}, out, PackConfig(), num_processes=1)
        assert caught.value.where == held_out
    nameless = write_parquet(tmp_path / "nameless.parquet", [1])
    url = pack_images({"train": train, "validation": nameless}, out, PackConfig(), num_processes=1)
    assert read_image_manifest(url)[0].classes == ("cat", "dog"), "not lost in the split without names"
    assert any(nameless in message and "taken as those of" in message for message in caplog.messages)
    write_parquet(tmp_path / "train.parquet", [0, 1], ["cow", "dog"])
    with pytest.raises(ShardError, match="another corpus or configuration"):
        pack_images({"train": train, "validation": nameless}, out, PackConfig(), num_processes=1)


def test_labels_of_tables_are_numbers(tmp_path: Path) -> None:
    for labels, message in (
        (["cat", "dog"], "column `label` holds string"),
        ([0.0, 1.0], "column `label` holds double"),
        ([1, None], "The image has no label"),
        ([1, -1], "The image has the label -1"),
        ([1, 2**30], "1073741825 classes of 2 images"),
    ):
        path = write_parquet(tmp_path / "x.parquet", labels)
        with pytest.raises(OutlastError, match=message) as caught:
            pack(Path(path), tmp_path / message.replace(" ", "_"))
        assert caught.value.where is not None
        assert f"x.parquet{'' if 'column' in message else ', row 1'}" in caught.value.where


def test_what_is_no_folder_of_classes_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "loose.jpg").write_bytes(jpeg(1))
    with pytest.raises(CorpusError, match="lies in no folder of a class"):
        pack(folder, tmp_path / "out")
    (folder / "loose.jpg").rename(folder / "bird" / "empty.jpg").write_bytes(b"")
    with pytest.raises(OutlastError, match="The image has 0 bytes"):
        pack(folder, tmp_path / "out")
    url = pack(folder, tmp_path / "out", on_bad="skip")  # what the message says to do
    assert read_image_manifest(url)[0].provenance["counts"]["train"]["bad_examples"] == 1
    with pytest.raises(ShardError, match="another corpus or configuration"):
        pack(folder, tmp_path / "out")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_killed_build_ends_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    command = Command(tmp_path / "cache")
    line = ("shards", "images", folder, "--images-per-shard", "2", "--processes", "2", "--out")
    command.run(*line, tmp_path / "whole")
    out = tmp_path / "out"
    assert kill_when(command.start(*line, out), lambda: len(list(out.glob("*.tar"))) >= 4), "it had ended"
    assert not (out / "manifest.json").exists()
    command.run(*line, out)
    assert contents(out) == contents(tmp_path / "whole")
    shown = command.run("shards", "verify", out / "manifest.json")
    assert "every byte is as it was written" in shown
    assert "30 images in 15 shards" in command.run("shards", "show", out / "manifest.json")


def test_verify_names_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    url = pack(folder, tmp_path / "out", most_images=10)
    tar, index = tmp_path / "out" / "train-000001.tar", tmp_path / "out" / "train-000002.index.safetensors"
    content = bytearray(tar.read_bytes())
    content[0] ^= 1
    tar.write_bytes(content)
    index.unlink()
    problems = verify_images(url)
    assert len(problems) == 3
    assert problems[0].startswith("train-000001.tar: has sha256")
    assert "checksum" in problems[1] or "no tar file" in problems[1]
    assert problems[2] == "train-000002.index.safetensors: is missing"


def test_the_worked_example_is_what_is_written(tmp_path: Path) -> None:
    with ImageShardWriter(0) as writer:
        writer.add(b"P6 1 1 255 \x01\x02\x03", "ppm", 3)
        writer.add(b"P6 1 1 255 \x04\x05\x06", "ppm", 0)
        entry = writer.write(LocalStore(tmp_path), "train-000000.tar")
    page = Path(__file__).parents[2] / "docs" / "formats" / "image_shard.md"
    expected = from_hexdump(page.read_text(encoding="utf-8"), 1)
    assert expected == (tmp_path / entry.index.name).read_bytes()
    assert entry.size_bytes == (tmp_path / entry.name).stat().st_size == 5120
    manifest = ImageManifest(num_classes=4, splits={"train": (entry,)}, provenance={})
    assert manifest.shards("train") == (entry,)
