"""The evaluations of a run: one object per step, so that each is made exactly once, whoever dies in between.

In: the step. Out: ``evaluations/<step>.json`` in the run directory. An evaluation is a function of parameters
and data alone, so two attempts that make it for the same step write the same numbers.
"""

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

from numpy.typing import NDArray

from outlast.errors import ObjectNotFound, StorageError
from outlast.logs import log
from outlast.storage import Store
from outlast.training.evaluate import evaluate
from outlast.training.state import TrainState
from outlast.training.step import EvaluationStep

FOLDER = "evaluations/"


class RunEvaluations:
    """Makes and keeps the evaluations of one run.

    Args:
        interval_steps: steps between two; None: after the last step only.
        batches: makes a pass over the held-out split; None where the data set has none.
        stop: whether to leave in the middle.
        keep: is told the evaluated steps after each evaluation, the best first.
    """

    def __init__(
        self,
        store: Store,
        *,
        total_steps: int,
        interval_steps: int | None,
        evaluation_step: EvaluationStep,
        batches: Callable[[], Iterable[dict[str, NDArray[Any]]]] | None,
        stop: Callable[[], bool],
        keep: Callable[[list[int]], None],
    ) -> None:
        self._store = store
        self._total_steps = total_steps
        self._interval_steps = interval_steps
        self._evaluation_step = evaluation_step
        self._batches = batches
        self._stop = stop
        self._keep = keep
        self._losses = {step: fields["loss"] for step, fields in read_evaluations(store).items()}

    @property
    def ranking(self) -> list[int]:
        """The evaluated steps by their loss, the lowest first; the earlier one of two equal ones."""
        return sorted(self._losses, key=lambda step: (self._losses[step], step))

    def due(self, step: int) -> bool:
        """Whether an evaluation belongs to this step and has not been made."""
        if self._batches is None or step in self._losses:
            return False
        on_interval = self._interval_steps is not None and step > 0 and step % self._interval_steps == 0
        return on_interval or step == self._total_steps

    def make(self, step: int, state: TrainState) -> None:
        """Evaluate and keep the result. Ends early, keeping nothing, where ``stop`` says so."""
        assert self._batches is not None
        result = evaluate(self._evaluation_step, state, self._batches(), stop=self._stop)
        if result is None:
            return
        self._losses[step] = result["loss"]
        log.info(
            "step %d: held-out loss %.4f, accuracy %.1f%%", step, result["loss"], 100 * result["accuracy"]
        )
        self._keep(self.ranking)
        content = json.dumps({"step": step, **result}, sort_keys=True) + "\n"
        try:
            self._store.replace(evaluation_name(step), [content.encode()])
        except StorageError as error:
            log.warning("the evaluation of step %d could not be kept (training goes on): %s", step, error)


def evaluation_name(step: int) -> str:
    """Return the name of the object that holds a step's evaluation."""
    return f"{FOLDER}{step:012d}.json"


def read_evaluations(store: Store) -> dict[int, dict[str, float]]:
    """Return the evaluations of a run by step."""
    found: dict[int, dict[str, float]] = {}
    for info in store.list(FOLDER):
        try:
            fields: dict[str, float] = json.loads(store.read(info.name))
            if math.isfinite(fields["loss"]):
                found[int(fields["step"])] = fields
        except (ObjectNotFound, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            log.warning("%s/%s is no evaluation; it will be made again", store.url, info.name)
    return found
