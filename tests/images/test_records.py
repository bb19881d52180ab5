"""WebDataset's rules: what makes an example of a tar."""

import io
from pathlib import Path

import pytest

from outlast.corpus.tar import read_members
from outlast.errors import ConfigError, ShardError
from outlast.images.records import Example, FieldRules, Tally, read_examples, split_name
from support.images import write_tar


def examples(
    folder: Path, files: list[tuple[str, bytes]], rules: FieldRules | None = None, tally: Tally | None = None
) -> list[Example]:
    content = write_tar(folder / "x.tar", files).read_bytes()
    file = io.BytesIO(content)
    members = list(read_members(file, where="x.tar"))
    found = list(read_examples(file, members, rules or FieldRules(), tally or Tally(), where="x.tar"))
    for example in found:
        assert content[example.offset : example.offset + example.size_bytes].startswith(b"image")
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0001.jpg", ("0001", "jpg")),
        ("./a/b.c/0001.seg.PNG", ("a/b.c/0001", "seg.png")),
        (".//a.jpg", ("a", "jpg")),
        ("././/./a/b.jpg", ("a/b", "jpg")),
        (".//__x__/b.jpg", None),
        ("a.b/noext", None),
        (".hidden.jpg", None),
        ("__key__", None),
        ("__dir__/a.jpg", None),
        ("a/__x__/b.jpg", ("a/__x__/b", "jpg")),
        ("a/.jpg", None),
    ],
)
def test_key_and_field(name: str, expected: tuple[str, str] | None) -> None:
    assert split_name(name) == expected


def test_images_labels_and_what_is_neither(tmp_path: Path) -> None:
    tally = Tally()
    found = examples(
        tmp_path,
        [
            ("a.cls", b"3\n"),
            ("a.JPG", b"image a"),
            ("a.txt", b"of no use here"),
            ("README", b"x"),
            ("b.png", b"image b"),
            ("b.json", b'{"label": 7, "x": []}'),
            ("c.jpg", b"not the first of the alternatives"),
            ("c.ppm", b"image c"),
            ("c.cls", b"0"),
        ],
        tally=tally,
    )
    assert [(example.key, example.label) for example in found] == [("a", 3), ("b", 7), ("c", 0)]
    assert tally.ignored_files == 1


def test_other_fields_by_name(tmp_path: Path) -> None:
    rules = FieldRules(image="left.png;webp", label="meta:class")
    files = [("a.left.png", b"image"), ("a.right.png", b"x"), ("a.cls", b"9"), ("a.meta", b'{"class": 2}')]
    assert examples(tmp_path, files, rules)[0].label == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([("a.jpg", b"image")], "no label"),
        ([("a.cls", b"1")], "no image"),
        ([("a.jpg", b""), ("a.cls", b"1")], "has 0 bytes"),
        ([("a.jpg", b"image"), ("a.cls", b"one")], "label in 'a.cls' is b'one'"),
        ([("a.jpg", b"image"), ("a.cls", b"-1")], "label"),
        ([("a.jpg", b"image"), ("a.cls", b"4294967296")], "label"),
        ([("a.jpg", b"image"), ("a.json", b'{"label": true}')], "label"),
        ([("a.jpg", b"image"), ("a.json", b"[" * 10000)], "label"),
        # The labels apart from their images: keys come again.
        ([("a.jpg", b"image"), ("b.jpg", b"image"), ("a.cls", b"1")], "no label"),
    ],
)
def test_bad_examples_stop_or_are_counted(
    tmp_path: Path, files: list[tuple[str, bytes]], message: str
) -> None:
    good = [("z.jpg", b"image"), ("z.cls", b"1")]
    with pytest.raises(ShardError, match=message) as caught:
        examples(tmp_path, files + good)
    assert caught.value.where is not None
    assert caught.value.where.startswith("x.tar, byte ")
    tally = Tally()
    if len(files) < 3:
        assert [e.key for e in examples(tmp_path, files + good, FieldRules(on_bad="skip"), tally)] == ["z"]
        assert tally.bad_examples == 1


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.jpg", "a.cls", "a.CLS"], "'cls' twice"),
        (["a.jpg", "a.cls", "b.jpg", "b.cls", "a.jpg", "a.cls"], "'a' comes again"),
    ],
)
def test_what_stands_twice_is_always_refused(tmp_path: Path, names: list[str], message: str) -> None:
    files = [(name, b"image" if name.endswith("jpg") else b"1") for name in names]
    with pytest.raises(ShardError, match=message):
        examples(tmp_path, files, FieldRules(on_bad="skip"))


def test_rules_name_fields() -> None:
    for image in ("", "jpg;", "JPG"):
        with pytest.raises(ConfigError, match="names no fields"):
            FieldRules(image=image)
