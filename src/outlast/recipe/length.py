"""How long a run is: in steps, in phases, or in epochs, which become steps once the data are known. No jax
here."""

from dataclasses import replace
from typing import Any

from outlast.errors import ConfigError
from outlast.recipe.tables import Recipe
from outlast.training.config import TrainingConfig


def with_total_steps(recipe: Recipe, given: dict[str, Any]) -> Recipe:
    """Return the recipe with the steps of its phases as ``total_steps``. Raises ConfigError where the length
    is given twice.

    Args:
        given: the ``[training]`` table as it was written.
    """
    training = recipe.training
    _check_epochs(recipe)
    total = sum(phase.steps for phase in training.phases)
    if not total or training.total_steps == total:
        return recipe
    if "total_steps" in given:
        raise ConfigError(
            f"The phases have {total} steps together, total_steps is {training.total_steps}.",
            where="training.total_steps",
            remedy="leave it out: the phases say it",
        )
    return replace(recipe, training=replace(training, total_steps=total))


def _check_epochs(recipe: Recipe) -> None:
    training, optimizer = recipe.training, recipe.optimizer
    given = {
        "training.epochs": training.epochs,
        "optimizer.warmup_epochs": optimizer.warmup_epochs,
        "optimizer.decay_epochs": optimizer.decay_epochs,
    }
    for where, value in given.items():
        if value is not None and training.phases:
            raise ConfigError(
                "A run in phases is measured in steps: an epoch has another number of them in each.",
                where=where,
                remedy="leave it out: the phases say it"
                if where == "training.epochs"
                else f"give {where.replace('epochs', 'steps')}",
            )
    if training.epochs is None:
        return
    # Its default counts as not given: a recipe comes back from its own plain values.
    if training.total_steps != TrainingConfig.total_steps:
        raise ConfigError(
            "The length of the run is given twice.",
            where=f"training.epochs = {training.epochs:g}, training.total_steps = {training.total_steps}",
            remedy="leave one of the two out; --set training.epochs=0.1 makes a run short",
        )
    if any(source.tokens for source in recipe.stream.sources):
        raise ConfigError(
            "A source's budget of tokens is a share of a run whose length is known.",
            where="training.epochs",
            remedy="give training.total_steps, or every source a weight",
        )


def in_steps(recipe: Recipe, num_examples: int) -> Recipe:
    """Return the recipe with steps in place of epochs, rounded to the nearest.

    Args:
        num_examples: of the training split, as the run packs it; of a mixture all of its sources'.
    """
    optimizer, training = recipe.optimizer, recipe.training

    def steps(epochs: float | None, otherwise: int, least: int = 1) -> int:
        batches = num_examples / recipe.stream.global_batch_size
        return otherwise if epochs is None else max(round(epochs * batches), least)

    return replace(
        recipe,
        optimizer=replace(
            optimizer,
            warmup_epochs=None,
            warmup_steps=steps(optimizer.warmup_epochs, optimizer.warmup_steps, least=0),
            decay_epochs=None,
            decay_steps=steps(optimizer.decay_epochs, optimizer.decay_steps),
        ),
        training=replace(training, epochs=None, total_steps=steps(training.epochs, training.total_steps)),
    )
