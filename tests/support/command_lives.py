"""One life of the training command: followed as it speaks, stopped, looked at, killed.

In: a process that runs with ``--debug``. Out: what it said, the phase it is in, and whether a SIGKILL found
it alive. A stopped process does nothing more, so the phase of a stopped or dead one is certain: whatever it
said before lies in the pipe.
"""

import os
import re
import select
import signal
import subprocess
import time

START, RESTORE, COMPILE, STEP, SNAPSHOT = "start", "restore", "compile", "step", "snapshot"
UPLOAD, COMMIT, READ_BACK, RETENTION, EXIT = "upload", "commit", "read back", "retention", "exit"
PHASES = (START, RESTORE, COMPILE, STEP, SNAPSHOT, UPLOAD, COMMIT, RETENTION, EXIT)
"""In the order of a life; ``READ_BACK`` lies between ``COMMIT`` and ``RETENTION``.

start: until the run is claimed. restore: until the attempt has recorded what it starts from. compile: until
the first step is done. snapshot: the copy off the device. upload: the arrays are written. commit: the one
object that makes them a checkpoint. retention: from the first deletion on. exit: everything is saved. Steps
go on beside all of a save but its snapshot; a save that is going on counts before the step.
"""

_BEGINS = (
    (re.compile(r"attempt \d+ has claimed the run"), RESTORE),
    (re.compile(r"attempt \d+ starts from step \d+"), COMPILE),
    (re.compile(r"step \d+: copying the state off the device"), SNAPSHOT),
    (re.compile(r"step \d+: copied"), STEP),
    (re.compile(r"step \d+: writing its arrays"), UPLOAD),
    (re.compile(r"step \d+: committing"), COMMIT),
    (re.compile(r"step \d+: committed"), READ_BACK),
    (re.compile(r"deleting "), RETENTION),
    (re.compile(r"step \d+: saved"), STEP),
    (re.compile(r"step \d+: everything is saved, leaving"), EXIT),
)
_STEP_DONE = re.compile(r"step (\d+): loss")


class Life:
    """A process and what it has said so far.

    Attributes:
        phase: where it is, by the last thing it said.
        step: the newest step that it has completed, 0 before the first.
        num_saves: how many saves it has finished.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.lines: list[str] = []
        self.phase = START
        self.step = 0
        self.num_saves = 0
        self._pipe = process.stdout
        self._rest = b""
        self._ended = False

    def hear(self, timeout_seconds: float) -> bool:
        """Take in what it said, waiting so long for something; False where it can say no more."""
        if self._ended or not select.select([self._pipe], [], [], timeout_seconds)[0]:
            return not self._ended
        content = os.read(self._pipe.fileno(), 2**16)
        self._ended = not content
        *whole, self._rest = (self._rest + content).split(b"\n")
        for line in whole:
            self._take(line.decode(errors="replace"))
        return not self._ended

    def follow(self, seconds: float) -> bool:
        """Follow it for a while; False where it ended meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not self.hear(left):
                return False
        return True

    def stop(self) -> bool:
        """Stop it and take in all it said; False where it has ended instead."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        state = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        while self.hear(0) and select.select([self._pipe], [], [], 0)[0]:
            pass
        return state is not None and state.si_code == os.CLD_STOPPED

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> bool:
        """SIGKILL it and all it started, take in the rest; return whether the signal found it alive."""
        alive = self.process.poll() is None
        if alive:
            os.killpg(self.process.pid, signal.SIGKILL)
        while self.hear(1):
            pass
        code = self.process.wait()
        self._pipe.close()
        return alive and code == -signal.SIGKILL

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def _take(self, line: str) -> None:
        self.lines.append(line)
        if done := _STEP_DONE.match(line):
            self.step = int(done[1])
            if self.phase == COMPILE:
                self.phase = STEP
        for pattern, phase in _BEGINS:
            if pattern.match(line):
                self.phase = phase
        self.num_saves += line.endswith(": saved")
