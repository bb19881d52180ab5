"""When work is wanted no longer: an iterator was closed, something failed, or the process is ending.

In: who works for whom. Out: a ``Cancellation`` that those who work ask between requests and wait with.
Invariant: a request that is under way is never cut off; nothing new is begun, and no pause is waited out,
once nobody wants the result.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import lru_cache

_LOOK_SECONDS = 0.1


class Cancelled(Exception):
    """Nobody wants the result any more."""


class Cancellation:
    """Tells threads that their work is wanted no longer. The end of the process does, too.

    Args:
        also: asked besides, such as another one's ``is_cancelled``: a part is cancelled with its whole.
    """

    def __init__(self, also: Callable[[], bool] = lambda: False) -> None:
        self._also = also
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    def is_cancelled(self) -> bool:
        return self._event.is_set() or self._also() or is_ending()

    def check(self) -> None:
        """Raise Cancelled where that is so."""
        if self.is_cancelled():
            raise Cancelled

    def pause(self, seconds: float) -> None:
        """Sleep. Raises Cancelled, soon after that is so."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            self._event.wait(min(left, _LOOK_SECONDS))
        self.check()


def is_ending() -> bool:
    """Whether the main thread has left the program, and the interpreter waits for the threads of pools.

    ``threading.main_thread().is_alive()`` turns false only after that wait, and ``atexit`` comes after it.
    """
    try:
        pool, idle = _idle_thread()
    except RuntimeError:
        return True  # it takes no more work
    is_alive = idle.is_alive()
    del pool  # not before: a pool that is gone ends its thread
    return not is_alive


@lru_cache(maxsize=1)
def _idle_thread() -> tuple[ThreadPoolExecutor, threading.Thread]:
    """Return a thread that has nothing to do, with its pool: it ends when the interpreter begins to end."""
    pool = ThreadPoolExecutor(1, "idle")
    return pool, pool.submit(threading.current_thread).result()


os.register_at_fork(after_in_child=_idle_thread.cache_clear)  # threads stay with the parent

_of_thread: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def work_for(cancellation: Cancellation) -> None:
    """Set what this thread's work belongs to from now on. For the initializer of a pool."""
    _of_thread.set(cancellation)


def current_cancellation() -> Cancellation:
    """Return what this thread's work belongs to; in a thread of the caller's own, a new one."""
    return _of_thread.get() or Cancellation()
