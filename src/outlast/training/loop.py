"""The run, top to bottom: one plain function.

In: a state, and functions for everything that touches the world. Out: the state after the last step, or an
exception that says why the run stopped. Whatever happens, at any line: what is committed is a whole, sound
state of an earlier step, and going on from it gives the same parameters as if nothing had happened.
"""

from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray

from outlast.logs import log
from outlast.training.evaluations import RunEvaluations
from outlast.training.metrics import StepMeter
from outlast.training.preemption import Notice
from outlast.training.saves import Saves
from outlast.training.state import TrainState
from outlast.training.step import TrainStep

Arrays = dict[str, NDArray[Any]]


def train(
    state: TrainState,
    *,
    total_steps: int,
    batches_from: Callable[[int], Iterator[Arrays]],
    train_step: TrainStep,
    saves: Saves,
    evaluations: RunEvaluations,
    meter: StepMeter,
    notice: Notice,
) -> TrainState:
    """Train to the last step.

    Args:
        state: of step 0, or as restored.
        batches_from: the batches of a step and all after it.

    Raises:
        Preempted, Interrupted: a notice came; the state is committed.
        Fenced: another attempt owns the run.
        RunError: the loss is not finite. Nothing of it was committed.
        StorageError: the last save failed.
    """
    step = int(state.step)  # the one fetch; from here the host counts
    # An evaluation that a former attempt owed and did not live to make: the save came first, so the state is
    # there.
    if evaluations.due(step):
        with meter.paused():
            evaluations.make(step, state)
    batches = batches_from(step)
    while step < total_steps and not notice:
        state, measured = train_step(state, meter.next_batch(batches))
        step += 1
        meter.record(step, measured)
        saves.check()
        # A save comes before the evaluation of the same step, so that a kill during the evaluation loses no
        # steps.
        evaluating = evaluations.due(step)
        if evaluating or step == total_steps or saves.due(step):
            meter.settle()  # a loss that is not finite raises here: such a state is never committed
            saves.save(step, state)
        if evaluating:
            with meter.paused():
                evaluations.make(step, state)
    meter.close()
    if saves.wait() != step:  # nothing saved here yet, or the save failed: this one must not
        saves.save(step, state, wait=True)
    log.debug("step %d: everything is saved, leaving", step)
    if notice:
        raise notice.leaving(f"after step {step} of {total_steps}: everything is saved.")
    return state
