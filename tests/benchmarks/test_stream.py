"""The stream benchmark runs from end to end on a small set, without the peers."""

import json
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_the_stream_benchmark_measures_what_it_has_checked() -> None:
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "streams" / "stream.py"), "--tokens", "200000"]
    command += ["--lengths", "128", "--rounds", "1", "--seconds", "0.02", "--only", "gather", "outlast"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    rates = json.loads(last)["rates"]
    assert list(rates) == ["gather (limit)", "gather, 2 threads", "outlast", "outlast, framed"], done.stdout
    assert all(rate > 0 for found in rates.values() for rate in found)
    assert len(lines) == len(rates)
