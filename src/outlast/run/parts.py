"""What a recipe and its data come to, before any array is made: ``Parts``.

In: a ``Recipe`` whose data set is there. Out: the streams, the encoder, the objective, the optimizer and the
run's identity. Invariant: a pure reading; nothing is written, and no array is made.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax.numpy as jnp
import optax

from outlast.config import to_dict
from outlast.errors import ConfigError
from outlast.models.config import EncoderConfig, resolve_model
from outlast.objectives.loss import Objective
from outlast.objectives.mlm import MlmObjective, make_objective
from outlast.recipe import ImageRecipe, Recipe
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.stream.sources import Source
from outlast.training.identity import Identity
from outlast.training.optimizer import Schedule, decays, make_optimizer, make_schedule
from outlast.training.phase_plan import Phase, plan_phases, source_shares
from outlast.training.phases import Phases, identity_of_phases
from outlast.training.state import TrainState, initial_state


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """What a recipe of any kind and its data come to, before any array is made."""

    recipe: Recipe | ImageRecipe
    phases: Phases[Any]
    objective: Objective
    schedule: Schedule
    optimizer: optax.GradientTransformation
    identity: Identity

    def initial_state(self) -> TrainState:
        """Return the state of step 0, a pure function of the seed."""
        seed, objective = self.recipe.training.seed, self.objective
        return initial_state(objective.param_table, self.optimizer, seed, objective.state_table)


@dataclass(frozen=True, kw_only=True)
class Parts(RunParts):
    """The parts of a run on text."""

    recipe: Recipe
    phases: Phases[TokenStream]
    encoder: EncoderConfig
    objective: MlmObjective

    @property
    def stream(self) -> TokenStream:
        """The stream of the first phase; its data sets are those of all phases."""
        return self.phases.streams[0]


def assemble(recipe: Recipe) -> Parts:
    """Check a recipe against its data and make the parts of the run. Raises ConfigError, ShardError."""
    phases = _open_phases(recipe)
    tokenizer = phases.streams[0].manifest.tokenizer
    encoder = resolve_model(
        recipe.model,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        sequence_length=max(phase.sequence_length for phase in phases.plan),
        next_sentence=recipe.objective.next_sentence,
    )
    _check_token_types(phases.streams[0].sources, encoder)
    objective = make_objective(
        encoder,
        recipe.objective,
        special_ids=tokenizer.special_ids,
        vocab_size=tokenizer.vocab_size,
        compute_dtype=jnp.dtype(recipe.training.compute_dtype),
        remat=recipe.training.remat,
        attention_kernel=recipe.training.attention_kernel,
    )
    schedule = make_schedule(recipe.optimizer, recipe.training.total_steps)
    return Parts(
        recipe=recipe,
        phases=phases,
        encoder=encoder,
        objective=objective,
        schedule=schedule,
        optimizer=make_optimizer(
            recipe.optimizer,
            schedule,
            decays(objective.param_table, biases_and_norms=recipe.optimizer.decay_biases_and_norms),
        ),
        identity={
            "seed": recipe.training.seed,
            **_data_identity(phases, recipe),
            "model": asdict(encoder),
            "objective": to_dict(recipe.objective),
            "optimizer": to_dict(recipe.optimizer),
            "total_steps": recipe.training.total_steps,
        },
    )


def _open_phases(recipe: Recipe) -> Phases[TokenStream]:
    plan = plan_phases(recipe.training, recipe.stream)
    shares = source_shares(recipe.stream, plan)
    return Phases(
        plan,
        [
            TokenStream(
                config_of_phase(recipe, phase),
                seed=recipe.training.seed,
                word_starts=recipe.objective.whole_words,
                shares=shares or None,
            )
            for phase in plan
        ],
    )


def _check_token_types(sources: Sequence[Source], encoder: EncoderConfig) -> None:
    """Check that the model knows every token type of fixed examples. Raises ConfigError."""
    for source in sources:
        number = source.manifest.num_token_types
        if number > encoder.type_vocab_size:
            raise ConfigError(
                f"The examples of {source.url} have {number} token types, a {encoder.architecture} model "
                f"knows {encoder.type_vocab_size}.",
                where="model.type_vocab_size",
                expected=f"{number} or more",
                remedy="set it for a new model, or import the records as tokens: "
                "outlast shards import-tfrecord --as tokens",
            )


def config_of_phase(recipe: Recipe, phase: Phase) -> StreamConfig:
    """Return the ``[stream]`` table as a phase has it."""
    return replace(
        recipe.stream, sequence_length=phase.sequence_length, global_batch_size=phase.global_batch_size
    )


def _data_identity(phases: Phases[TokenStream], recipe: Recipe) -> Identity:
    """Return what a resume may not change of the data; of a run without phases in one table."""
    found = identity_of_phases(phases.plan, phases.streams)
    if not recipe.training.phases:
        found = {"data": phases.streams[0].identity}
    found["data"]["tokenizer"] = phases.streams[0].manifest.tokenizer.fingerprint
    return found
