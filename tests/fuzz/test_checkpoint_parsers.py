"""Commits, sealed documents and what stands beside them in a run directory: read, or refused by a typed
error.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.format import parse_commit
from outlast.checkpoint.restore import list_commits, restore_newest, verify_commit
from outlast.checkpoint.save import CheckpointWriter
from outlast.errors import ConfigError, DamagedCheckpoint, OutlastError, SealError
from outlast.run.evaluate import evaluate_run
from outlast.storage import LocalStore
from outlast.storage.checksummed_json import DIGEST_KEY, seal, unseal
from outlast.training.ranking import read_evaluations
from support.hostile import NOISE, accepts_or_refuses, damaged, damaged_bytes, nested, to_json

COMMIT = "commits/000000000003-1.json"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    store = LocalStore(tmp_path_factory.mktemp("run"))
    config = CheckpointConfig(part_bytes=100)
    attempt = claim_attempt(store, config=config, report=lambda _: None, start_heartbeat=False)
    attempt.record_restored(0)
    arrays = {"params/a": np.arange(40, dtype=np.float32).reshape(10, 4), "params/b": np.ones(3, np.int32)}
    writer = CheckpointWriter(store, config, attempt, {"seed": 1}, {}, report=lambda _: None)
    writer.save(3, arrays, wait=True)
    return store


def resealed(document: dict[str, Any]) -> bytes | None:
    """Return the document with a digest that fits: an attacker can compute one, too."""
    try:
        return seal(document)
    except SealError:
        return None


@given(st.data())
def test_commits_with_something_wrong(run: LocalStore, data: st.DataObject) -> None:
    document = json.loads(run.read(COMMIT))
    content = resealed(data.draw(damaged(document)))
    if content is not None:
        accepts_or_refuses(lambda: parse_commit(content, name=COMMIT))


@given(st.data())
def test_bytes_that_are_no_commit(run: LocalStore, data: st.DataObject) -> None:
    sound = run.read(COMMIT)
    content = data.draw(NOISE | damaged_bytes(sound))
    if content != sound:
        assert accepts_or_refuses(lambda: parse_commit(content, name=COMMIT)) is None
        assert accepts_or_refuses(lambda: unseal(content, where="x")) is None


@settings(max_examples=60)
@given(st.data())
def test_a_restore_from_any_commit(run: LocalStore, data: st.DataObject) -> None:
    """Arrays whose every byte fits, or a typed error; absurd shapes take no memory, no name leads outside."""
    sound = run.read(COMMIT)
    content = resealed(data.draw(damaged(json.loads(sound))))
    if content is None:
        return
    run.replace(COMMIT, [content])
    try:
        accepts_or_refuses(lambda: restore_newest(run, report=lambda _: None))
        accepts_or_refuses(lambda: verify_commit(run, COMMIT))
        accepts_or_refuses(lambda: list_commits(run))
    finally:
        run.replace(COMMIT, [sound])


@pytest.mark.parametrize("shape", [[2**40], [2**31, 2**31, 2**31], [0, 2**62]])
def test_absurd_shapes_take_no_memory(run: LocalStore, shape: list[int]) -> None:
    sound = run.read(COMMIT)
    document = json.loads(sound)
    for entry in document["slices"]:
        if entry["name"] == "params/b":
            entry["global_shape"] = shape
            entry["shape"] = shape
            entry["start"] = [0] * len(shape)
    run.replace(COMMIT, [seal({key: value for key, value in document.items() if key != DIGEST_KEY})])
    try:
        assert accepts_or_refuses(lambda: restore_newest(run, report=lambda _: None)) is None
    finally:
        run.replace(COMMIT, [sound])


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "data/000000000003/1-x/../../../../outside"])
def test_a_part_s_name_stays_in_the_run(run: LocalStore, name: str) -> None:
    sound = run.read(COMMIT)
    document = json.loads(sound)
    document["parts"][0]["name"] = name
    with pytest.raises(DamagedCheckpoint):
        parse_commit(seal({key: value for key, value in document.items() if key != DIGEST_KEY}), name=COMMIT)


@given(NOISE | st.recursive(st.none() | st.floats() | st.integers() | st.text(), st.lists).map(to_json))
def test_bytes_that_are_no_sealed_document(content: bytes) -> None:
    assert accepts_or_refuses(lambda: unseal(content, where="x")) is None


@pytest.mark.parametrize("depth", [200, 500, 990, 5000])
def test_deep_json_is_refused(depth: int) -> None:
    content = b'{"a":' + b"[" * depth + b"]" * depth + b"}\n"
    assert accepts_or_refuses(lambda: unseal(content, where="x")) is None
    accepts_or_refuses(lambda: seal({"a": nested(depth)}))


RECIPE: dict[str, Any] = {
    "outlast": "0.1.0",
    "recipe": {"stream": {"manifest": "absent/manifest.json"}, "training": {"total_steps": 3}},
    "identity": {},
}


@settings(max_examples=80)
@given(damaged(RECIPE).map(to_json) | NOISE)
def test_any_description_of_a_run(content: bytes) -> None:
    """A hostile run, of this version and of one before: evaluating it ends with a typed error."""
    store = LocalStore(FOLDER["run"])
    for name in ("run.json", "attempts/1.run.json"):
        store.replace(name, [content])
        with pytest.raises(OutlastError):
            evaluate_run(str(FOLDER["run"]))
    store.delete("attempts/1.run.json")


def test_a_description_that_names_an_unknown_key(tmp_path: Path) -> None:
    LocalStore(tmp_path).create("run.json", [to_json({"recipe": {"steram": {}}})])
    with pytest.raises(ConfigError, match="did you mean 'stream'"):
        evaluate_run(str(tmp_path))


@given(
    st.dictionaries(
        st.sampled_from(["step", "loss", "x"]), st.none() | st.integers() | st.floats() | st.text()
    ).map(to_json)
    | NOISE
)
def test_any_evaluation(content: bytes) -> None:
    """An evaluation that cannot be read is made again; it is never taken for the best."""
    store = LocalStore(FOLDER["evaluations"])
    store.replace("evaluations/000000000005-1.json", [content])
    for fields in accepts_or_refuses(lambda: read_evaluations(store)).values():
        assert isinstance(fields["loss"], float | int)
        assert fields["loss"] == fields["loss"]


FOLDER: dict[str, Path] = {}


@pytest.fixture(autouse=True, scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDER.update({name: tmp_path_factory.mktemp(name) for name in ("run", "evaluations")})
