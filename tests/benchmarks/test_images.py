"""The image benchmark runs from end to end on a small set, without the peers."""

import json
import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_the_image_benchmark_measures_what_it_has_checked(test_data: Path) -> None:
    command = [
        sys.executable,
        str(CHECKOUT / "benchmarks" / "streams" / "images.py"),
        "--images",
        "24",
        "--batch",
        "8",
    ]
    command += ["--rounds", "1", "--seconds", "0.02", "--only", "bare", "outlast"]
    environment = {**os.environ, "OUTLAST_TEST_DATA": str(test_data)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    first, *lines, last = done.stdout.splitlines()
    assert first.startswith("24 images")
    rates = json.loads(last)["rates"]
    ours = ["outlast", "outlast, pixels of 256"]
    assert list(rates) == ["bare decode", "bare decode, crop, resize", *ours], done.stdout
    assert all(rate > 0 for found in rates.values() for rate in found)
    assert len(lines) == len(rates)
