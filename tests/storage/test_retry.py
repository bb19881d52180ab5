"""Waiting for a store that does not answer."""

from pathlib import Path

import pytest

from outlast.errors import StoreUnreachable
from outlast.storage import LocalStore


def test_a_store_that_does_not_answer_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []

    def answer() -> str:
        if len(pauses) < 6:
            raise StoreUnreachable("The server does not answer.", where="http://host/name")
        return "answer"

    with caplog.at_level("WARNING", "outlast"):
        assert LocalStore(tmp_path).retry(answer, pause=pauses.append) == "answer"
    assert [round(pause, 1) for pause in pauses] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    words = "The server does not answer. http://host/name is asked again in {} s, for 180 s more"
    assert caplog.messages == [words.format(2), words.format(3)]
