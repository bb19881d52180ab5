"""The optimizer: a schedule of learning rates and an optax transformation made from the ``[optimizer]``
table.

In: the table, the number of steps, and which parameters decay. Out: pure functions. The schedule is a
function of the number of completed steps, in plain arithmetic, so it can be evaluated anywhere: a resume
compares two schedules by their values.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from outlast.models.params import ParamTable, flatten, unflatten
from outlast.training.config import OptimizerConfig

Schedule = Callable[[ArrayLike], Array]


def make_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    """Return the learning rate as a function of the number of completed steps.

    The warm-up rises linearly and reaches the highest rate with the update that completes it: update number
    ``warmup_steps`` (counted from 1) uses the full rate. The decay then starts from that rate, without the
    drop that the original BERT code makes there (its decay is counted from step 0). Only the divisions of
    ``step`` fall on multiples of ``decay_steps`` of the whole run, as the usual recipes count epochs.

    A run that is too short for its schedule, such as a trial of a recipe, gets the part that it has steps
    for: the beginning of the warm-up, or after the whole warm-up a decay over all steps that are left
    (``find_too_short``).
    """
    warmup = config.warmup_steps

    def schedule(count: ArrayLike) -> Float[Array, "..."]:
        step = jnp.asarray(count, jnp.float32)
        rising = (step + 1.0) / jnp.float32(max(warmup, 1))
        if config.schedule == "step":
            after = jnp.float32(config.decay_divisor) ** -jnp.floor(step / jnp.float32(config.decay_steps))
        else:
            after = _decayed(config, step - jnp.float32(warmup), jnp.float32(max(total_steps - warmup, 1)))
        return jnp.float32(config.learning_rate) * jnp.where(step < warmup, rising, after)

    return schedule


def _decayed(
    config: OptimizerConfig, step: Float[Array, "..."], length: Float[Array, ""]
) -> Float[Array, "..."]:
    """Return the fraction of the highest rate, ``step`` steps into the ``length`` steps after the warm-up."""
    final = jnp.float32(config.final_fraction)
    if config.schedule == "constant":
        if not config.decay_steps:
            return jnp.ones_like(step)
        decay = jnp.minimum(jnp.float32(config.decay_steps), length)
        done = jnp.clip((step - (length - decay)) / decay, 0.0, 1.0)
        return 1.0 - (1.0 - final) * done
    done = jnp.clip(step / length, 0.0, 1.0)
    if config.schedule == "cosine":
        done = 0.5 * (1.0 - jnp.cos(jnp.pi * done))
    return 1.0 - (1.0 - final) * done


def find_too_short(config: OptimizerConfig, total_steps: int) -> str | None:
    """Return which part of the schedule a run of so many steps does not reach, None where all of it fits."""
    left = total_steps - config.warmup_steps
    if left < 0:
        return (
            f"optimizer.warmup_steps is {config.warmup_steps}, the run has {total_steps} steps: "
            "it ends before the learning rate is at its highest"
        )
    if config.schedule == "constant" and config.decay_steps > left:
        return (
            f"optimizer.decay_steps is {config.decay_steps}, the run has {left} steps after the warm-up: "
            "the learning rate falls over these"
        )
    return None


def make_optimizer(config: OptimizerConfig, schedule: Schedule, decays: Any) -> optax.GradientTransformation:
    """Return the optax transformation of the ``[optimizer]`` table.

    Args:
        decays: a tree of bool like the parameters: whether weight decay applies.
    """
    return optax.chain(
        *([] if math.isinf(config.clip_norm) else [_clip_by_global_norm(config.clip_norm)]),
        *_direction(config, decays),
        optax.scale_by_learning_rate(schedule),
    )


def _clip_by_global_norm(limit: float) -> optax.GradientTransformation:
    """Pascanu et al. (2013), algorithm 1, as one factor.

    optax's own divides each element by the norm and multiplies it by the limit, behind a condition. Out of
    that XLA on CPU makes passes over memory of their own; a product with one scalar goes into the pass of
    the moments.
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        factor = jnp.minimum(jnp.float32(1), jnp.float32(limit) / optax.tree.norm(updates))
        return jax.tree.map(lambda g: g * factor, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _direction(config: OptimizerConfig, decays: Any) -> list[optax.GradientTransformation]:
    decay = optax.add_decayed_weights(config.weight_decay, mask=decays)
    if config.name == "sgd":
        return [decay, optax.trace(config.beta1)]
    if config.name == "adafactor":
        return [optax.scale_by_factored_rms(epsilon=config.epsilon), optax.clip_by_block_rms(1.0), decay]
    adam = optax.scale_by_adam if config.bias_correction else _scale_by_adam_without_bias_correction
    return [
        adam(b1=config.beta1, b2=config.beta2, eps=config.epsilon),
        *([decay] if config.name == "adamw" else []),
    ]


def _scale_by_adam_without_bias_correction(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam as the original BERT code has it (AdamWeightDecayOptimizer): the moments are used as they are."""

    def init(params: Any) -> optax.ScaleByAdamState:
        # Two trees, not one used twice: the state is donated, and a buffer can be given away only once.
        mu, nu = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.zeros([], jnp.int32), mu=mu, nu=nu)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, updates)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return direction, optax.ScaleByAdamState(count=optax.safe_increment(state.count), mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def decays(table: ParamTable, *, biases_and_norms: bool = False) -> Any:
    """Return where weight decay applies, a tree of bool: to matrices and kernels, to biases and norms on
    request.
    """
    return unflatten(
        {
            name: biases_and_norms or len(param.shape) - param.stacked >= 2
            for name, param in flatten(table).items()
        }
    )
