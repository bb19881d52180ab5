"""Whose a folder is: what is taken away in it, and which recipe it belongs to."""

import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.build.plan import withdraw_plan
from outlast.corpus.config import CorpusConfig
from outlast.errors import OutlastError, TokenizerError
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.storage import LocalStore
from outlast.tokenizer.config import TokenizerConfig
from support.builds import write_lines

TOKENIZER = TokenizerConfig(vocab_size=310, keep_whitespace=True)
SHARDS = ShardsConfig(num_shards=2, num_processes=1)


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    return CorpusConfig(path=str(write_lines(tmp_path / "a.jsonl")), format="jsonl")


def test_only_what_killed_writers_left_is_taken_away(corpus: CorpusConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    name = f".tmp-{uuid.uuid4().hex}"
    leftovers = [out / folder / name for folder in ("", "tokenizer", "done", "cleaning/scan", "failed")]
    others = [out / "run/data" / name, out / "mine/.tmp-notes", out / ".tmp-notes", out / "failed/mine.json"]
    for path in [*leftovers, *others]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=SHARDS), out)
    assert [path for path in leftovers if path.exists()] == []
    assert [path for path in others if not path.exists()] == []


def test_a_recipe_that_is_corrected_finds_the_folder_free(corpus: CorpusConfig, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for task in (None, (0, 2)):
        with pytest.raises(TokenizerError, match="vocab_size"):
            prepare_data(
                Recipe(corpus=corpus, tokenizer=TokenizerConfig(vocab_size=100_000), shards=SHARDS),
                out,
                task=task,
            )
    assert prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=SHARDS), out)


def test_a_task_does_not_go_on_with_the_tokenizer_of_another_recipe(
    corpus: CorpusConfig, tmp_path: Path
) -> None:
    """Its recipe was withdrawn and replaced while it waited for the tokenizer."""
    out = tmp_path / "out"
    failed: list[OutlastError] = []

    def wait() -> None:
        try:
            prepare_data(
                Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=replace(SHARDS, num_shards=4)),
                out,
                task=(1, 2),
            )
        except OutlastError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not (out / "plan.json").exists():
        time.sleep(0.001)
    withdraw_plan(LocalStore(out))
    assert prepare_data(Recipe(corpus=corpus, tokenizer=TOKENIZER, shards=SHARDS), out, task=(0, 2)) is None
    thread.join()
    assert "num_shards: 2 there, 4 now" in str(failed[0])
