"""Whether another process is still alive, told without trusting another machine's clock.

In: what a process wrote about itself when it claimed a run. Out: whether it is certainly gone, and whether
its clock readings can be compared with ours. Both are answered only for a process of this very machine: same
host name, same boot, same pid and time namespaces. Of any other process nothing can be known but whether its
heartbeat changes.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

_DEAD_STATES = ("Z", "X")


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """``machine`` is None where the system does not tell one boot from another (macOS)."""

    host: str
    pid: int
    started: str | None
    machine: str | None


class Clock:
    """The clocks of this machine; tests bring their own."""

    def now(self) -> float:
        """Seconds since boot, time asleep included where the system counts it."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def wall(self) -> float:
        """Seconds since 1970: for people and for history, never for a decision."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def this_process() -> ProcessIdentity:
    """Return the identity of the calling process."""
    return ProcessIdentity(
        host=socket.gethostname(), pid=os.getpid(), started=_start_of(os.getpid()), machine=_machine()
    )


def same_machine(theirs: ProcessIdentity, ours: ProcessIdentity) -> bool:
    """Whether both run on one machine since one boot, see the same pids and read the same clock."""
    return ours.machine is not None and (theirs.host, theirs.machine) == (ours.host, ours.machine)


def is_gone(theirs: ProcessIdentity, ours: ProcessIdentity) -> bool:
    """Whether a process has certainly ended. False also means: nothing is known.

    Without a boot id (macOS) a pid of the same host counts, since there are no pid namespaces; a pid used
    again then merely looks alive.
    """
    comparable = same_machine(theirs, ours) or (
        theirs.host == ours.host and theirs.machine is ours.machine is None
    )
    if not comparable:
        return False
    try:
        os.kill(theirs.pid, 0)
    except (ProcessLookupError, OverflowError):  # the second: no process has such a number
        return True
    except OSError:
        return False  # it exists and belongs to another user
    if _state_of(theirs.pid) in _DEAD_STATES:
        return True
    started = _start_of(theirs.pid)
    return started is not None and theirs.started is not None and started != theirs.started


def _machine() -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time")]
    except OSError:
        return None
    return "/".join([boot, *namespaces])


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on (the second, a name in brackets, may hold
    anything).
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _state_of(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[0] if fields else None


def _start_of(pid: int) -> str | None:
    """Return when a process started, in clock ticks since boot (field 22), None where the system does not
    tell.
    """
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else None
