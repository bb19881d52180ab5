"""The evaluations of a run: one object per step, so that each is made exactly once, whoever dies in between.

In: the step. Out: ``evaluations/<step>-<attempt>.json`` in the run directory, named as the commit that holds
the evaluated state. The line rule that decides which commits belong to the run decides the same of
evaluations: what an attempt evaluated beyond the commit its successor went on from, or without leaving any
commit, counts no more, and nobody has to delete it. Two attempts that evaluate the same commit write the same
numbers.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from outlast.checkpoint.lineage import COMMITS, CommitKey, ignored_because, parse_commit_name
from outlast.checkpoint.records import read_recorded
from outlast.errors import ObjectNotFound, StorageError
from outlast.logs import log
from outlast.storage import Store
from outlast.training.evaluate import HeldOutSource, evaluate_sources
from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep

FOLDER = "evaluations/"


class RunEvaluations:
    """Makes and keeps the evaluations of one run.

    Args:
        commit_of: the commit, made or to be made, that holds the state of a step.
        interval_steps: steps between two; None: after the last step only.
        held_out: makes a pass over the held-out split of each source, for the state of a step; None where
            the data set has none.
        phase_of: the phase in which the state of a step was made.
        stop: whether to leave in the middle.
        keep: is told the evaluated steps after each evaluation, the best first.
    """

    def __init__(
        self,
        store: Store,
        *,
        commit_of: Callable[[int], CommitKey],
        total_steps: int,
        interval_steps: int | None,
        evaluation_step: EvaluationStep,
        held_out: Callable[[int], Sequence[HeldOutSource]] | None,
        phase_of: Callable[[int], int] = lambda step: 0,
        stop: Callable[[], bool],
        keep: Callable[[list[int]], None],
    ) -> None:
        self._store = store
        self._commit_of = commit_of
        self._total_steps = total_steps
        self._interval_steps = interval_steps
        self._evaluation_step = evaluation_step
        self._held_out = held_out
        self._phase_of = phase_of
        self._stop = stop
        self._keep = keep
        self._losses = {step: fields["loss"] for step, fields in read_evaluations(store).items()}

    @property
    def ranking(self) -> list[int]:
        """The evaluated steps by their loss, the lowest first; the earlier one of two equal ones.

        Losses on examples of different lengths do not compare: all of a later phase come first.
        """
        return sorted(self._losses, key=lambda step: (-self._phase_of(step), self._losses[step], step))

    def due(self, step: int) -> bool:
        """Whether an evaluation belongs to this step and has not been made."""
        if self._held_out is None or step in self._losses:
            return False
        on_interval = self._interval_steps is not None and step > 0 and step % self._interval_steps == 0
        return on_interval or step == self._total_steps

    def make(self, step: int, state: TrainState) -> None:
        """Evaluate and keep the result. Ends early, keeping nothing, where ``stop`` says so.

        A loss that is not finite is neither kept nor ranked: among numbers NaN has no place.
        """
        assert self._held_out is not None
        result = evaluate_sources(self._evaluation_step, state, self._held_out(step), stop=self._stop)
        if result is None:
            return
        if not math.isfinite(result["loss"]):
            log.warning(
                "step %d: the held-out loss is %s; the evaluation does not count", step, result["loss"]
            )
            return
        self._losses[step] = result["loss"]
        log.info("step %d: %s", step, _in_words(result))
        self._keep(self.ranking)
        content = json.dumps({"step": step, **result}, sort_keys=True) + "\n"
        try:
            self._store.replace(evaluation_name(self._commit_of(step)), [content.encode()])
        except StorageError as error:
            log.warning("the evaluation of step %d could not be kept (training goes on): %s", step, error)


def _in_words(result: dict[str, float]) -> str:
    words = f"held-out loss {result['loss']:.4f}, accuracy {100 * result['accuracy']:.1f}%"
    if "next_sentence_accuracy" in result:
        words += f", of next sentences {100 * result['next_sentence_accuracy']:.1f}%"
    return f"{words}, over {result['num_examples']} examples"


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
