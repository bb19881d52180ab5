"""The loss curve of a recipe in bfloat16 beside that in float32: same weights, batches, masks and dropout.

Prints the mean loss of each window of steps in both, and the largest relative difference between them.

    python benchmarks/training/bfloat16.py recipes/roberta_small_kyoto_ja.toml data/manifest.json --steps 1000
"""

import argparse
import itertools
import statistics
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from outlast.objectives.loss import mean_loss
from outlast.recipe import read_recipe
from outlast.run.assemble import assemble
from outlast.training.step import make_train_step


def losses(recipe: str, manifest: str, dtype: str) -> Iterator[float]:
    """Yield the mean loss of each step, from the first one on."""
    overrides = (f'stream.manifest="{manifest}"', f'training.compute_dtype="{dtype}"')
    parts = assemble(read_recipe(Path(recipe), overrides))
    learner = parts.learner
    state = learner.initial_state()
    step = make_train_step(
        learner.objective, learner.optimizer, learner.schedule, seed=learner.seed, num_microbatches=1
    )
    for number in itertools.count():
        state, measured = step(state, parts.stream.batch(number))
        yield float(mean_loss(measured.terms))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("manifest")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--window", type=int, default=50, help="steps whose losses are averaged")
    arguments = parser.parse_args()
    wide, narrow = (losses(arguments.recipe, arguments.manifest, dtype) for dtype in ("float32", "bfloat16"))
    largest = 0.0
    for start in range(0, arguments.steps, arguments.window):
        one, other = (statistics.mean(islice(curve, arguments.window)) for curve in (wide, narrow))
        apart = abs(other - one) / one
        largest = max(largest, apart)
        print(f"from step {start:5d}: float32 {one:.4f}, bfloat16 {other:.4f}, apart {apart:.2e}", flush=True)
    print(f"largest difference {largest:.2e}")


if __name__ == "__main__":
    main()
