"""Threads where memory may be short: started, or refused in words; work shared among them, or done by one.

In: a thread, or work. Out: a thread that runs, or the work done. Python waits for ever for a thread that the
system has started and that then finds no memory for its first call, so room is looked for before.
"""

import mmap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from outlast.errors import explained_limits

T = TypeVar("T")

_THREAD_BYTES = 2**24
"""Of address space: a stack, 8 MiB on most systems, and the first of Python's own."""


@explained_limits()
def start(thread: threading.Thread) -> None:
    """Start a thread. Raises OutlastError where the system has no room for one, or refuses."""
    if not _has_room(1):
        raise MemoryError
    thread.start()


def for_each(action: Callable[[T], object], items: Sequence[T], num_threads: int) -> None:
    """Call an action with each item, in several threads, or in this one where memory is short.

    The action may be called twice with an item. What it raises comes out.
    """
    if _has_room(num_threads):
        try:
            with ThreadPoolExecutor(num_threads) as pool:
                for _ in pool.map(action, items):
                    pass
            return
        except (MemoryError, RuntimeError):
            pass  # no further thread, or no memory for several items at once: one may do
    for item in items:
        action(item)


def _has_room(num_threads: int) -> bool:
    try:
        mmap.mmap(-1, num_threads * _THREAD_BYTES).close()
    except OSError:
        return False
    return True
