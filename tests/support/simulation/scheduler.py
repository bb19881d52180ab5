"""Threads that run one at a time, on a clock that nobody waits for: the same seed, the same history.

In: actions with their times. Out: the calls of many threads in the order of those times. A thread that waits
runs whatever comes next itself, and hands over only where the next thing is another thread's; so a history in
which nothing overlaps costs no switch. ``Thread``, ``Event`` and ``Lock`` are what the checkpoint code takes
from ``threading``.
"""

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Stopped(BaseException):
    """The process of this thread is dead: nothing of it runs any more."""


@dataclass(eq=False)
class Process:
    """What is killed and falls asleep as a whole. ``asleep_until`` is a time of the scheduler."""

    name: str
    dead: bool = False
    asleep_until: float = 0.0


@dataclass(eq=False)
class Task:
    """One thread of a process."""

    process: Process
    action: Callable[[], object]
    done: bool = False
    ticket: int = 0
    """Which of its waits the task is in: a wake for an earlier one is void."""
    waiters: "list[Task]" = field(default_factory=list["Task"])
    _baton: Any = field(default_factory=threading.Lock)
    _started: bool = False

    def __post_init__(self) -> None:
        self._baton.acquire()

    def rest(self) -> None:
        self._baton.acquire()

    def resume(self, run: "Callable[[Task], None]") -> None:
        if self._started:
            self._baton.release()
            return
        self._started = True
        worker = _idle.pop() if _idle else _Worker()
        worker.begin(lambda: run(self))


_idle: "list[_Worker]" = []


class _Worker:
    """A thread of the system, used again and again: making one costs more than a whole save here."""

    def __init__(self) -> None:
        self._go = threading.Lock()
        self._go.acquire()
        self._action: Callable[[], None] = lambda: None
        threading.Thread(target=self._work, daemon=True).start()

    def begin(self, action: Callable[[], None]) -> None:
        self._action = action
        self._go.release()

    def _work(self) -> None:
        while True:
            self._go.acquire()
            self._action()
            _idle.append(self)


class Scheduler:
    """The clock and whose turn it is.

    Args:
        died: told of an exception that ended a thread.
    """

    def __init__(self, died: Callable[[Process, Exception], None]) -> None:
        self.now = 0.0
        self.current = Task(Process("director"), lambda: None, _started=True)
        self._died = died
        self._number = itertools.count()
        self._events: list[tuple[float, int, Any, int | None]] = []

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (seconds, next(self._number), action, None))

    def spawn(self, process: Process, action: Callable[[], object]) -> Task:
        task = Task(process, action)
        self.wake(task)
        return task

    def wake(self, task: Task) -> None:
        heapq.heappush(self._events, (self.now, next(self._number), task, task.ticket))

    def sleep(self, seconds: float) -> None:
        """Wait for a time. Who is woken before sleeps on."""
        end = self.now + seconds
        self.wait(end)
        while self.now < end:
            self.wait(end)

    def wait(self, until: float | None = None) -> None:
        """Let others run until this task is woken, or until a time. Raises Stopped where it is dead then."""
        task = self.current
        if task.process.dead:
            raise Stopped
        if until is not None:
            heapq.heappush(self._events, (until, next(self._number), task, task.ticket))
        self._pass_on(task)
        if task.process.dead:
            raise Stopped

    def last_event(self) -> float:
        """Return the time of the last thing that is to happen."""
        return max((event[0] for event in self._events), default=self.now)

    def _run(self, task: Task) -> None:
        try:
            if not task.process.dead:
                task.action()
        except Stopped:
            pass
        except Exception as error:
            self._died(task.process, error)
        task.done = True
        for waiter in task.waiters:
            self.wake(waiter)
        self._pass_on(None)

    def _pass_on(self, me: Task | None) -> None:
        while True:
            seconds, number, what, ticket = heapq.heappop(self._events)
            if ticket is None:
                self.now = max(self.now, seconds)
                what()
                continue
            process = what.process
            if what.done or what.ticket != ticket:
                continue
            if process.asleep_until > seconds and not process.dead:
                heapq.heappush(self._events, (process.asleep_until, number, what, ticket))
                continue
            self.now = max(self.now, seconds)
            what.ticket += 1
            self.current = what
            if what is me:
                return
            what.resume(self._run)
            if me:
                me.rest()
            return


class Threads:
    """Stands where a module has ``threading``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Thread(self, *, target: Callable[..., object], args: tuple[Any, ...] = (), **_: Any) -> "_Thread":
        return _Thread(self._scheduler, lambda: target(*args))

    def Event(self) -> "_Event":
        return _Event(self._scheduler)

    def Lock(self) -> "_Lock":
        return _Lock(self._scheduler)


class _Thread:
    def __init__(self, scheduler: Scheduler, action: Callable[[], object]) -> None:
        self._scheduler = scheduler
        self._action = action
        self._task: Task | None = None

    @property
    def ident(self) -> int | None:
        return id(self._task) if self._task else None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._scheduler.current.process, self._action)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        assert self._task
        until = None if timeout is None else self._scheduler.now + timeout
        while not self._task.done and (until is None or self._scheduler.now < until):
            self._task.waiters.append(self._scheduler.current)
            self._scheduler.wait(until)


class _Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiters: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for task in self._waiters:
            self._scheduler.wake(task)

    def wait(self, timeout: float) -> bool:
        if not self._set:
            self._waiters = [self._scheduler.current]
            self._scheduler.wait(self._scheduler.now + timeout)
        return self._set


class _Lock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiters: list[Task] = []

    def __enter__(self) -> None:
        while self._held:
            self._waiters.append(self._scheduler.current)
            self._scheduler.wait()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            self._scheduler.wake(task)
