"""A finished build whose files were lost or damaged: it is noticed, and the same bytes are made again."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from outlast.build.plan import files_to_mend, write_note, write_record
from outlast.build.repair import end_mending, find_wrong, is_whole
from outlast.errors import ShardError
from outlast.shards.manifest import ShardEntry
from outlast.shards.record import PortionRecord
from outlast.storage import LocalStore, Store, open_store
from outlast.storage.spool import Spool
from outlast.storage.store import ObjectInfo


def build(store: Store, portion: int, content: bytes) -> PortionRecord:
    """Make the two files of a portion and its record."""
    shards: dict[str, ShardEntry] = {}
    for split in ("train", "validation"):
        spool = Spool(1, None)
        spool.write(content + split.encode())
        size_bytes, sha256 = spool.put(store, f"{split}-{portion}", b"")
        spool.close()
        shards[split] = ShardEntry(
            name=f"{split}-{portion}", size_bytes=size_bytes, sha256=sha256, num_tokens=1, num_documents=1
        )
    record = PortionRecord(
        number=portion,
        tokenizer_fingerprint="f",
        shards=shards,
        text_bytes={},
        skipped={},
        undecodable_bytes=0,
        undecodable=[],
    )
    write_record(store, record)
    return record


@dataclass
class Finished:
    """A build of three portions."""

    store: Store
    folder: Path
    records: list[PortionRecord]

    @property
    def files(self) -> list[ShardEntry]:
        return [file for record in self.records for file in record.files]

    def is_whole(self, *, verify: bool = False) -> bool:
        return is_whole(self.store, self.files, PortionRecord, verify=verify)


@pytest.fixture
def finished(tmp_path: Path) -> Finished:
    store = LocalStore(tmp_path)
    store.replace("plan.json", [b'{"format": "outlast-plan", "version": 1, "versions": {"lib": "1.2"}}'])
    return Finished(store, tmp_path, [build(store, portion, b"content %d" % portion) for portion in range(3)])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, cut])
def test_the_pieces_of_wrong_files_are_made_again(finished: Finished, damage: Callable[[Path], None]) -> None:
    assert finished.is_whole()
    damage(finished.folder / "validation-1")
    before = (finished.folder / "train-0").stat().st_mtime_ns
    assert not finished.is_whole()
    assert sorted(path.name for path in (finished.folder / "done").iterdir()) == ["00000.json", "00002.json"]
    assert set(files_to_mend(finished.store)) == {"train-1", "validation-1"}
    assert not finished.is_whole(), "a mending that was killed goes on"
    build(finished.store, 1, b"content 1")
    end_mending(finished.store, finished.records)
    assert finished.is_whole()
    assert not (finished.folder / "repair.json").exists()
    assert (finished.folder / "train-0").stat().st_mtime_ns == before


def test_bytes_of_the_same_length_are_told_by_their_digest_alone(finished: Finished) -> None:
    path = finished.folder / "train-2"
    path.write_bytes(path.read_bytes().upper())
    assert finished.is_whole()
    assert not finished.is_whole(verify=True)
    assert not finished.is_whole(), "what is to be mended is looked at by its digest from then on"


def test_a_portion_that_comes_out_otherwise_is_refused(finished: Finished) -> None:
    (finished.folder / "train-1").unlink()
    assert not finished.is_whole()
    for _ in range(2):  # until what has changed is put right
        with pytest.raises(ShardError, match=r"Made again[\s\S]*train-1[\s\S]*install lib 1\.2"):
            build(finished.store, 1, b"another")
        assert not (finished.folder / "done" / "00001.json").exists()
        assert not finished.is_whole()
    build(finished.store, 1, b"content 1")
    assert not finished.is_whole(), "the note is taken away by the build"
    end_mending(finished.store, finished.records)
    assert finished.is_whole()


def test_what_no_record_tells_of_is_not_overwritten(finished: Finished) -> None:
    (finished.folder / "train-1").unlink()
    for path in (finished.folder / "done").iterdir():
        path.unlink()
    with pytest.raises(ShardError, match=r"train-1 must be made again, and no record says"):
        finished.is_whole()


def test_files_lost_before_the_manifest_are_told(finished: Finished) -> None:
    (finished.folder / "train-0").unlink()
    with pytest.raises(ShardError, match=r"train-0 is missing[\s\S]*give the same line again"):
        end_mending(finished.store, finished.records)
    assert not (finished.folder / "done" / "00000.json").exists()
    build(finished.store, 0, b"content 0")
    end_mending(finished.store, finished.records)


def test_an_edited_note_or_record_is_refused(finished: Finished) -> None:
    write_note(finished.store, {"train-0": "0" * 64})
    note = finished.folder / "repair.json"
    note.write_text(note.read_text().replace("0000", "1111"))
    with pytest.raises(ShardError, match="edited or damaged"):
        files_to_mend(finished.store)
    note.unlink()
    record = finished.folder / "done" / "00001.json"
    record.write_text(record.read_text().replace('"num_tokens": 1', '"num_tokens": 2'))
    (finished.folder / "train-2").unlink()
    with pytest.raises(ShardError, match=r"edited or damaged[\s\S]*done/00001\.json"):
        finished.is_whole()


def test_a_remote_folder_is_listed_once(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of which nothing is local: no request for each file."""
    store = open_store(str(finished.folder))
    (finished.folder / "train-1").unlink()
    asked: list[str] = []
    infos = store.list()

    def listed(prefix: str = "") -> list[ObjectInfo]:
        asked.append(prefix)
        return [info for info in infos if info.name.startswith(prefix)]

    monkeypatch.setattr(store, "local_path", lambda _: None)
    monkeypatch.setattr(store, "list", listed)
    monkeypatch.setattr(store, "size_bytes", None)
    trains = [file for file in finished.files if file.name.startswith("train")]
    assert find_wrong(store, trains, verify=False) == {"train-1": "is missing"}
    assert asked == ["train-"]


def test_the_note_is_sealed_json(finished: Finished) -> None:
    write_note(finished.store, {"b": "1", "a": "2"})
    document = json.loads((finished.folder / "repair.json").read_text())
    assert list(document) == ["format", "version", "files", "sha256"]
    assert list(document["files"]) == ["a", "b"]
