"""Following a run from outside: each new checkpoint once, and always an end."""

from typing import Any

import pytest

from outlast.errors import DamagedCheckpoint
from outlast.run.evaluate import POLL_SECONDS, follow


class Story:
    """A run as seen from outside: which step is the newest at which second."""

    def __init__(self, newest: dict[float, int], damaged: int | None = None) -> None:
        self.newest = newest
        self.damaged = damaged
        self.now = 0.0

    def newest_step(self) -> int | None:
        return max((step for second, step in self.newest.items() if second <= self.now), default=None)

    def evaluate_newest(self) -> dict[str, Any]:
        newest = self.newest_step()
        if newest == self.damaged:
            raise DamagedCheckpoint(f"step {newest}")
        return {"step": newest}

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def follow(self, total_steps: int, timeout_seconds: float) -> list[int]:
        results = follow(
            self.newest_step,
            self.evaluate_newest,
            total_steps=lambda: total_steps,
            timeout_seconds=timeout_seconds,
            clock=lambda: self.now,
            sleep=self.sleep,
        )
        return [result["step"] for result in results]


def test_each_new_checkpoint_is_evaluated_once_to_the_last_step() -> None:
    story = Story({20: 10, 60: 20, 100: 30})
    assert story.follow(total_steps=30, timeout_seconds=50) == [10, 20, 30]
    assert story.now < 100 + POLL_SECONDS


def test_it_ends_when_no_checkpoint_comes() -> None:
    assert Story({}).follow(total_steps=30, timeout_seconds=50) == []
    story = Story({0: 10, 500: 30})
    assert story.follow(total_steps=30, timeout_seconds=50) == [10]
    assert 50 <= story.now <= 50 + POLL_SECONDS


def test_a_damaged_checkpoint_is_left_out_and_an_error_where_no_other_comes() -> None:
    assert Story({0: 10, 1: 20, 60: 30}, damaged=20).follow(total_steps=30, timeout_seconds=70) == [10, 30]
    with pytest.raises(DamagedCheckpoint, match="step 20"):
        Story({0: 10, 1: 20}, damaged=20).follow(total_steps=30, timeout_seconds=70)
