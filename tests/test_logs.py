"""What a person sees: numbers they can read, a line of progress, messages that do not run into each other."""

import io
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from outlast.errors import CorpusError, listed
from outlast.logs import ProgressLine, format_count, format_seconds, log, set_up, tell_end
from support.terminal import Terminal, shown_on


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def logger_as_before() -> Iterator[None]:
    former = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = former[0], former[2]
    log.setLevel(former[1])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (7, "7"),
        (950, "950"),
        (999.4, "999"),
        (999.7, "1k"),
        (1000, "1k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_999, "1M"),
        (4_120_000, "4.12M"),
        (1.5e9, "1.5G"),
        (2.34e12, "2.34T"),
        (0.0123, "0.0123"),
    ],
)
def test_counts(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (41.6, "42s"),
        (59.7, "1m00s"),
        (190, "3m10s"),
        (7500, "2h05m"),
        (86400 * 3 + 4 * 3600, "3d04h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_log_gets_a_plain_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    clock = Clock()
    with (
        caplog.at_level(logging.INFO, "outlast"),
        ProgressLine("training", 200, start=100, clock=clock) as line,
    ):
        for step in range(101, 141):
            clock.now += 1.0
            line.update(step, f"step {step}")
    assert caplog.messages == [
        "training 55%: step 110, 1m30s left",
        "training 60%: step 120, 1m20s left",
        "training 65%: step 130, 1m10s left",
        "training 70%: step 140, 1m00s left",
    ]


@pytest.mark.parametrize(("stream", "interval"), [(io.StringIO(), 10.0), (Terminal(), 0.1)])
def test_something_new_is_due_now_and_then(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, interval: float
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    clock = Clock()
    line = ProgressLine("reading", 10, clock=clock)
    for _ in range(2):
        assert not line.is_due()
        clock.now += 0.9 * interval
        assert not line.is_due()
        clock.now += 0.2 * interval
        assert line.is_due()
        line.update(1, "note")


def test_no_time_left_where_it_cannot_be_told() -> None:
    clock = Clock()
    assert ProgressLine("reading", None, clock=clock).seconds_left(5) is None
    line = ProgressLine("reading", 10, start=3, clock=clock)
    assert line.seconds_left(3) is None
    clock.now += 2
    assert line.seconds_left(5) == 5.0


def test_messages_go_to_standard_error_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    set_up()
    log.info("step %d: [bold] and a very long path /%s", 3, "x" * 200)
    log.debug("not for everybody")
    captured = capsys.readouterr()
    assert captured.err == f"step 3: [bold] and a very long path /{'x' * 200}\n"
    assert captured.out == ""


def test_on_a_terminal_a_message_stands_above_the_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    set_up()
    with ProgressLine("training", 10) as line:
        line.update(5, "step 5")
        log.info("something happened")
    rows = shown_on(terminal)
    assert "something happened" in rows  # a row of its own, not behind the bar
    assert any(row.startswith("training") for row in rows)


def test_on_a_terminal_a_message_is_neither_cut_nor_coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    set_up()
    message = f"exported: s3://bucket/[red]name :smile: 123 /{'long/' * 30}"
    log.info("%s", message)
    assert terminal.getvalue() == message + "\n"


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_name_in_a_message_orders_nothing_and_begins_no_line(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    evil = "a\x1b]0;title\x07\nforged"
    set_up()
    log.info("skipped: %s, %s", evil, Path(evil))
    log.info("skipped: %s", OSError(2, "No such file", evil))
    log.warning("%s", CorpusError(f"The file {evil} is empty.", where=evil, remedy=f"rm {evil}"))
    log.info("%s", listed("next:", (f"  outlast {name}" for name in ("a", evil))))
    clock = Clock()
    with ProgressLine(evil, 10, clock=clock) as line:
        clock.now += 20
        line.update(5, evil)
        if line.live:
            line.live.refresh()
    shown = "\n".join(shown_on(cast(Terminal, stream)))
    assert shown.count("a\\x1b]0;title\\x07\\nforged") >= 8
    assert not {"\x1b]", "\x07"} & set(re.findall("\x1b.|\x07", stream.getvalue()))
    assert "\nforged" not in shown
    assert "next:\n  outlast a\n" in stream.getvalue()


def test_the_end_names_commands_that_a_shell_takes(capsys: pytest.CaptureFixture[str]) -> None:
    set_up()
    tell_end("done: my run", ("evaluate", "my run"), ("export", "my run", "model"))
    assert capsys.readouterr().err == (
        "done: my run; next: outlast evaluate 'my run'   or: outlast export 'my run' model\n"
    )
