"""Being asked to leave: SIGTERM (a preemption notice) and Ctrl-C.

In: signals. Out: a flag that the loop reads between steps. The first signal asks for a save and an orderly
end; a second one of the same kind means now, and the process ends at once: the last commit is what counts, so
nothing is lost by it.
"""

import os
import signal
import threading
from types import FrameType, TracebackType

from outlast.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, Interrupted, OutlastError, Preempted
from outlast.logs import log

_EXIT_CODES = {signal.SIGTERM: EXIT_PREEMPTED, signal.SIGINT: EXIT_INTERRUPTED}


class Notice:
    """Context manager that catches SIGTERM and SIGINT while a run is going on."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Notice":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in _EXIT_CODES:
                self._former[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def __bool__(self) -> bool:
        return self.received is not None

    def leaving(self, where: str) -> OutlastError:
        """Return the error that ends a run which was asked to leave.

        Args:
            where: where the run stands and what is saved, as the rest of a sentence.
        """
        assert self.received is not None
        kind = Interrupted if self.received is signal.SIGINT else Preempted
        return kind(f"{self.received.name} {where}", remedy="run the same line again to go on")

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        received = signal.Signals(number)
        if self.received == received:
            os._exit(_EXIT_CODES[received])
        self.received = received
        log.info("%s: saving, then leaving; once more to leave at once", received.name)
