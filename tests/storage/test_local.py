"""What a local folder owes beyond the contract of all stores: leftovers, vanishing folders, a full disk."""

import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.errors import OutlastError, StorageError, StoreUnreachable
from outlast.storage import LocalStore


def test_leftovers_of_a_killed_writer_are_not_listed_as_objects(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("data/1/2-x/part", [b"x"])
    leftover = f"data/1/2-x/.tmp-{uuid.uuid4().hex}"
    (tmp_path / leftover).write_bytes(b"half")
    assert [info.name for info in store.list()] == ["data/1/2-x/part"]
    assert list(store.list_leftovers("data/")) == [leftover]
    assert list(store.list_leftovers("data/", recursive=False)) == []
    assert list(store.list_leftovers("data/1/2-x/", recursive=False)) == [leftover]
    store.delete(leftover)
    store.delete("data/1/2-x/part")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".tmp-notes", ".tmp-", f".tmp-{'0' * 31}", f".tmp-{'0' * 32}.txt"])
def test_a_file_that_is_named_like_a_leftover_is_somebody_elses(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"precious")
    assert list(LocalStore(tmp_path).list_leftovers()) == []
    assert [info.name for info in LocalStore(tmp_path).list()] == [name]


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


def test_a_full_disk_says_so_and_leaves_nothing(tiny_disk: Path) -> None:
    store = LocalStore(tiny_disk)
    store.create("small", [b"x" * 1000])
    with pytest.raises(StorageError, match="no space left") as caught:
        store.create("large", [b"x" * 2_000_000])
    assert not isinstance(caught.value, StoreUnreachable)
    assert [info.name for info in store.list()] == ["small"]
    assert list(store.list_leftovers()) == []
    store.create("after", [b"y" * 500_000])


@pytest.mark.parametrize("action", ["create", "replace"])
def test_a_place_that_cannot_be_written_to_says_so_and_what_to_do(
    tmp_path: Path, make_read_only: Callable[[], Path], action: str
) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    for root in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(StorageError, match="a file stands where a folder must be"):
            getattr(LocalStore(root), action)("a", [b"x"])
    with pytest.raises(
        StorageError, match=r"Read-only file system[\s\S]*choose a folder that you may write to"
    ):
        getattr(LocalStore(make_read_only()), action)("a", [b"x"])
    assert (tmp_path / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("name", ["a\0b", "a\ud800", "a" * 300])
def test_a_name_that_no_file_can_have_is_an_error_in_words(tmp_path: Path, name: str) -> None:
    store = LocalStore(tmp_path)
    for action in (
        lambda: store.read(name),
        lambda: store.size_bytes(name),
        lambda: store.create(name, [b"x"]),
        lambda: store.delete(name),
    ):
        with pytest.raises(StorageError):
            action()
    store.anchor = name
    with pytest.raises(StorageError):
        store.replace("other", [b"x"])


def test_links_that_lead_nowhere_are_no_objects(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "name").write_bytes(b"x")
    assert [info.name for info in LocalStore(tmp_path).list()] == ["name"]
