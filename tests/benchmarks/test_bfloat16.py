"""Training in bfloat16 learns what training in float32 learns, on Japanese text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
RECIPE = CHECKOUT / "recipes" / "roberta_small_kyoto_ja.toml"


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_loss_curves_are_within_one_percent(test_data: Path, tmp_path: Path) -> None:
    def run(*command: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=1200, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    corpus = test_data / "text-ja-kyoto-wikipedia"
    shorter = ("--set", f"corpus.path={corpus}", "--set", "corpus.include=train-00.jsonl")
    run("-m", "outlast", "prepare", RECIPE, "--out", tmp_path, *shorter)
    benchmark = CHECKOUT / "benchmarks" / "training" / "bfloat16.py"
    said = run(benchmark, RECIPE, tmp_path / "manifest.json", "--steps", "200", "--window", "20")
    curve = [float(loss) for loss in re.findall(r"float32 ([\d.]+)", said)]
    assert curve[-1] < 0.9 * curve[0], said  # it does learn
    match = re.search(r"largest difference (\S+)", said)
    assert match, said
    assert float(match[1]) < 0.01, said
