"""A disk of one MiB, for what happens when it is full, and a disk that cannot be written to."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def make_read_only(tiny_disk: Path) -> Callable[[], Path]:
    """What makes the tiny disk read-only, and returns it."""

    def make() -> Path:
        _mount("-o", "remount,ro", tiny_disk)
        return tiny_disk

    return make


def _mount(*arguments: str | Path) -> None:
    command = ["mount", *map(str, arguments)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
