"""From a recipe to the parts of its run, of whatever kind: the one place that names the kinds."""

from dataclasses import replace
from typing import Any

import jax

from outlast.config import to_dict
from outlast.recipe import CLASSIFICATION, MASKED_LM, Recipe, in_steps
from outlast.run.images import ImageClassification
from outlast.run.kind import DataFacts, Learner, Parts, RunKind
from outlast.run.text import MaskedLm
from outlast.training.identity import Identity
from outlast.training.mesh import make_layout
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.phase_plan import plan_phases
from outlast.training.phases import Phases, identity_of_phases

RUN_KINDS: dict[str, RunKind[Any, Any]] = {MASKED_LM: MaskedLm(), CLASSIFICATION: ImageClassification()}
"""By ``objective.kind``."""


def run_kind_of(recipe: Recipe) -> RunKind[Any, Any]:
    """Return what the kind of a recipe brings."""
    return RUN_KINDS[recipe.objective.kind]


def make_learner(recipe: Recipe, facts: DataFacts) -> Learner[Any]:
    """Return what learns. No data set is needed. Raises ConfigError.

    Args:
        recipe: in steps; ``in_steps`` makes it so.
    """
    objective = run_kind_of(recipe).make_objective(recipe, facts)
    config = recipe.optimizer
    schedule = make_schedule(config, recipe.training.total_steps)
    decayed = decays(objective.param_table, biases_and_norms=config.decay_biases_and_norms)
    return Learner(
        objective=objective,
        schedule=schedule,
        optimizer=make_optimizer(config, schedule, decayed),
        seed=recipe.training.seed,
    )


def assemble(recipe: Recipe) -> Parts[Any, Any]:
    """Check a recipe against its data and make the parts of the run. Raises ConfigError, ShardError."""
    kind = run_kind_of(recipe)
    plan = plan_phases(recipe.training, recipe.stream)  # measured in epochs, its steps are not right yet
    streams = [kind.open_stream(recipe, phase.stream(recipe.stream)) for phase in plan]
    recipe = in_steps(recipe, streams[0].num_examples)
    phases = Phases(plan_phases(recipe.training, recipe.stream), streams)
    facts = kind.facts_of(streams[0])
    learner = make_learner(recipe, facts)
    kind.check_examples(streams[0], learner.objective)
    return Parts(
        kind=kind,
        recipe=recipe,
        phases=phases,
        facts=facts,
        learner=learner,
        identity={
            "seed": recipe.training.seed,
            **_data_identity(recipe, phases, facts),
            "model": learner.objective.model.to_dict(),
            "objective": to_dict(recipe.objective),
            "optimizer": to_dict(recipe.optimizer),
            "total_steps": recipe.training.total_steps,
        },
    )


def on_devices(parts: Parts[Any, Any]) -> Parts[Any, Any]:
    """Return the parts of a run laid out on the devices that are here. Looking for them comes before anything
    is written, so one that is not there leaves no trace.

    Raises:
        ConfigError: the mesh of the recipe does not fit them. RuntimeError: jax finds none.
    """
    recipe, learner = parts.recipe, parts.learner
    state = jax.eval_shape(learner.initial_state)
    layout = make_layout(
        recipe.mesh,
        plan=parts.phases.plan,
        num_microbatches=recipe.training.num_microbatches,
        state_bytes=sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves((state, state.params))),
    )
    return replace(parts, layout=layout)


def _data_identity(recipe: Recipe, phases: Phases[Any], facts: DataFacts) -> Identity:
    """Return what a resume may not change of the data; of a run without phases in one table."""
    found = identity_of_phases(phases.plan, phases.streams)
    if not recipe.training.phases:
        found = {"data": phases.streams[0].identity}
    if facts.tokenizer is not None:
        found["data"]["tokenizer"] = facts.tokenizer
    return found
