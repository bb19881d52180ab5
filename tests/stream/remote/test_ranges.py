"""Ranges side by side: in order, as many as the way to the store takes, and never more."""

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from outlast.stream.remote import ranges
from outlast.stream.remote.cancel import Cancellation, Cancelled
from outlast.stream.remote.ranges import LEAST_IN_FLIGHT, MOST_IN_FLIGHT, InFlight, copy_in_order

CONTENT = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE_BYTES", 64)


def read(start: int, length: int) -> bytes:
    return CONTENT[start : start + length]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, len(CONTENT)])
def test_the_bytes_come_in_order(size: int) -> None:
    chunks: list[bytes] = []
    in_flight = InFlight()
    copy_in_order(read, size, chunks.append, in_flight, Cancellation())
    assert b"".join(chunks) == CONTENT[:size]
    assert all(in_flight.take(first=False) for _ in range(LEAST_IN_FLIGHT)), "all has been given back"


def test_a_slow_answer_holds_nobody_else_up_and_memory_is_bounded() -> None:
    """While the third answer is out, others are asked for up to the limit; then one for each that is used."""
    asked: list[int] = []
    answer, window_is_full = threading.Event(), threading.Event()
    in_flight = InFlight()
    limit = in_flight.limit

    def slow(start: int, length: int) -> bytes:
        asked.append(start)
        if len(asked) == limit + 2:
            window_is_full.set()
        if start == 2 * 64:
            assert answer.wait(60)
        return read(start, length)

    chunks: list[bytes] = []
    worker = threading.Thread(
        target=copy_in_order, args=(slow, len(CONTENT), chunks.append, in_flight, Cancellation())
    )
    worker.start()
    assert window_is_full.wait(60), "a barrier: nothing is asked for before the slow answer is there"
    time.sleep(0.05)
    assert len(asked) == limit + 2, "two have been used, the rest is held"
    answer.set()
    worker.join()
    assert b"".join(chunks) == CONTENT


def test_objects_share_the_way_and_each_gets_on() -> None:
    in_flight = InFlight()
    most: Counter[str] = Counter()
    under_way = 0
    lock = threading.Lock()

    def counted(start: int, length: int) -> bytes:
        nonlocal under_way
        with lock:
            under_way += 1
            most["at once"] = max(most["at once"], under_way)
        time.sleep(0.001)
        with lock:
            under_way -= 1
        return read(start, length)

    found: list[list[bytes]] = [[] for _ in range(2 * MOST_IN_FLIGHT)]
    threads = [
        threading.Thread(target=copy_in_order, args=(counted, 640, chunks.append, in_flight, Cancellation()))
        for chunks in found
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(b"".join(chunks) == CONTENT[:640] for chunks in found)
    assert most["at once"] <= MOST_IN_FLIGHT


def test_an_error_is_raised_and_gives_all_back() -> None:
    in_flight = InFlight()

    def broken(start: int, length: int) -> bytes:
        if start == 5 * 64:
            raise OSError("gone")
        return read(start, length)

    with pytest.raises(OSError, match="gone"):
        copy_in_order(broken, len(CONTENT), lambda _: None, in_flight, Cancellation())
    with pytest.raises(Cancelled):
        copy_in_order(read, len(CONTENT), lambda _: None, in_flight, Cancellation(lambda: True))
    with pytest.raises(ZeroDivisionError):
        copy_in_order(read, len(CONTENT), lambda _: 1 // 0, in_flight, Cancellation())
    assert all(in_flight.take(first=False) for _ in range(LEAST_IN_FLIGHT))


def test_who_is_interrupted_while_waiting_waits_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = InFlight()

    def interrupt(self: threading.Condition, condition: Callable[[], bool]) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(threading.Condition, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            in_flight.take(first=True)
    assert all(in_flight.take(first=False) for _ in range(in_flight.limit))


@pytest.mark.parametrize(
    ("latency", "most_per_second", "expected"),
    [
        (0.1, 1000.0, MOST_IN_FLIGHT),  # far away: as many as memory allows
        (0.1, 100.0, 20),  # twice 0.1 s times 100 a second
        (0.005, 200.0, LEAST_IN_FLIGHT),  # near: few fill the way
    ],
)
def test_the_limit_is_twice_latency_times_rate(latency: float, most_per_second: float, expected: int) -> None:
    """A store that answers after a latency, and no more often than so many times a second."""
    now = 0.0
    in_flight = InFlight(lambda: now)
    for _ in range(400):
        num = in_flight.limit
        round_seconds = max(latency, num / most_per_second)
        now += round_seconds
        for _ in range(num):
            # Answers queue up behind each other where the rate is the limit; one alone takes the latency.
            in_flight.measure(latency)
    assert abs(in_flight.limit - expected) <= 2
