"""Fetching the shards of a remote data set before a batch needs them.

In: which shards are needed from a step on, in the order of need. Out: files in the cache folder, kept there
until the steps that need them are past. Invariant: nothing here changes a batch or fails a step. A shard that
could not be fetched ahead is fetched, or its error is raised, when a batch needs it.
"""

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

from outlast.errors import StoreUnreachable
from outlast.logs import log
from outlast.stream.files import Shards
from outlast.stream.remote.cancel import Cancellation, Cancelled, work_for

Needs = Callable[[int], Iterable[tuple[int, int]]]
"""From a step: (step, shard) by rising step, for the shards that this step and later ones need."""

_MOST_THREADS = 16
_MOST_AHEAD = 96
"""Shards that are fetched ahead and not in use yet: each holds a descriptor."""
_LANES_AT_MOST = 256
"""Shards are named this much oftener than once an epoch: at the borders of lanes."""
_PAUSE_SECONDS = 1.0
_PATIENCE_AT_EXIT_SECONDS = 1.0


class ReadAhead:
    """Threads that fetch what the next windows need. Of a local data set: nothing.

    Args:
        shards: of the split.
        num_shards: how many there are.
        needs: which shards are needed from a step on.
        open_one: opens what belongs to a shard that has been fetched.
        cache_bytes: the limit of the cache folder; half of it may hold what is not needed yet.
    """

    def __init__(
        self,
        shards: Shards,
        num_shards: int,
        needs: Needs,
        open_one: Callable[[int], object],
        cache_bytes: int,
    ) -> None:
        self._shards = shards
        self._num_shards = num_shards
        self._needs = needs
        self._open_one = open_one
        self._cache_bytes = cache_bytes
        self._next_change = -math.inf if shards.is_remote else math.inf
        self._closing = Cancellation()
        self._changed = threading.Condition()
        self._queue: deque[int] = deque()
        self._threads: list[threading.Thread] = []
        self._has_warned = False
        # The threads are no reason for a process not to end.
        self._stop = weakref.finalize(self, _stop, self._closing, self._changed, self._threads)

    def advance(self, step: int) -> None:
        """Say that no step before this one will be asked for any more."""
        if step < self._next_change:
            return
        now, later, self._next_change = self._choose(step)
        self._shards.release({*now, *later})
        with self._changed:
            self._queue = deque(shard for shard in (*now, *later) if not self._shards.is_here(shard))
            self._changed.notify_all()
        while len(self._threads) < min(_MOST_THREADS, self._num_shards):
            thread = threading.Thread(target=self._work, name="outlast-ahead", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Stop, and let go of the shards; what is under way is left to end, and leaves nothing behind."""
        self._closing.cancel()
        self._shards.release(())
        with self._changed:
            self._changed.notify_all()
        self._stop.detach()

    def _choose(self, step: int) -> tuple[Sequence[int], Sequence[int], float]:
        """Return the shards that are needed now, those to fetch ahead, and the step when that changes."""
        now: list[int] = []
        later: list[int] = []
        seen: set[int] = set()
        spare = self._cache_bytes // 2
        change = math.inf
        for need, shard in islice(self._needs(step), self._num_shards + _LANES_AT_MOST):
            if need > step:
                change = min(change, need)
            if shard in seen:
                continue
            seen.add(shard)
            if need <= step:
                now.append(shard)
                continue
            spare -= self._shards.size_bytes(shard)
            if spare < 0 or len(later) == _MOST_AHEAD:
                break
            later.append(shard)
        self._warn(sum(map(self._shards.size_bytes, now)))
        return now, later, change

    def _warn(self, needed_bytes: int) -> None:
        if needed_bytes > self._cache_bytes and not self._has_warned:
            self._has_warned = True
            log.warning(
                "stream.cache_bytes is %d, and the shards that are read side by side have %d bytes: they "
                "will be fetched again and again. Set it to %d or more, or stream.window_examples lower.",
                self._cache_bytes,
                needed_bytes,
                2 * needed_bytes,
            )

    def _work(self) -> None:
        work_for(self._closing)
        with suppress(Cancelled):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._closing.is_cancelled())
                    self._closing.check()
                    shard = self._queue.popleft()
                self._fetch(shard)

    def _fetch(self, shard: int) -> None:
        try:
            if self._shards.fetch_ahead(shard, self._closing):
                self._open_one(shard)
            else:
                self._forget_queue()  # no room; there will be when the windows change
        except Cancelled:
            raise
        except StoreUnreachable as error:
            log.debug("a shard could not be fetched ahead, and will be tried again: %s", error)
            self._closing.pause(_PAUSE_SECONDS)
            with self._changed:
                self._queue.append(shard)
        except Exception as error:
            log.debug("a shard could not be fetched ahead: %s", error)

    def _forget_queue(self) -> None:
        with self._changed:
            self._queue.clear()


def _stop(closing: Cancellation, changed: threading.Condition, threads: list[threading.Thread]) -> None:
    """At the end of the process: give the threads a moment to delete what they have half written."""
    closing.cancel()
    with changed:
        changed.notify_all()
    deadline = time.monotonic() + _PATIENCE_AT_EXIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
