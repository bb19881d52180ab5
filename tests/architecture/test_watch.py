"""The audit hook of tests/support/watch.py refuses what the package may never do, and lets the rest pass.

Code that pretends to stand in the package is compiled under a file name of its folder.
"""

import contextlib
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from support.watch import LOG


def in_the_package(checkout: Path, code: str) -> Callable[[object], object]:
    """Return a function ``f(x)`` that looks as though it were the package's own code."""
    names: dict[str, Callable[[object], object]] = {}
    source = "def f(x):\n    " + code.replace("\n", "\n    ")
    exec(compile(source, checkout / "src" / "outlast" / "pretended.py", "exec"), names)
    return names["f"]


def load_from_library(data: object) -> object:
    assert isinstance(data, bytes)
    return pickle.load(io.BytesIO(data))


@pytest.mark.parametrize(
    ("code", "argument"),
    [
        ("return eval(x)", "1 + 1"),
        ("return exec(x)", "pass"),
        ("import os\nreturn os.system(x)", "true"),
        ("import subprocess\nreturn subprocess.run(x, shell=True)", "true"),
        ("import pickle\nreturn pickle.loads(x)", pickle.dumps(Path("a"))),
        ("return x[0](x[1])", (load_from_library, pickle.dumps(Path("a")))),
        ("try:\n    eval(x)\nexcept Exception:\n    return None\nreturn 1", "1 + 1"),
    ],
)
def test_unsafe_code_is_refused(
    checkout: Path, no_unsafe_code: list[str], code: str, argument: object
) -> None:
    with contextlib.suppress(RuntimeError):
        in_the_package(checkout, code)(argument)
    assert len(no_unsafe_code) == 1
    no_unsafe_code.clear()


CHILD = """
import contextlib, pickle, sys
from pathlib import Path
names = {}
exec(compile("import pickle\\ndef f(x):\\n    return pickle.loads(x)", sys.argv[1], "exec"), names)
with contextlib.suppress(RuntimeError):
    names["f"](pickle.dumps(Path("a")))
"""


@pytest.mark.parametrize(("file", "refused"), [("src/outlast/pretended.py", 1), ("elsewhere.py", 0)])
def test_a_process_that_a_test_starts_is_watched_too(checkout: Path, file: str, refused: int) -> None:
    """The refusal is swallowed there, and known here."""
    subprocess.run([sys.executable, "-c", CHILD, checkout / file], check=True)
    lines = Path(os.environ[LOG]).read_text().splitlines()
    Path(os.environ[LOG]).write_text("")
    assert len(lines) == refused
    assert all("pickle.find_class" in line for line in lines)


def test_the_rest_passes(checkout: Path) -> None:
    ours = in_the_package(checkout, "return x()")
    assert ours(lambda: subprocess.run(["true"], check=True).returncode) == 0
    assert ours(lambda: eval("1 + 1")) == 2
    assert pickle.loads(pickle.dumps(Path("a"))) == Path("a")


def test_results_of_our_own_processes_pass(checkout: Path) -> None:
    def work() -> list[Path]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.map(Path, ["a", "b"])

    ours = in_the_package(checkout, "return x()")
    assert ours(work) == [Path("a"), Path("b")]
