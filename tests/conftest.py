"""What every test shares: strictness, a watch for unsafe code, the real data.

The real data is found by the environment variable OUTLAST_TEST_DATA; tests that need it skip where it is not
set, and the summary counts them. The environment is set before anything imports jax, and the processes that
tests start inherit it.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# No silent broadcast over a missing dimension. (No silent change of type: the fixture strict_numerics.)
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")

# The same examples on every machine and in every run, and no limit by the clock.
hypothesis.settings.register_profile(
    "outlast", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("outlast")

NO_DATA = "OUTLAST_TEST_DATA"
STRICT_FOLDERS = {"models", "objectives", "parity", "huggingface", "inference"}
PACKAGE = str(Path(__file__).parents[1] / "src" / "outlast") + os.sep
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "cmd.exe", "powershell.exe"}


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real corpora and reference outputs; the test skips where there is none."""
    location = os.environ.get(NO_DATA)
    if not location:
        pytest.skip(f"{NO_DATA} is not set: no real data to test on")
    path = Path(location)
    if not path.is_dir():
        pytest.skip(f"{NO_DATA}={location} is not a folder")
    return path


@pytest.fixture(autouse=True)
def strict_numerics(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let jax refuse every silent change of type where the code is ours alone.

    Not where optax runs: its Adam raises a float to the power of an integer count. The tests of the jax-free
    half do not load jax for this.
    """
    jax = sys.modules.get("jax")
    if jax is None or request.path.parent.name not in STRICT_FOLDERS:
        yield
        return
    with jax.numpy_dtype_promotion("strict"):
        yield


class UnsafeCode(RuntimeError):
    """The package unpickled, compiled or ran by a shell what a test gave it."""


class Watch:
    """An audit hook: the interpreter reports what runs, and what the package may never cause is refused.

    Libraries compile and execute their own code all the time (imports, dataclasses), so for ``compile`` and
    ``exec`` only a direct call counts; for a shell and for pickle anything that the package set off counts,
    except pickles that multiprocessing sends between our own processes.
    """

    def __init__(self) -> None:
        self.refused: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        judge = JUDGES.get(event)
        frame = inspect.currentframe() if judge else None
        if judge and frame and frame.f_back and judge(frame.f_back, arguments):
            self.refused.append(f"{event} {str(arguments)[:200]}")
            raise UnsafeCode(self.refused[-1])


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


def _pickle_set_off_by_us(frame: FrameType, arguments: tuple[Any, ...]) -> bool:
    for name in _files(frame):
        if "/multiprocessing/" in name or "/concurrent/futures/" in name:
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

WATCH = Watch()
sys.addaudithook(WATCH)


@pytest.fixture(autouse=True)
def no_unsafe_code() -> Iterator[list[str]]:
    """Fail a test in which the package ran unsafe code, also where the refusal was swallowed."""
    WATCH.refused.clear()
    yield WATCH.refused
    if WATCH.refused:
        pytest.fail(f"the package ran unsafe code: {WATCH.refused}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    without_data = sum(NO_DATA in str(report.longrepr) for report in skipped)
    terminalreporter.write_line(
        f"{len(skipped)} tests skipped, {without_data} of them for want of real data ({NO_DATA})"
    )
