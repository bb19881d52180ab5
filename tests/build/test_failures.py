"""A task that waits for another one hears that it failed, and of what."""

import logging
import threading
from pathlib import Path

import pytest

from outlast.build import failures
from outlast.build.failures import FailureWatch, delete_notes, noting_failure
from outlast.cleaning.config import CleaningConfig
from outlast.corpus.config import CorpusConfig
from outlast.errors import OutlastError
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from support.builds import write_lines

TOKENIZER = TokenizerConfig(vocab_size=310, keep_whitespace=True)
ONE_PROCESS = ShardsConfig(num_shards=4, num_processes=1)


def spoil(path: Path, portion: int, num_portions: int) -> bytes:
    """Make a line of a portion unreadable, between two blocks of the digest of its file; return what the
    file was.
    """
    content = path.read_bytes()
    block = 15 * (2 * portion + 1) // (2 * num_portions)
    begin = content.index(b"\n", (len(content) - 4096) * block // 15 + 4096) + 1
    path.write_bytes(content[:begin] + b"?" + content[begin + 1 :])
    return content


def run_tasks(corpus: CorpusConfig, cleaning: CleaningConfig, out: Path, num_tasks: int) -> dict[int, str]:
    """Run tasks side by side; return what the failed ones said."""
    failed: dict[int, str] = {}

    def run(task: int) -> None:
        try:
            prepare_data(
                Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=cleaning),
                out,
                task=(task, num_tasks),
            )
        except OutlastError as error:
            failed[task] = str(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in range(num_tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


@pytest.mark.parametrize(
    ("cleaning", "portion", "first", "words"),
    [
        (CleaningConfig(), 0, 0, "not valid JSON"),
        (CleaningConfig(duplicates="exact"), 0, 0, "1 of 2 portions failed"),
        (CleaningConfig(duplicates="exact"), 1, 1, "1 of 2 portions failed"),
    ],
)
def test_the_failure_of_a_task_ends_those_that_wait_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cleaning: CleaningConfig,
    portion: int,
    first: int,
    words: str,
) -> None:
    monkeypatch.setattr(failures, "_GRACE_SECONDS", 0.3)
    path = write_lines(tmp_path / "a.jsonl", 600)
    corpus = CorpusConfig(path=str(path), format="jsonl")
    whole = tmp_path / "whole"
    prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS, cleaning=cleaning), whole)
    content = spoil(path, portion, 4)
    failed = run_tasks(corpus, cleaning, tmp_path / "out", 2)
    other = 1 - first
    assert words in failed[first]
    assert "a.jsonl" in failed[first]
    assert f"Task {first}/2, for which this one waits, has failed: {failed[first]}" in failed[other]
    assert "start that task again" in failed[other]
    assert len(list((tmp_path / "out" / "failed").iterdir())) == 2
    path.write_bytes(content)
    monkeypatch.setattr(failures, "_GRACE_SECONDS", 60.0)
    assert run_tasks(corpus, cleaning, tmp_path / "out", 2) == {}
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {path.name for path in whole.iterdir()}, "no note is left"
    for path in whole.glob("*.*"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path


def test_a_failed_task_is_named_where_its_portions_are_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_lines(tmp_path / "a.jsonl", 600)
    out = str(tmp_path / "out")
    corpus = CorpusConfig(path=str(path), format="jsonl")
    prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS), out, task=(0, 2))
    content = spoil(path, 3, 4)
    with pytest.raises(OutlastError, match=r"1 of 2 portions failed \(3\)"):
        prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS), out, task=(1, 2))
    with caplog.at_level(logging.INFO, "outlast"):
        assert (
            prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS), out, task=(0, 2))
            is None
        )
    assert "1 of 4 portions are left to other tasks: 3" in caplog.messages
    assert [line for line in caplog.messages if "task 1/2 failed: 1 of 2 portions failed (3)" in line]
    path.write_bytes(content)
    shards = {path: path.stat().st_mtime_ns for path in Path(out).glob("train-*")}
    assert prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=ONE_PROCESS), out, task=(1, 2))
    assert {path for path, built in shards.items() if path.stat().st_mtime_ns != built} == set()
    assert len(list(Path(out).glob("train-*"))) == len(shards) + 1


def test_a_note_of_an_earlier_life_is_said_and_counts_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    fail(store, "the disk was full")
    with caplog.at_level(logging.WARNING, "outlast"):
        watch = FailureWatch(store, 0)
    assert caplog.messages == ["task 0/3 has failed, and must be started again: the disk was full"]
    watch.check()
    FailureWatch(store, 1).check()
    with monkeypatch.context() as patch:
        patch.setattr(failures, "_GRACE_SECONDS", -1.0)
        with pytest.raises(OutlastError, match="has failed: the disk was full"):
            watch.check()
    fail(store, "the disk was full")
    with pytest.raises(
        OutlastError, match="Task 0/3, for which this one waits, has failed: the disk was full"
    ):
        watch.check()
    with noting_failure(store, (0, 3)):
        pass
    watch.check()
    assert not (tmp_path / "failed").exists()
    watch = FailureWatch(store, None)
    store.replace("failed/00002.json", [b"\xff"])
    with pytest.raises(OutlastError, match=r"Task \?, .* its note cannot be read"):
        watch.check()
    delete_notes(store)
    assert store.list() == []


def fail(store: LocalStore, message: str) -> None:
    with pytest.raises(OutlastError), noting_failure(store, (0, 3)):
        raise OutlastError(message)
