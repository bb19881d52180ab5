"""Which evaluated state of a run is the best: one rule, for what retention keeps and what ``--best`` reads.

In: the evaluations in a run directory (formats/run_directory.md). Out: steps, the best first. Only numbers
over the same examples compare: evaluations whose sequence length or number of examples differs from the
newest one's come last. This module is free of jax.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from outlast.checkpoint.lineage import COMMITS, CommitKey, ignored_because, parse_commit_name
from outlast.checkpoint.records import read_recorded
from outlast.errors import ObjectNotFound, SealError
from outlast.logs import log
from outlast.storage import Store
from outlast.storage.checksummed_json import DIGEST_KEY, seal, unseal
from outlast.training.phase_plan import Phase, phase_behind

FOLDER = "evaluations/"
_COMMIT = "commit"


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
        length = self.plan[phase_behind(self.plan, step)].sequence_length if self.plan else None
        return length or 0, int(fields.get("num_examples", 0))


def evaluation_name(commit: CommitKey) -> str:
    """Return the name of the object that holds the evaluation of a commit's state."""
    return FOLDER + commit.name.removeprefix(COMMITS)


def write_evaluation(store: Store, commit: CommitKey, fields: Mapping[str, Any]) -> None:
    """Keep the evaluation of a commit's state, sealed and with the name of the commit.

    Raises:
        StorageError: it cannot be written. SealError: a value is no finite number.
    """
    store.replace(evaluation_name(commit), [seal({**fields, _COMMIT: commit.name}, "indented")])


def read_evaluations(store: Store) -> dict[int, dict[str, Any]]:
    """Return the evaluations of a run by step: of the states in its line, whoever evaluated beside it."""
    found: dict[int, dict[str, Any]] = {}
    recorded = read_recorded(store)
    for info in store.list(FOLDER):
        commit = parse_commit_name(COMMITS + info.name.removeprefix(FOLDER))
        if commit is None or ignored_because(commit, recorded):
            continue
        try:
            found[commit.step] = parse_evaluation(store.read(info.name), commit)
        except ObjectNotFound:
            continue
        except SealError as error:
            log.warning(
                "%s/%s is no evaluation; it will be made again (%s)", store.url, info.name, error.message
            )
    return found


def parse_evaluation(content: bytes, commit: CommitKey) -> dict[str, Any]:
    """Return the fields of the evaluation of a commit's state. Raises SealError for what is none.

    Earlier versions wrote no digest, and their layout: one line with spaces, which no change of a byte makes
    of a sealed text.
    """
    try:
        fields: dict[str, Any] = json.loads(content)
        if (json.dumps(fields, sort_keys=True) + "\n").encode() != content:
            fields = unseal(content, where="", layout="indented")
            if fields.pop(_COMMIT) != commit.name:
                raise SealError("It is that of another checkpoint.")
            del fields[DIGEST_KEY]
        if fields["step"] == commit.step and math.isfinite(fields["loss"]):
            return fields
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    raise SealError("Its fields are not those of this checkpoint's evaluation.")
