"""Which evaluated state of a run is the best: one rule, for what retention keeps and what ``--best`` reads.

In: the evaluations in a run directory (formats/run_directory.md). Out: steps, the best first. Only numbers
over the same examples compare: evaluations of another sequence length, or of another number of examples, than
the newest one come behind all that read the same as it did. This module is free of jax.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outlast.checkpoint.lineage import COMMITS, CommitKey, ignored_because, parse_commit_name
from outlast.checkpoint.records import read_recorded
from outlast.errors import ObjectNotFound
from outlast.logs import log
from outlast.storage import Store
from outlast.training.phase_plan import Phase, phase_behind

FOLDER = "evaluations/"


class Ranking(NamedTuple):
    """The rule of one run.

    Attributes:
        metric: a field of its evaluations; of an accuracy the highest is the best, of all else the lowest.
        plan: the phases of the run; none: all steps have one length.
    """

    metric: str = "loss"
    plan: Sequence[Phase] = ()

    def best_first(self, evaluations: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Return the evaluated steps, the best first; of two equal ones the earlier."""
        known = {
            step: fields
            for step, fields in evaluations.items()
            if isinstance(fields.get(self.metric), int | float) and math.isfinite(fields[self.metric])
        }
        groups = {step: self.examples_of(step, fields) for step, fields in known.items()}
        newest_of = {group: step for step, group in sorted(groups.items())}
        sign = -1.0 if self.metric.endswith("accuracy") else 1.0
        return sorted(
            known, key=lambda step: (-newest_of[groups[step]], sign * known[step][self.metric], step)
        )

    def examples_of(self, step: int, fields: Mapping[str, Any]) -> tuple[int, int]:
        """Return the length and the number of the examples that an evaluation read. What else decides which
        they are belongs to the identity of the run.
        """
        length = self.plan[phase_behind(self.plan, step)].sequence_length if self.plan else 0
        return length, int(fields.get("num_examples", 0))


def evaluation_name(commit: CommitKey) -> str:
    """Return the name of the object that holds the evaluation of a commit's state."""
    return FOLDER + commit.name.removeprefix(COMMITS)


def read_evaluations(store: Store) -> dict[int, dict[str, Any]]:
    """Return the evaluations of a run by step: of the states in its line, whoever evaluated beside it."""
    found: dict[int, dict[str, Any]] = {}
    recorded = read_recorded(store)
    for info in store.list(FOLDER):
        commit = parse_commit_name(COMMITS + info.name.removeprefix(FOLDER))
        if commit is None or ignored_because(commit, recorded):
            continue
        try:
            fields: dict[str, Any] = json.loads(store.read(info.name))
            if math.isfinite(fields["loss"]):
                found[commit.step] = fields
        except (ObjectNotFound, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            log.warning("%s/%s is no evaluation; it will be made again", store.url, info.name)
    return found
