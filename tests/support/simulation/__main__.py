"""Tell the history of a seed: ``PYTHONPATH=tests python -m support.simulation SEED``."""

import sys

from support.simulation.history import live_through

outcome = live_through(int(sys.argv[1]), print)
print(f"{outcome.lives} lives, {outcome.requests} requests, {outcome.acknowledged} acknowledged")  # noqa: T201
for violation in outcome.violations:
    print(f"VIOLATION: {violation}")  # noqa: T201
sys.exit(bool(outcome.violations))
