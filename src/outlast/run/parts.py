"""What a recipe and its data come to, before any array is made: ``Parts``.

In: a ``Recipe`` whose data set is there. Out: the stream, the encoder, the objective, the optimizer and the
run's identity. Invariant: a pure reading; nothing is written, and no array is made.
"""

from dataclasses import asdict, dataclass, replace

import jax.numpy as jnp
import optax

from outlast.config import to_dict
from outlast.models.config import EncoderConfig, resolve_model
from outlast.objectives.mlm import MlmObjective, make_objective
from outlast.recipe import Recipe
from outlast.stream.loader import TokenStream
from outlast.training.identity import Identity
from outlast.training.optimizer import Schedule, decays, make_optimizer, make_schedule


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a recipe and its data come to, before any array is made."""

    recipe: Recipe
    stream: TokenStream
    encoder: EncoderConfig
    objective: MlmObjective
    schedule: Schedule
    optimizer: optax.GradientTransformation
    identity: Identity


def assemble(recipe: Recipe) -> Parts:
    """Check a recipe against its data and make the parts of the run. Raises ConfigError, ShardError."""
    stream = TokenStream(recipe.stream, seed=recipe.training.seed)
    tokenizer = stream.manifest.tokenizer
    encoder = resolve_model(
        recipe.model,
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        sequence_length=recipe.stream.sequence_length,
    )
    objective = make_objective(
        encoder,
        recipe.objective,
        special_ids=tokenizer.special_ids,
        compute_dtype=jnp.dtype(recipe.training.compute_dtype),
        remat=recipe.training.remat,
    )
    schedule = make_schedule(recipe.optimizer, recipe.training.total_steps)
    return Parts(
        recipe=recipe,
        stream=stream,
        encoder=encoder,
        objective=objective,
        schedule=schedule,
        optimizer=make_optimizer(recipe.optimizer, schedule, decays(objective.param_table)),
        identity={
            "seed": recipe.training.seed,
            "data": {**stream.identity, "tokenizer": tokenizer.fingerprint},
            "model": asdict(encoder),
            "objective": to_dict(recipe.objective),
            "optimizer": to_dict(recipe.optimizer),
            "total_steps": recipe.training.total_steps,
        },
    )


def held_out_stream(parts: Parts) -> TokenStream | None:
    """Return the stream of the held-out split, None where the data set has none."""
    if "validation" not in parts.stream.manifest.splits:
        return None
    # Evaluation reads in manifest order: lanes belong to training, and a small split may not fill them.
    config = replace(parts.recipe.stream, num_lanes=1, window_examples=None)
    return TokenStream(config, seed=parts.recipe.training.seed, split="validation")
