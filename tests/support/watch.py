"""A watch for unsafe code: an audit hook that refuses what the package may never cause.

In: the events that the interpreter reports. Out: ``UnsafeCode`` raised where the package unpickles, compiles
or runs by a shell; the refusals, also where the exception was swallowed. The suite installs it in its own
process (``conftest.py``) and in every Python process that a test starts: ``startup/sitecustomize.py`` is on
their path, and what they refuse is appended to the file that ``LOG`` names.

Libraries compile and execute their own code all the time (imports, dataclasses, namedtuples), so for
``compile`` and ``exec`` only a direct call counts. For a shell and for pickle anything that the package set
off counts, with one exception: pickles that multiprocessing and concurrent.futures send between processes of
our own (the pool of ``outlast prepare``). Nothing else is allowed; a library that needs more is named here.

Not watched: processes started with ``python -I`` or ``-S``, and those of another virtual environment whose
package lies elsewhere (the quickstart).
"""

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

LOG = "OUTLAST_TEST_UNSAFE_LOG"
"""The environment variable that names the file of refusals."""

PACKAGE = os.path.join(os.path.abspath(__file__).rsplit(os.sep, 3)[0], "src", "outlast", "")
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "cmd.exe", "powershell.exe"}
OWN_PROCESSES = ("/multiprocessing/", "/concurrent/futures/")


class UnsafeCode(RuntimeError):
    """The package unpickled, compiled or ran by a shell what a test gave it."""


class Watch:
    """The audit hook. Refusals are kept in ``refused``, and in the file ``log`` where there is one."""

    def __init__(self, log: str | None = None) -> None:
        self.refused: list[str] = []
        self._log = log

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        judge = JUDGES.get(event)
        caller = sys._getframe().f_back if judge else None  # pyright: ignore[reportPrivateUsage]
        if not judge or not caller or not judge(caller, arguments):
            return
        refusal = f"{event} {str(arguments)[:200]}"
        self.refused.append(refusal)
        if self._log:
            with open(self._log, "a") as file:
                file.write(f"{refusal} (process {os.getpid()}: {sys.argv[:4]})\n")
        raise UnsafeCode(refusal)


def _called_by_us(frame: FrameType, _: tuple[Any, ...]) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _set_off_by_us(frame: FrameType, _: tuple[Any, ...]) -> bool:
    return any(name.startswith(PACKAGE) for name in _files(frame))


def _shell_set_off_by_us(frame: FrameType, arguments: tuple[Any, ...]) -> bool:
    command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
    words = [os.fsdecode(word) for word in command if isinstance(word, str | bytes | os.PathLike)]
    return (
        bool(words)
        and os.path.basename(words[0]) in SHELLS
        and "-c" in words
        and _set_off_by_us(frame, arguments)
    )


def _pickle_set_off_by_us(frame: FrameType, _: tuple[Any, ...]) -> bool:
    for name in _files(frame):
        if any(part in name for part in OWN_PROCESSES):
            return False
        if name.startswith(PACKAGE):
            return True
    return False


def _files(frame: FrameType | None) -> Iterator[str]:
    while frame:
        yield frame.f_code.co_filename
        frame = frame.f_back


JUDGES: dict[str, Callable[[FrameType, tuple[Any, ...]], bool]] = {
    "compile": _called_by_us,
    "exec": _called_by_us,
    "os.system": _set_off_by_us,
    "subprocess.Popen": _shell_set_off_by_us,
    "pickle.find_class": _pickle_set_off_by_us,
}


def watch_this_process() -> Watch:
    """Install the hook, for good: an audit hook cannot be taken away."""
    watch = Watch(os.environ.get(LOG))
    sys.addaudithook(watch)
    return watch
