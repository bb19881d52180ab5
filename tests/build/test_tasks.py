"""``--task I/N``: what is read, and what is refused."""

import pytest

from outlast.build.tasks import parse_task
from outlast.errors import ConfigError


@pytest.mark.parametrize(("text", "task"), [(None, None), ("0/1", (0, 1)), ("2/3", (2, 3))])
def test_a_task_is_read(text: str | None, task: tuple[int, int] | None) -> None:
    assert parse_task(text) == task


@pytest.mark.parametrize("text", ["3/3", "1", "-1/3", "a/b", "0/0", ""])
def test_a_wrong_task_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="I from 0 to N-1"):
        parse_task(text)
