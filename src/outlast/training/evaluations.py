"""The evaluations of a run: one object per step, so that each is made exactly once, whoever dies in between.

In: the step. Out: ``evaluations/<step>-<attempt>.json`` in the run directory, named as the commit that holds
the evaluated state. The line rule that decides which commits belong to the run decides the same of
evaluations: what an attempt evaluated beyond the commit its successor went on from, or without leaving any
commit, counts no more, and nobody has to delete it. Two attempts that evaluate the same commit write the same
numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from outlast.checkpoint.lineage import CommitKey
from outlast.errors import SealError, StorageError
from outlast.logs import log
from outlast.storage import Store
from outlast.training.evaluate import HeldOutSource, evaluate_sources
from outlast.training.ranking import Ranking, read_evaluations, write_evaluation
from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep


class RunEvaluations:
    """Makes and keeps the evaluations of one run.

    Args:
        commit_of: the commit, made or to be made, that holds the state of a step.
        interval_steps: steps between two; None: after the last step only.
        held_out: makes a pass over the held-out split of each source, for the state of a step; None where
            the data set has none.
        ranking: says which of the evaluated states is the best.
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
        ranking: Ranking,
        stop: Callable[[], bool],
        keep: Callable[[list[int]], None],
    ) -> None:
        self._store = store
        self._commit_of = commit_of
        self._total_steps = total_steps
        self._interval_steps = interval_steps
        self._evaluation_step = evaluation_step
        self._held_out = held_out
        self._ranking = ranking
        self._stop = stop
        self._keep = keep
        self.made = read_evaluations(store)
        """The evaluations by step."""

    @property
    def best_first(self) -> list[int]:
        """The evaluated steps, the best first."""
        return self._ranking.best_first(self.made)

    def due(self, step: int) -> bool:
        """Whether an evaluation belongs to this step and has not been made."""
        if self._held_out is None or step in self.made:
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
        self._tell_of_other_examples(step, result)
        self.made[step] = {"step": step, **result}
        log.info("step %d: %s", step, _in_words(result))
        self._keep(self.best_first)
        try:
            write_evaluation(self._store, self._commit_of(step), self.made[step])
        except (StorageError, SealError) as error:
            log.warning("the evaluation of step %d could not be kept (training goes on): %s", step, error)

    def _tell_of_other_examples(self, step: int, result: dict[str, Any]) -> None:
        """Say that the evaluation before read another number of examples, so that the two do not compare."""
        former = max((made for made in self.made if made < step), default=None)
        if former is None:
            return
        length, number = self._ranking.examples_of(step, result)
        former_length, former_number = self._ranking.examples_of(former, self.made[former])
        if length == former_length and number != former_number:
            log.warning(
                "step %d is evaluated on %d examples, step %d was on %d: the two do not compare, and the "
                "best checkpoint is now one of those evaluated on %d",
                *(step, number, former, former_number, number),
            )


def _in_words(result: dict[str, float]) -> str:
    words = [f"held-out loss {result['loss']:.4f}"]
    words += [
        f"{name.replace('_', ' ')} {100 * value:.1f}%"
        for name, value in result.items()
        if name.endswith("accuracy")
    ]
    return f"{', '.join(words)}, over {result['num_examples']} examples"
