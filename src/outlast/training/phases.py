"""The data of a run, phase after phase: batches by step, and how much of the data was seen.

In: the plan of a run and a stream for each phase. Out: one iterator over all. Invariant: the batch of a step
is that of the phase's own stream at ``Phase.data_step``; nothing is carried from one phase to the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Generic, TypeVar

from outlast.logs import log
from outlast.stream.blocks import Batch
from outlast.stream.examples import ExampleStream
from outlast.training.metrics import Place
from outlast.training.phase_plan import Phase, phase_index

StreamT = TypeVar("StreamT", bound=ExampleStream)

_OF_A_PHASE = {"sequence_length", "global_batch_size", "num_lanes", "window_examples", "pairs"}
"""What may be different in each phase, of the fields of a stream's identity."""


class Phases(Generic[StreamT]):
    """The streams of a run.

    Args:
        plan: what ``plan_phases`` made.
        streams: of each phase.
    """

    def __init__(self, plan: Sequence[Phase], streams: Sequence[StreamT]) -> None:
        self.plan = tuple(plan)
        self.streams = tuple(streams)

    def batches_from(self, step: int) -> Iterator[Batch]:
        """Yield the batches of a step and of all after it; those of the last phase without end."""
        for phase, stream in zip(self.plan[:-1], self.streams[:-1], strict=True):
            if step < phase.stop_step:
                self._tell(phase)
                with closing(stream.batches_from(phase.data_step(step))) as batches:
                    for _ in range(phase.stop_step - step):
                        yield next(batches)
                step = phase.stop_step
        self._tell(self.plan[-1])
        yield from self.streams[-1].batches_from(self.plan[-1].data_step(step))

    def place_of(self, step: int) -> Place:
        """Return how much of the data was consumed before a step."""
        index = phase_index(self.plan, step)
        phase, stream = self.plan[index], self.streams[index]
        at = phase.data_step(step)
        return Place(
            phase.examples_at(step), phase.units_at(step), stream.order.epoch_of(at), stream.epochs_of(at)
        )

    def _tell(self, phase: Phase) -> None:
        if len(self.plan) > 1:
            log.info(
                "phase %d of %d, to step %d: %d examples of %s tokens a step",
                self.plan.index(phase) + 1,
                len(self.plan),
                phase.stop_step,
                phase.global_batch_size,
                phase.sequence_length,
            )


def identity_of_phases(plan: Sequence[Phase], streams: Sequence[ExampleStream]) -> dict[str, dict[str, Any]]:
    """Return what a resume may not change: ``data``, and ``phases`` by their number, from 1."""
    parts = [_split(stream.identity) for stream in streams]
    phases = {
        str(number): {"steps": phase.num_steps, **own}
        for number, (phase, (_, own)) in enumerate(zip(plan, parts, strict=True), start=1)
    }
    return {"data": parts[0][0], "phases": phases}


def _split(identity: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is common to all phases, and what is a phase's own; the same of each source."""
    common = {name: value for name, value in identity.items() if name not in _OF_A_PHASE}
    own = {name: value for name, value in identity.items() if name in _OF_A_PHASE}
    if "sources" in identity:
        split = {name: _split(fields) for name, fields in identity["sources"].items()}
        common["sources"] = {name: part for name, (part, _) in split.items()}
        own["sources"] = {name: part for name, (_, part) in split.items()}
    return common, own
