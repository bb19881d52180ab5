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
from outlast.checkpoint.lineage import CommitKey
from outlast.checkpoint.save import CheckpointWriter
from outlast.cli.main import run_command_line
from outlast.errors import ConfigError
from outlast.huggingface.digests import write_provenance
from outlast.run.directory import write_description
from outlast.run.verify import verify_anything
from outlast.storage import LocalStore
from outlast.training.ranking import write_evaluation
from support.files import serving_folder
from support.images import write_images


def write_run(folder: Path) -> None:
    store = LocalStore(folder)
    attempt = claim_attempt(store, config=CheckpointConfig(), report=lambda message: None)
    attempt.record_restored(0)
    write_description(store, attempt.number, {"recipe": {}, "identity": {"data": {}}})
    writer = CheckpointWriter(store, CheckpointConfig(), attempt, identity={}, mesh={})
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
    assert line == "config.json: has another sha256 than when it was exported"
    assert verify_anything(f"file://{tmp_path}/images/manifest.json") == []


def test_a_folder_of_something_else_is_refused_with_what_is_known(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="nothing here that Outlast writes") as caught:
            verify_anything(str(place))
        for known in ("a run", "a data set", "a tokenizer", "an exported model", "a cache of shards"):
            assert known in (caught.value.expected or "")


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
