"""Files, folders and globs; what is hidden or leads out of the folder is not followed."""

import os
from pathlib import Path

import pytest

from outlast.corpus.files import find_files
from outlast.errors import CorpusError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("b.txt", "a.txt", "sub/c.txt", "sub/deep/d.py", ".hidden", ".git/config", "sub/x.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (tmp_path / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "out").symlink_to(tmp_path)
    (root / "broken").symlink_to(root / "absent")
    (root / "loop").symlink_to(root / "loop")
    (root / "inside.txt").symlink_to(root / "sub" / "c.txt")
    return root


def names(paths: str | list[str], include: str = "**/*") -> list[str]:
    return [file.name for file in find_files(paths, include)]


def test_a_folder_is_walked_in_order(folder: Path) -> None:
    # inside.txt is another name of sub/c.txt, which is read once.
    assert names(str(folder)) == ["a.txt", "b.txt", "inside.txt", "sub/deep/d.py", "sub/x.py"]


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("**/*.py", ["sub/deep/d.py", "sub/x.py"]),
        ("*.txt", ["a.txt", "b.txt", "inside.txt"]),
        ("sub/*", ["sub/c.txt", "sub/x.py"]),
        ("sub/**", ["sub/c.txt", "sub/deep/d.py", "sub/x.py"]),
        ("**/deep/*", ["sub/deep/d.py"]),
    ],
)
def test_include_chooses(folder: Path, include: str, expected: list[str]) -> None:
    assert names(str(folder), include) == expected


def test_exclude_leaves_out_files_and_whole_folders(folder: Path) -> None:
    def left(*exclude: str) -> list[str]:
        return [file.name for file in find_files(str(folder), "**/*", exclude)]

    assert left("sub/**") == ["a.txt", "b.txt", "inside.txt"]
    assert left("**/deep/**", "b.txt") == ["a.txt", "inside.txt", "sub/x.py"]
    assert left("**/*.py") == ["a.txt", "b.txt", "inside.txt"]
    assert left("*.py") == names(str(folder))


def test_a_file_a_glob_and_a_list(folder: Path) -> None:
    assert names(str(folder / "a.txt")) == ["a.txt"]
    assert names(str(folder / "**" / "*.py")) == ["sub/deep/d.py", "sub/x.py"]
    assert names(str(folder / "*.txt")) == ["a.txt", "b.txt", "inside.txt"]
    assert names([str(folder / "b.txt"), str(folder)], "*.txt") == ["0/b.txt", "1/a.txt", "1/inside.txt"]


def test_a_link_that_is_named_is_followed(folder: Path) -> None:
    assert names(str(folder / "link.txt")) == ["link.txt"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("absent", "no such file or folder"), ("*.absent", "No file matches"), ("empty", "holds no file")],
)
def test_nothing_there_is_an_error(folder: Path, path: str, message: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(CorpusError, match=rf"{message}[\s\S]*{path.replace('*', '.')}[\s\S]*corpus\."):
        names(str(folder / path))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/dev/zero", "a device"),
        ("pipe", "a pipe"),
        ("link", "a device"),
        ("nowhere", "a link that leads nowhere"),
    ],
)
def test_what_is_no_file_is_called_what_it_is(tmp_path: Path, name: str, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    with pytest.raises(CorpusError, match=rf"It is {kind}[\s\S]*do: "):
        find_files(str(tmp_path / name), "**/*")


def test_a_pipe_in_a_folder_is_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(folder / "sub" / "pipe.txt")
    names(str(folder))
    assert "4 names in" in caplog.text
    assert "sub/pipe.txt" in caplog.text
