"""What a local folder owes beyond the contract of all stores: leftovers, vanishing folders, a full disk."""

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import OutlastError, StorageError, StoreUnreachable
from outlast.storage import LocalStore


def test_leftovers_of_a_killed_writer_are_not_listed_as_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("data/1/2-x/part", [b"x"])
    (tmp_path / "data/1/2-x/.tmp-abc").write_bytes(b"half")
    assert [info.name for info in store.list()] == ["data/1/2-x/part"]
    assert list(store.list_leftovers("data/")) == ["data/1/2-x/.tmp-abc"]
    store.delete("data/1/2-x/.tmp-abc")
    store.delete("data/1/2-x/part")
    assert list(tmp_path.iterdir()) == []


def test_folders_vanishing_beside_a_writer_do_no_harm(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    errors: list[OutlastError] = []

    def work(number: int) -> None:
        try:
            for turn in range(60):
                store.create(f"a/b/{number}-{turn}", [b"x"])
                store.delete(f"a/b/{number}-{turn}")
        except OutlastError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert store.list() == []


@pytest.mark.parametrize("method", ["create", "replace"])
def test_an_unfinished_file_that_somebody_takes_away_is_written_again(tmp_path: Path, method: str) -> None:
    store = LocalStore(tmp_path)
    taken: list[str] = []

    class Content(list[bytes]):
        """Half of it is written when somebody else cleans up, twice."""

        def __iter__(self) -> Iterator[bytes]:
            yield b"one"
            if len(taken) < 2:
                [leftover] = store.list_leftovers()
                store.delete(leftover)
                taken.append(leftover)
            yield b"two"

    getattr(store, method)("a/b", Content())
    assert store.read("a/b") == b"onetwo"
    assert len(set(taken)) == 2
    assert list(store.list_leftovers()) == []


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_says_so_and_leaves_nothing(tiny_disk: Path) -> None:
    store = LocalStore(tiny_disk)
    store.create("small", [b"x" * 1000])
    with pytest.raises(StorageError, match="no space left") as caught:
        store.create("large", [b"x" * 2_000_000])
    assert not isinstance(caught.value, StoreUnreachable)
    assert [info.name for info in store.list()] == ["small"]
    assert list(store.list_leftovers()) == []
    store.create("after", [b"y" * 500_000])
