"""What every test shares: strictness, a watch for unsafe code, the real data.

The real data is found by the environment variable OUTLAST_TEST_DATA; tests that need it skip where it is not
set, and the summary counts them. The environment is set before anything imports jax, and the processes that
tests start inherit it.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from support.watch import LOG, Watch, watch_this_process

# Data sets, a run and servers that several folders use: each is made once in a session.
pytest_plugins = (
    "support.datasets",
    "support.gcs",
    "support.s3",
    "support.azure",
    "support.far",
    "support.disks",
)

# Audited here, and by sitecustomize in every Python process that a test starts. A worker of pytest-xdist has
# been started so, and is watched already.
_started = sys.modules.get("outlast_test_watch")
WATCH: Watch = _started.WATCH if _started else watch_this_process()
_watched = tempfile.TemporaryDirectory(prefix="outlast-tests-")
REFUSED_ELSEWHERE = Path(_watched.name, "refused")
STARTUP = Path(__file__).parent / "support" / "startup"
os.environ[LOG] = str(REFUSED_ELSEWHERE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(STARTUP), os.environ.get("PYTHONPATH")]))

os.environ["XDG_CACHE_HOME"] = str(Path(_watched.name, "cache"))  # nothing stays in the user's own
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# No silent broadcast over a missing dimension. (No silent change of type: the fixture strict_numerics.)
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")

# The same examples on every machine and in every run, and no limit by the clock.
hypothesis.settings.register_profile(
    "outlast", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.load_profile("outlast")

# A script's background jobs ignore SIGINT, and so would the processes that tests interrupt.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)


NO_DATA = "OUTLAST_TEST_DATA"
STRICT_FOLDERS = {"models", "objectives", "parity", "huggingface", "inference"}


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
    """Let jax refuse every silent change of type where the code is ours alone, and compile in haste.

    Not where optax runs: its Adam raises a float to the power of an integer count. The tests of the jax-free
    half do not load jax for this. What these tests cost is compiling small programs that run once, so XLA
    leaves most optimizations out, as it does for jax's own tests; runs, digests and whole steps are tested
    with all.
    """
    jax = sys.modules.get("jax")
    if jax is None or request.path.parent.name not in STRICT_FOLDERS:
        yield
        return
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.numpy_dtype_promotion("strict"):
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def no_unsafe_code() -> Iterator[list[str]]:
    """Fail a test in which the package ran unsafe code, here or in a process that the test started, also
    where the refusal was swallowed.
    """
    WATCH.refused.clear()
    REFUSED_ELSEWHERE.write_text("")
    yield WATCH.refused
    elsewhere = [line for line in REFUSED_ELSEWHERE.read_text().splitlines() if line]
    if WATCH.refused or elsewhere:
        pytest.fail(f"the package ran unsafe code: {[*WATCH.refused, *elsewhere]}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    without_data = sum(NO_DATA in str(report.longrepr) for report in skipped)
    terminalreporter.write_line(
        f"{len(skipped)} tests skipped, {without_data} of them for want of real data ({NO_DATA})"
    )
