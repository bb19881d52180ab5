"""The plan of a run: which phase a step belongs to, and where in the data each phase begins. Pure integers.

In: the ``[[training.phases]]`` of a recipe, or none, which is one phase. Out: for each phase its steps, its
shape, and the step of its own order that it begins with. A phase is read in the order that a run of its
length and batch would have, and begins where such a run would stand after as many tokens as were read before:

    first_data_step  =  ceil(tokens of all phases before / tokens of a step of this phase)

So epochs go on over the border, and the same run cut into phases of one shape is the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from outlast.stream.config import StreamConfig
from outlast.stream.shares import shares_of
from outlast.training.config import PhaseConfig, TrainingConfig

StreamT = TypeVar("StreamT", bound=StreamConfig)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Steps ``first_step`` to ``stop_step - 1`` of a run."""

    first_step: int
    num_steps: int
    sequence_length: int | None
    """Tokens in an example; None where an example is no sequence."""
    global_batch_size: int
    first_data_step: int
    """The step of this phase's order whose batch its first step takes."""
    examples_before: int
    units_before: int

    @property
    def stop_step(self) -> int:
        return self.first_step + self.num_steps

    @property
    def step_units(self) -> int:
        """What rates and progress count of a step: tokens, or examples where these are no sequences."""
        return self.global_batch_size * (self.sequence_length or 1)

    def data_step(self, step: int) -> int:
        """Return the step of this phase's order whose batch a step of the run takes."""
        return self.first_data_step + step - self.first_step

    def examples_at(self, step: int) -> int:
        """Return how many examples the run has consumed before a step of this phase."""
        return self.examples_before + (step - self.first_step) * self.global_batch_size

    def units_at(self, step: int) -> int:
        """Return how much the run has consumed before a step of this phase, in units of ``step_units``."""
        return self.units_before + (step - self.first_step) * self.step_units

    def stream(self, config: StreamT) -> StreamT:
        """Return the ``[stream]`` table as this phase has it."""
        length = self.sequence_length or config.sequence_length
        return replace(config, sequence_length=length, global_batch_size=self.global_batch_size)


def plan_phases(training: TrainingConfig, stream: StreamConfig) -> tuple[Phase, ...]:
    """Return the phases of a run, at least one."""
    plan: list[Phase] = []
    step = examples = units = 0
    for config in training.phases or (PhaseConfig(steps=training.total_steps),):
        length = config.sequence_length or stream.example_tokens
        batch = config.global_batch_size or stream.global_batch_size
        phase = Phase(
            first_step=step,
            num_steps=config.steps,
            sequence_length=length,
            global_batch_size=batch,
            first_data_step=-(-units // (batch * (length or 1))),
            examples_before=examples,
            units_before=units,
        )
        plan.append(phase)
        step, examples, units = (
            phase.stop_step,
            phase.examples_at(phase.stop_step),
            phase.units_at(phase.stop_step),
        )
    return tuple(plan)


def phase_index(plan: Sequence[Phase], step: int) -> int:
    """Return the phase of the update that follows a step; after the last step, the last phase."""
    return next((index for index, phase in enumerate(plan) if step < phase.stop_step), len(plan) - 1)


def phase_behind(plan: Sequence[Phase], step: int) -> int:
    """Return the phase that a state was made in: that of its last update."""
    return phase_index(plan, max(step - 1, 0))


def source_shares(stream: StreamConfig, plan: Sequence[Phase]) -> tuple[Fraction, ...]:
    """Return the shares of a mixture's sources in every phase of a run; none without a mixture.

    Raises:
        ConfigError: budgets of tokens that do not fit the run.
    """
    if not stream.sources:
        return ()
    return shares_of(
        stream.sources,
        total_tokens=plan[-1].units_at(plan[-1].stop_step),
        step_tokens=max(phase.step_units for phase in plan),
    )
