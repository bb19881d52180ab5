"""``outlast verify``: it knows what lies there, and names each file that is not what was written."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.lineage import UNREADABLE, CommitKey
from outlast.checkpoint.records import newest_known, read_recorded
from outlast.checkpoint.save import CheckpointWriter
from outlast.cli.main import run_command_line
from outlast.errors import ConfigError, RunError
from outlast.huggingface.digests import write_provenance
from outlast.run.directory import read_description, write_description
from outlast.run.verify import verify_anything
from outlast.storage import LocalStore
from outlast.storage.checksummed_json import seal
from outlast.training.ranking import write_evaluation
from support.files import serving_folder
from support.images import write_images


def write_run(folder: Path, *, seed: int = 1) -> None:
    store = LocalStore(folder)
    attempt = claim_attempt(store, config=CheckpointConfig(), report=lambda message: None)
    attempt.record_restored(0)
    identity = {"data": {}, "seed": seed}
    write_description(attempt, {"recipe": {}, "identity": identity})
    writer = CheckpointWriter(store, CheckpointConfig(), attempt, identity=identity, mesh={})
    writer.save(2, {"params/x": np.arange(8, dtype=np.float32)}, wait=True)
    write_evaluation(store, CommitKey(2, 1), {"step": 2, "loss": 1.5})
    writer.close()
    attempt.close()


def write_export(folder: Path) -> None:
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text(f"this is {name}")
    write_provenance(folder, {"provenance": {}})


def write_cache(folder: Path) -> None:
    folder.mkdir()
    for content in (b"one", b"two"):
        (folder / hashlib.sha256(content).hexdigest()).write_bytes(content)


def write_image_set(folder: Path) -> None:
    write_images(folder, [2, 2])


@pytest.mark.parametrize("write", [write_run, write_export, write_cache, write_image_set])
def test_every_file_that_is_changed_cut_or_gone_is_named(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    folder = tmp_path / "it"
    write(folder)
    assert verify_anything(str(folder)) == []
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(paths) >= 2
    for path in paths:
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for content in (bytes(flipped), whole[: len(whole) // 2], b""):
            path.write_bytes(content)
            problems = verify_anything(str(folder))
            assert any(path.name in line for line in problems), (path, content, problems)
        path.write_bytes(whole)
    assert verify_anything(str(folder)) == []


def test_two_files_of_a_run_that_changed_places_are_named(tmp_path: Path) -> None:
    write_run(tmp_path)
    write_run(tmp_path)
    for kind in ("json", "heartbeat", "from.json", "run.json"):
        one, other = (tmp_path / "attempts" / f"{number}.{kind}" for number in (1, 2))
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        found = verify_anything(str(tmp_path))
        assert [line for line in found if line.startswith("attempts/")] == [
            f"attempts/1.{kind}: It is that of attempt 2.",
            f"attempts/2.{kind}: It is that of attempt 1.",
        ]
        one.write_bytes(first)
        other.write_bytes(second)
    lists = sorted((tmp_path / "data").rglob("commit.json"))
    contents = [path.read_bytes() for path in lists]
    assert len(lists) == 2
    for path, content in zip(lists, reversed(contents), strict=True):
        path.write_bytes(content)
    found = verify_anything(str(tmp_path))
    assert [line for path in lists for line in found if line.startswith(f"{path.relative_to(tmp_path)}: ")]


@pytest.mark.parametrize("kind", ["json", "heartbeat", "from.json", "run.json"])
def test_a_document_of_another_run_is_named_and_not_believed(tmp_path: Path, kind: str) -> None:
    for number in (1, 2):
        write_run(tmp_path / f"{number}", seed=number)
    name = f"attempts/1.{kind}"
    (tmp_path / "1" / name).write_bytes((tmp_path / "2" / name).read_bytes())
    store = LocalStore(tmp_path / "1")
    found = verify_anything(store.url)
    others = ["heartbeat", "from.json", "run.json"] if kind == "json" else [kind]
    for other in others:
        assert any(
            re.match(rf"attempts/1\.{other}: It does not belong to attempts/1\.json", x) for x in found
        )
    assert (read_recorded(store)[1] == UNREADABLE) == (kind in ("json", "from.json"))
    assert (newest_known(store) is None) == (kind in ("json", "heartbeat"))
    if kind in ("json", "run.json"):
        with pytest.raises(RunError, match="It is that of another run"):
            read_description(store)


def test_a_description_without_a_claim_is_compared_with_the_checkpoint(tmp_path: Path) -> None:
    """Earlier versions wrote no claim into it."""
    for seed in (1, 2):
        write_run(tmp_path, seed=seed)
    path = tmp_path / "attempts" / "2.run.json"
    document = {key: value for key, value in json.loads(path.read_bytes()).items() if key != "claim"}
    path.write_bytes(seal(document, "indented"))
    assert verify_anything(str(tmp_path)) == []
    path.write_bytes(seal({**document, "identity": {"data": {}, "seed": 3}}, "indented"))
    (line,) = verify_anything(str(tmp_path))
    assert re.match(r"attempts/2\.run\.json: .*of seed the checkpoint says 2, the description 3", line)


@pytest.mark.parametrize("kind", ["json", "heartbeat", "from.json", "run.json"])
def test_a_deleted_document_of_an_attempt_is_named(tmp_path: Path, kind: str) -> None:
    write_run(tmp_path)
    write_run(tmp_path)
    for number in (1, 2):
        path = tmp_path / "attempts" / f"{number}.{kind}"
        content = path.read_bytes()
        path.unlink()
        named = [
            line for line in verify_anything(str(tmp_path)) if line.startswith(f"attempts/{number}.{kind}: ")
        ]
        assert len(named) == 1, (number, named)
        path.write_bytes(content)
    assert verify_anything(str(tmp_path)) == []


def test_attempts_that_were_killed_early_miss_nothing(tmp_path: Path) -> None:
    write_run(tmp_path)
    store = LocalStore(tmp_path)
    ended = claim_attempt(store, config=CheckpointConfig(), report=lambda message: None)
    ended.close()
    for name in ("attempts/4.json", "attempts/5.json"):
        claim = json.loads((tmp_path / "attempts" / "1.json").read_bytes()) | {"attempt": int(name[9])}
        store.create(name, [seal(claim | {"claim": name})])
    assert verify_anything(str(tmp_path)) == []


def test_an_older_commit_that_was_deleted_is_named_where_it_was_to_be_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    attempt = claim_attempt(store, config=CheckpointConfig(), report=lambda message: None)
    attempt.record_restored(0)
    config = CheckpointConfig(keep_newest=3)
    write_description(attempt, {"recipe": {"checkpoint": {"keep_newest": 3}}, "identity": {}})
    writer = CheckpointWriter(store, config, attempt, identity={}, mesh={})
    for step in (2, 4, 6):
        writer.save(step, {"params/x": np.arange(8, dtype=np.float32)}, wait=True)
    attempt.close()
    assert verify_anything(store.url) == []
    for step in (4, 2):
        name = CommitKey(step, 1).name
        content = store.read(name)
        store.delete(name)
        assert [line.partition(": ")[0] for line in verify_anything(store.url)] == [name]
        store.create(name, [content])


def test_a_damaged_description_is_told_once(tmp_path: Path) -> None:
    write_run(tmp_path)
    path = tmp_path / "attempts" / "1.run.json"
    for content in (path.read_bytes()[:-9], b"", b"{}"):
        path.write_bytes(content)
        (line,) = verify_anything(str(tmp_path))
        assert line.startswith("attempts/1.run.json: ")


def test_what_is_behind_a_url_or_named_by_its_manifest(tmp_path: Path) -> None:
    write_image_set(tmp_path / "images")
    write_export(tmp_path / "model")
    with serving_folder(tmp_path) as url:
        for place in (f"{url}/images", f"{url}/images/manifest.json", f"{url}/model"):
            assert verify_anything(place) == [], place
        (tmp_path / "model" / "config.json").write_text("{}")
        (line,) = verify_anything(f"{url}/model")
    assert (
        line
        == "config.json: has another sha256 than outlast.json says: one of the two is not as it was exported"
    )
    assert verify_anything(f"file://{tmp_path}/images/manifest.json") == []


def test_a_folder_of_something_else_is_refused_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="nothing here that Outlast writes") as caught:
            verify_anything(str(place))
        for known in ("a run", "a data set", "a tokenizer", "an exported model", "a cache of shards"):
            assert known in (caught.value.expected or "")


@pytest.mark.parametrize(
    ("names", "gone"),
    [
        (["config.json", "model.safetensors", "tokenizer.json"], "outlast.json"),
        (["train-00000-of-00002.safetensors"], "manifest.json"),
        (["train-000000.tar", "train-000000.index.safetensors"], "manifest.json"),
        (["tokenizer.json"], "manifest.json"),
    ],
)
def test_what_lists_the_files_is_named_where_it_is_gone(
    tmp_path: Path, names: list[str], gone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        (tmp_path / name).write_text(name)
    assert run_command_line(["verify", str(tmp_path)]) == 2
    assert f"{gone} is missing" in capsys.readouterr().err


def test_what_has_no_digest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_export(tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("mine")
    write_run(tmp_path / "run")
    (tmp_path / "run" / "metrics").mkdir()
    (tmp_path / "run" / "metrics" / "1-00000.jsonl").write_text("{}")
    for folder, name in (("model", "README.md"), ("run", "metrics/")):
        line = ["verify", str(tmp_path / folder)]
        assert run_command_line(line) == 0
        assert capsys.readouterr().out.splitlines()[1:] == [
            f"not looked at, for it is for people and has no digest: {name}"
        ]
        assert run_command_line([*line, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"problems": [], "not_looked_at": [name]}


def test_the_verb_says_it_and_ends_with_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cache(tmp_path / "cache")
    line = ["verify", str(tmp_path / "cache")]
    assert run_command_line(line) == 0
    assert capsys.readouterr().out == "every byte is as it was written\n"
    name = min(os.listdir(tmp_path / "cache"))
    (tmp_path / "cache" / name).write_text("three")
    assert run_command_line(line) == 1
    assert re.fullmatch(rf"{name}: has sha256 [0-9a-f]{{64}}, .*\n", capsys.readouterr().out)
    assert run_command_line([*line, "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1
