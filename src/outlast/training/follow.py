"""Evaluating a run from outside, checkpoint by checkpoint, while it goes on.

In: functions that tell the newest committed step and evaluate it. Out: one result per new checkpoint. It
always ends: with the run's last step, or when no new checkpoint came for a while, so nothing that waits for
it waits for ever.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

POLL_SECONDS = 5.0


def follow(
    newest_step: Callable[[], int | None],
    evaluate_newest: Callable[[], dict[str, Any]],
    *,
    total_steps: Callable[[], int],
    timeout_seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Yield the evaluation of each new checkpoint; those that come while one is evaluated are left out but
    the newest.

    Args:
        newest_step: the newest committed step, None while there is none.
        evaluate_newest: evaluates the newest checkpoint; the result names its ``step``.
        total_steps: the last step of the run; asked after an evaluation.
        timeout_seconds: how long to wait for a new checkpoint.
    """
    seen, deadline = -1, clock() + timeout_seconds
    while clock() < deadline:
        newest = newest_step()
        if newest is None or newest <= seen:
            sleep(POLL_SECONDS)
            continue
        result = evaluate_newest()
        yield result
        if result["step"] >= total_steps():
            return
        # The newest may be damaged and an older one evaluated: it is not tried again.
        seen, deadline = max(newest, result["step"]), clock() + timeout_seconds
