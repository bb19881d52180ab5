"""An object read from anywhere: the bytes are those of the object, and the requests few or small."""

import io
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from outlast.errors import ObjectNotFound, StoreUnreachable
from outlast.storage import LocalStore, Store, open_store
from outlast.storage.reader import RangeReader
from support.files import serving_folder

CONTENT = bytes(range(256)) * 1000


@hypothesis.given(
    actions=st.lists(
        st.tuples(st.sampled_from(["seek", "read", "readline", "back"]), st.integers(0, len(CONTENT) + 10)),
        max_size=20,
    ),
    size=st.sampled_from([0, 1, 70_000, len(CONTENT)]),
)
def test_it_reads_as_a_file_does(actions: list[tuple[str, int]], size: int) -> None:
    content = CONTENT[:size]
    ours = io.BufferedReader(RangeReader(lambda start, length: content[start : start + length], size), 1000)
    theirs = io.BytesIO(content)
    for action, number in actions:
        for file in (ours, theirs):
            if action == "seek":
                file.seek(number)
            elif action == "back":
                file.seek(-min(number, size), io.SEEK_END)
        if action == "read":
            assert ours.read(number % 9000) == theirs.read(number % 9000)
        elif action == "readline":
            assert ours.readline(number) == theirs.readline(number)
        assert ours.tell() == theirs.tell()
    assert ours.read() == theirs.read()


def test_reading_on_takes_ever_longer_ranges_and_a_look_a_short_one() -> None:
    asked: list[tuple[int, int]] = []
    size = 40 * 2**20

    def read_range(start: int, length: int) -> bytes:
        asked.append((start, length))
        return bytes(length)

    reader = RangeReader(read_range, size)
    while reader.readinto(bytearray(2**20)):
        pass
    assert [length for _, length in asked[:9]] == [2**power for power in range(14, 23)]
    assert sum(length for _, length in asked) == size
    assert max(length for _, length in asked) == 2**22
    asked.clear()
    reader.seek(5)
    reader.readinto(bytearray(10))
    assert asked == [(5, 2**14)]


@pytest.mark.parametrize("place", ["folder", "http"])
def test_a_store_opens_its_objects(tmp_path: Path, place: str) -> None:
    LocalStore(tmp_path).replace("a/b", [CONTENT])
    LocalStore(tmp_path).replace("empty", [b""])
    with serving_folder(tmp_path) as url:
        store = open_store(tmp_path if place == "folder" else url)
        with store.open("a/b") as file:
            assert file.seek(-5, io.SEEK_END) == len(CONTENT) - 5
            assert file.read() == CONTENT[-5:]
            file.seek(1000)
            assert file.read(3) == CONTENT[1000:1003]
        with store.open("empty") as file:
            assert file.read() == b""
        with pytest.raises(ObjectNotFound):
            store.open("absent")


def test_a_store_that_does_not_answer_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.replace("a", [CONTENT])
    read_range, failures = store.read_range, [2]

    def refuse(name: str, start: int, length: int) -> bytes:
        failures[0] -= 1
        if failures[0] >= 0:
            raise StoreUnreachable("away")
        return read_range(name, start, length)

    monkeypatch.setattr(Store, "first_pause_seconds", 0.001)
    monkeypatch.setattr(store, "read_range", refuse)
    with store.open("a") as file:
        assert file.read() == CONTENT
    assert failures[0] < 0
    monkeypatch.setattr(Store, "retry_seconds", 0.0)
    failures[0] = 5
    with store.open("a") as file, pytest.raises(StoreUnreachable):
        file.read(1)
