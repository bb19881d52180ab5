"""An object in order, by ranges that are asked for side by side, as many as fill the way to the store.
A server that gives no ranges is asked once for the whole.

In: a way to read a range, and the object's size. Out: its bytes, from the first to the last. How many
requests are under way follows what is measured: the rate at which answers come, times how long one takes, is
what fills the way to the store (Little's law); twice that keeps it full. More would only hold memory.
"""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from outlast.errors import StorageError
from outlast.storage import Store
from outlast.stream.remote.cancel import Cancellation

RANGE_BYTES = 4 * 2**20
LEAST_IN_FLIGHT = 4
MOST_IN_FLIGHT = 32
"""Times ``RANGE_BYTES`` the memory that ranges take, at most."""
_ROUNDS = 8
_LEAST_ROUND_SECONDS = 0.05


class InFlight:
    """The requests that may be under way at once, of all objects together. Threads share it.

    An object's first request waits for its turn; a further one is made only while nobody waits. So objects
    that are asked for together share the way, and one alone has all of it.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free = threading.Condition()
        self._taken = self._waiting = 0
        self._rounds: deque[tuple[float, float]] = deque(maxlen=_ROUNDS)
        self._began = clock()
        self._answers = 0
        self._shortest = math.inf
        self.limit = 2 * LEAST_IN_FLIGHT

    def take(self, *, first: bool) -> bool:
        """Take the right to make a request. One that is not its object's first may be refused."""
        with self._free:
            if not first and (self._waiting or self._taken >= self.limit):
                return False
            self._waiting += 1
            try:
                self._free.wait_for(lambda: self._taken < self.limit)
            finally:
                self._waiting -= 1
            self._taken += 1
            return True

    def give_back(self) -> None:
        """Give back what was taken: the answer has been made use of."""
        with self._free:
            self._taken -= 1
            self._free.notify_all()

    def wait_for_spare(self, cancellation: Cancellation) -> None:
        """Wait until the objects under way leave something to spare, or nobody wants it."""
        with self._free:
            while not cancellation.is_cancelled() and (self._waiting or self._taken >= self.limit):
                self._free.wait(1.0)

    def measure(self, seconds: float) -> None:
        """Count an answer that took so long."""
        with self._free:
            self._answers += 1
            self._shortest = min(self._shortest, seconds)
            now = self._clock()
            elapsed = now - self._began
            if self._answers < self.limit or elapsed < _LEAST_ROUND_SECONDS:
                return
            self._rounds.append((self._answers / elapsed, self._shortest))
            self._began, self._answers, self._shortest = now, 0, math.inf
            rate = max(rate for rate, _ in self._rounds)
            latency = min(shortest for _, shortest in self._rounds)
            self.limit = max(LEAST_IN_FLIGHT, min(MOST_IN_FLIGHT, math.ceil(2 * rate * latency)))
            self._free.notify_all()


def copy_object(
    store: Store,
    name: str,
    size_bytes: int,
    take: Callable[[int, bytes], object],
    in_flight: InFlight,
    cancellation: Cancellation,
) -> None:
    """Give an object of a store its chunks in order: by ranges, or whole where its server gives none.

    Args:
        size_bytes: of the object, as the manifest says.
        take: gets where a chunk begins and the chunk. Begins again at 0 where a whole object was interrupted.
        in_flight, cancellation: as of ``copy_in_order``.

    Raises:
        Cancelled: the object is wanted no longer.
        StorageError: it cannot be read, or has another size.
    """

    def read(start: int, length: int) -> bytes:
        return store.retry(store.read_range, name, start, length, pause=cancellation.pause)

    # What fits into one range is one request, whatever the server does with it.
    if size_bytes <= RANGE_BYTES or store.retry(store.gives_ranges, name, pause=cancellation.pause):
        position = itertools.count(0, RANGE_BYTES)
        copy_in_order(
            read, size_bytes, lambda content: take(next(position), content), in_flight, cancellation
        )
        return

    end = 0

    def take_whole(start: int, content: bytes) -> None:
        nonlocal end
        cancellation.check()
        end = start + len(content)
        if end <= size_bytes:
            take(start, content)

    in_flight.take(first=True)
    try:
        store.retry(store.download, name, take_whole, pause=cancellation.pause)
    finally:
        in_flight.give_back()
    if end != size_bytes:
        raise StorageError(f"The object has {end} bytes.", where=store.url_of(name), expected=str(size_bytes))


def copy_in_order(
    read: Callable[[int, int], bytes],
    size_bytes: int,
    sink: Callable[[bytes], object],
    in_flight: InFlight,
    cancellation: Cancellation,
) -> None:
    """Give an object to a sink, from its first byte to its last.

    Args:
        read: returns so many bytes from a place; called by several threads. What it raises is raised here,
            once those that are under way have ended.
        size_bytes: of the object.
        sink: gets the chunks in order.
        in_flight: bounds the requests under way, and by that the memory.
        cancellation: of this object: asked between requests, and cancelled here where anything fails, so that
            ``read`` does not go on repeating a request of which nobody wants the answer.

    Raises:
        Cancelled: the object is wanted no longer.
    """

    def read_chunk(start: int) -> bytes:
        cancellation.check()
        began = time.monotonic()
        content = read(start, min(RANGE_BYTES, size_bytes - start))
        in_flight.measure(time.monotonic() - began)
        return content

    starts = deque(range(0, size_bytes, RANGE_BYTES))
    asked: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(max(1, min(len(starts), MOST_IN_FLIGHT)), "outlast-range") as readers:
        try:
            while starts or asked:
                while starts and in_flight.take(first=not asked):
                    try:
                        asked.append(readers.submit(read_chunk, starts.popleft()))
                    except BaseException:  # an interpreter that is ending takes no more work
                        in_flight.give_back()
                        raise
                sink(asked[0].result())
                asked.popleft()
                in_flight.give_back()
        except BaseException:
            cancellation.cancel()
            raise
        finally:
            for _ in asked:
                in_flight.give_back()
