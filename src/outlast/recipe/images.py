"""What a recipe of images comes to, and what must fit together in it. No jax here."""

from outlast.errors import ConfigError
from outlast.models.resnet_config import ResNetConfig, ResNetModelConfig, resolve_resnet
from outlast.objectives.config import ClassifyConfig
from outlast.recipe.tables import Recipe, tables_of
from outlast.stream.order import check_divides


def image_tables(recipe: Recipe) -> tuple[ResNetModelConfig, ClassifyConfig]:
    """Return ``[model]`` and ``[objective]``. Raises ConfigError where they are not of images."""
    return tables_of(recipe, ResNetModelConfig, ClassifyConfig)


def resnet_of(recipe: Recipe, *, num_classes: int = 2) -> ResNetConfig:
    """Return the shape of the ResNet. Raises ConfigError.

    Args:
        num_classes: only the data tells how many there are.
    """
    return resolve_resnet(image_tables(recipe)[0], num_classes=num_classes)


def resolve_images(recipe: Recipe) -> Recipe:
    """Return the recipe. Raises ConfigError where two keys do not fit."""
    if recipe.stream.num_lanes is not None:
        check_divides("stream.num_lanes", recipe.stream.num_lanes, recipe.stream.global_batch_size)
    if recipe.training.num_microbatches > 1:
        raise ConfigError(
            "A batch norm takes its statistics over the whole batch, which cannot be computed in parts.",
            where="training.num_microbatches",
            remedy='leave it out; training.remat = "layer" saves memory',
        )
    if recipe.training.phases:
        raise ConfigError(
            "Phases differ in the length of their sequences, and images have none.",
            where="training.phases",
            remedy="leave them out",
        )
    if recipe.training.attention_kernel != "auto":
        raise ConfigError(
            "A ResNet has no attention.", where="training.attention_kernel", remedy="leave it out"
        )
    resnet_of(recipe)
    return recipe
