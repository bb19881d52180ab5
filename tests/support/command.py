"""The real command in real processes: started, killed, compared."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "recipes" / "roberta_tiny.toml"


class Command:
    """The ``outlast`` command line in child processes, each in a session of its own."""

    def __init__(self, cache: Path) -> None:
        # One compilation cache for all lives of all runs, as on a real machine: a restart need not compile.
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu"}
        self.launcher: tuple[str, ...] = ("-m", "outlast")
        self.overrides = ("--set", f"training.compilation_cache_dir={cache / 'xla'}")

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *self.launcher, *map(str, arguments)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str | Path, expect: int = 0) -> str:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=250)
        assert process.returncode == expect, output
        return output

    def start_training(
        self, manifest: Path | str, run_dir: Path | str, *overrides: str
    ) -> subprocess.Popen[str]:
        return self.start(*self.training(manifest, run_dir, *overrides))

    def train(self, manifest: Path | str, run_dir: Path | str, *overrides: str, expect: int = 0) -> str:
        return self.run(*self.training(manifest, run_dir, *overrides), expect=expect)

    def training(self, manifest: Path | str, run_dir: Path | str, *overrides: str) -> list[str]:
        keys = [part for override in overrides for part in ("--set", override)]
        line = [
            "train",
            RECIPE,
            "--run-dir",
            run_dir,
            "--set",
            f"stream.manifest={manifest}",
            *self.overrides,
            *keys,
        ]
        return [str(part) for part in line]

    def digest(self, run_dir: Path | str) -> tuple[int, str]:
        fields = json.loads(self.run("checkpoint", "digest", run_dir, "--json"))
        return fields["step"], fields["sha256"]


def kill(process: subprocess.Popen[str]) -> str:
    """SIGKILL the process and all it started; return what it had printed."""
    with suppress(ProcessLookupError):  # it may have ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    output, _ = process.communicate()
    return output


def kill_when(
    process: subprocess.Popen[str], condition: Callable[[], bool], *, limit_seconds: float = 120
) -> bool:
    """SIGKILL the process as soon as the condition holds; return False where it ended before."""
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        if condition():
            kill(process)
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.0005)
    kill(process)
    raise AssertionError("the condition never held")
