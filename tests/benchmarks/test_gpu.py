"""The comparison on a GPU runs; here on a CPU and tiny models, where its figures say nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
SMALLER = ("--preset", "tiny", "--tokens", "1024", "--rounds", "1", "--peak-tflops", "1")


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("shape", "names", "more"),
    [
        ("bert-128", ("plain", "sdpa"), ("--length", "128")),
        ("bigbird-4096", ("plain", "fused", "sdpa"), ("--length", "1024", "--no-memory")),
    ],
)
def test_every_contestant_makes_its_steps(shape: str, names: tuple[str, ...], more: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        str(CHECKOUT / "benchmarks" / "training" / "gpu.py"),
        "--shapes",
        shape,
        *SMALLER,
        *more,
    ]
    done = subprocess.run(
        [*command, "--contestants", *names], capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in names:
        assert re.search(rf"^{name} +[\d.]+ s, \d+ tokens/s, MFU", done.stdout, re.M), done.stdout
        assert "--no-memory" in more or re.search(rf"^{name} +peak memory", done.stdout, re.M), done.stdout
