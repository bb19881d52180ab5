"""Which checkpoint of a run is read: exactly the one that was asked for, or none."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outlast.checkpoint.attempts import claim_attempt
from outlast.checkpoint.config import CheckpointConfig
from outlast.checkpoint.lineage import CommitKey
from outlast.checkpoint.restore import Restored, restore_commit, restore_newest
from outlast.checkpoint.save import CheckpointWriter
from outlast.config import to_dict
from outlast.errors import (
    CheckpointError,
    ConfigError,
    DamagedCheckpoint,
    ObjectNotFound,
    RunError,
    one_line,
)
from outlast.recipe import make_recipe
from outlast.run import checkpoints
from outlast.run.checkpoints import Which, digest_run, list_checkpoints, restore_run
from outlast.run.directory import FORMER_NAME, read_description, write_description
from outlast.run.verify import verify_anything
from outlast.storage import LocalStore, Store, open_store
from outlast.training.ranking import write_evaluation

LOSSES = {2: 4.0, 4: 1.0, 6: 2.0, 8: 3.0}


def write_run(
    folder: Path, losses: dict[int, float], *, evaluated: bool = True, **checkpoint: Any
) -> LocalStore:
    """A run as training leaves it, its checkpoints of one number each: the step."""
    store = LocalStore(folder)
    recipe = make_recipe({"checkpoint": checkpoint}, where="test")
    attempt = claim_attempt(store, config=CheckpointConfig(), report=lambda message: None)
    attempt.record_restored(0)
    write_description(attempt, {"recipe": to_dict(recipe), "identity": {}})
    writer = CheckpointWriter(store, recipe.checkpoint, attempt, identity={}, mesh={})
    made: dict[int, float] = {}
    for step, loss in losses.items():
        writer.save(step, {"params/x": np.full(1, step, np.float32)}, wait=True)
        made[step] = loss
        if evaluated:
            fields = {"step": step, "loss": loss, "accuracy": step / 10, "num_examples": 8}
            write_evaluation(store, CommitKey(step, 1), fields)
            writer.rank(sorted(made, key=lambda step: made[step]))
    attempt.close()
    return store


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return write_run(tmp_path / "run", LOSSES)


def step_of(store: LocalStore, which: Which, *overrides: str) -> float:
    return float(restore_run(store, which, overrides=overrides).restored.arrays["params/x"][0])


def test_the_newest_the_best_and_one_by_its_step(store: LocalStore) -> None:
    assert step_of(store, Which()) == 8
    assert step_of(store, Which(best=True)) == 4
    assert step_of(store, Which(step=6)) == 6
    assert step_of(store, Which(best=True), "checkpoint.best_metric=accuracy") == 8
    assert restore_run(store, Which(best=True)).words == "the best by loss (1.0000 over 8 examples)"
    digests = [digest_run(store.url), digest_run(store.url, step=6), digest_run(store.url, best=True)]
    assert [fields["step"] for fields in digests] == [8, 6, 4]
    assert len({fields["sha256"] for fields in digests}) == 3
    assert digest_run(store.url, best=True) == digest_run(store.url, step=4)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(store: LocalStore) -> None:
    with pytest.raises(ConfigError, match="no checkpoint of step 2") as caught:
        restore_run(store, Which(step=2))
    assert caught.value.expected == "one of the steps 4, 6, 8"
    with pytest.raises(ConfigError, match="both asked for"):
        Which(step=4, best=True)


def test_what_another_attempt_left_behind_is_not_read_by_its_step(store: LocalStore) -> None:
    attempt = claim_attempt(store, config=CheckpointConfig(), report=lambda message: None)
    attempt.record_restored(6, CommitKey(6, 1).name)
    attempt.close()
    with pytest.raises(
        ConfigError, match="of step 8 that counts: attempt 2, the newest, descends from step 6"
    ):
        restore_run(store, Which(step=8))
    assert step_of(store, Which()) == 6


@pytest.mark.parametrize(("which", "step"), [(Which(step=4), 4), (Which(best=True), 4), (Which(), 8)])
@pytest.mark.parametrize("name", ["commits/*{:02}-1.json", "data/*{:02}/*/*.safetensors"])
def test_a_damaged_one_is_refused_and_no_other_is_taken(
    store: LocalStore, tmp_path: Path, which: Which, step: int, name: str
) -> None:
    (path,) = (tmp_path / "run").glob(name.format(step))
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    for read in (
        lambda: restore_run(store, which),
        lambda: digest_run(store.url, step=which.step, best=which.best),
    ):
        with pytest.raises(DamagedCheckpoint, match=rf"of step {step}, .* is damaged") as caught:
            read()
        assert "no other is taken in its place" in str(caught.value)
        assert "--step N" in str(caught.value)
    assert step_of(store, Which(step=6)) == 6
    for line in verify_anything(store.url):
        assert "\\n" not in one_line(line)
    restored = restore_newest(store)  # as training does
    assert restored is not None
    assert restored.commit.step == (6 if step == 8 else 8)


def test_a_newest_that_goes_while_it_is_read_gives_way_to_the_later_one(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restore(store: Store, key: CommitKey, *, prefix: str) -> Restored:
        if key.step == 6:
            lower.undo()
            raise ObjectNotFound("retention was here")
        return restore_commit(store, key, prefix=prefix)

    lower = pytest.MonkeyPatch()
    lower.setattr(checkpoints, "list_keys", lambda store: [CommitKey(6, 1)])
    lower.setattr(checkpoints, "newest_known", lambda store: None)
    monkeypatch.setattr(checkpoints, "restore_commit", restore)
    assert step_of(store, Which()) == 8


def test_a_record_that_is_damaged_is_not_taken_for_a_run_without_checkpoints(
    store: LocalStore, tmp_path: Path
) -> None:
    live = claim_attempt(store, config=CheckpointConfig(), report=lambda message: None)
    live.record_restored(8)
    live.close()
    (tmp_path / "run" / "attempts" / "2.from.json").write_text("{}")
    for read in (lambda: restore_run(store), lambda: digest_run(store.url)):
        with pytest.raises(CheckpointError, match=r"is known to have is gone|None of the 3 checkpoints"):
            read()


def test_without_an_evaluation_nothing_is_the_best(tmp_path: Path) -> None:
    store = write_run(tmp_path / "run", LOSSES, evaluated=False)
    with pytest.raises(RunError, match="No evaluation says which") as caught:
        restore_run(store, Which(best=True))
    assert caught.value.expected is not None
    assert "of step 6, 8" in caught.value.expected
    with pytest.raises(RunError, match="no checkpoint yet"):
        restore_run(open_store(str(tmp_path / "nowhere")), Which(best=True))


def test_a_best_one_that_was_not_kept_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = write_run(tmp_path / "run", LOSSES, keep_best=False)
    assert step_of(store, Which(best=True)) == 6
    assert "the best by loss was that of step 4, which was not kept" in caplog.text


def test_the_list_says_why_each_is_there(store: LocalStore) -> None:
    rows = {row["step"]: row for row in list_checkpoints(store.url)}
    assert list(rows) == [8, 6, 4]
    assert [row["evaluation"]["loss"] for row in rows.values()] == [3.0, 2.0, 1.0]
    assert [(row["newest"], row["best"]) for row in rows.values()] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert [row["kept_because"] for row in rows.values()] == [
        ["among the newest"],
        ["among the newest"],
        ["the best"],
    ]


def test_the_list_does_without_a_description(
    store: LocalStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(tmp_path / "run" / "evaluations")
    (tmp_path / "run" / "attempts" / "1.run.json").write_text("{")
    rows = list_checkpoints(store.url)
    assert [(row["step"], row["best"], row["metric"]) for row in rows] == [
        (8, False, None),
        (6, False, None),
        (4, False, None),
    ]
    assert "description is damaged" in caplog.text


def test_a_run_whose_recipe_knows_no_metric_ranks_by_the_loss(store: LocalStore, tmp_path: Path) -> None:
    description = read_description(store)
    del description["recipe"]["checkpoint"]["best_metric"]
    store.delete("attempts/1.run.json")
    store.create(FORMER_NAME, [json.dumps(description).encode()])
    assert step_of(store, Which(best=True)) == 4
