"""What a build says while it works: documents, bytes, tokens, rates, the time left."""

import logging
import re
import sys
from pathlib import Path

import pytest

from outlast import logs
from outlast.build.drive import describe_progress
from outlast.cleaning.config import CleaningConfig
from outlast.corpus.config import CorpusConfig
from outlast.prepare import portion
from outlast.prepare.build import prepare_data
from outlast.recipe import Recipe
from outlast.shards.config import ShardsConfig
from outlast.tokenizer.config import TokenizerConfig
from support.builds import write_lines
from support.terminal import Terminal, shown_on

COUNT = r"[\d.]+[kMG]?"
AMOUNT = rf"{COUNT} documents, {COUNT}B"
TOKENS = rf"{AMOUNT}, {COUNT} tokens, {COUNT}B/s, {COUNT} tokens/s"


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusConfig:
    return CorpusConfig(path=str(write_lines(tmp_path / "a.jsonl")), format="jsonl")


def build(corpus: CorpusConfig, out: Path, num_processes: int, task: tuple[int, int] | None) -> None:
    prepare_data(
        Recipe(
            corpus=corpus,
            tokenizer=TokenizerConfig(vocab_size=310, keep_whitespace=True),
            shards=ShardsConfig(num_shards=3, num_processes=num_processes),
            cleaning=CleaningConfig(duplicates="exact"),
        ),
        out,
        task=task,
    )


@pytest.mark.parametrize(("num_processes", "task"), [(1, None), (2, None), (1, (0, 1))])
def test_a_log_shows_how_far_each_step_is(
    corpus: CorpusConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    num_processes: int,
    task: tuple[int, int] | None,
) -> None:
    monkeypatch.setattr(logs, "_PLAIN_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(portion, "_BATCH_DOCUMENTS", 10)
    with caplog.at_level(logging.INFO, "outlast"):
        build(corpus, tmp_path / "out", num_processes, task)

    def lines(pattern: str) -> int:
        return sum(re.fullmatch(pattern, line) is not None for line in caplog.messages)

    left = r"(, \d+s left)?"
    assert lines(rf"scan \d+%: {AMOUNT}, {COUNT}B/s{left}") >= 3
    assert lines(rf"text for the tokenizer \d+%: {AMOUNT}, {COUNT}B/s{left}") > 100
    assert lines(rf"shards \d+%: {TOKENS}{left}") >= 3
    assert lines(rf"scan: 330 documents, {COUNT}B, {COUNT}B/s in \d+s") == 1
    assert (
        lines(rf"shards: 300 documents, {COUNT}B, {COUNT} tokens, {COUNT}B/s, {COUNT} tokens/s in \d+s") == 1
    )
    assert [line for line in caplog.messages if line.startswith("shards 100%")]


def test_a_terminal_shows_a_bar(
    corpus: CorpusConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(logs, "_LIVE_INTERVAL_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    logs._terminal.cache_clear()  # pyright: ignore[reportPrivateUsage]
    build(corpus, tmp_path / "out", 1, None)
    logs._terminal.cache_clear()  # pyright: ignore[reportPrivateUsage]
    rows = shown_on(terminal)
    for what in ("scan", "text for the tokenizer", "shards"):
        assert [row for row in rows if row.startswith(what)], what


def test_tokens_are_left_out_where_there_are_none() -> None:
    assert describe_progress((1000, 2_000_000, 0), 4.0) == "1k documents, 2MB, 500kB/s"
    assert describe_progress((1, 20, 10), 5.0) == "1 documents, 20B, 10 tokens, 4B/s, 2 tokens/s"
    assert describe_progress((0, 0, 0), 0.0) == "0 documents, 0B, 0B/s"
