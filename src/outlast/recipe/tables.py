"""The tables of a recipe. No jax here.

``[model]`` is told apart by ``architecture``, ``[objective]`` by ``kind``: each value has the keys that mean
something with it, and no others.
"""

from typing import Annotated, TypeVar

from outlast.checkpoint.config import CheckpointConfig
from outlast.cleaning.config import CleaningConfig
from outlast.config import ToldApart, table
from outlast.corpus.config import CorpusConfig
from outlast.errors import ConfigError
from outlast.images.config import ImageStreamConfig
from outlast.models.config import FAMILIES, ModelConfig
from outlast.models.resnet_config import RESNET, ResNetModelConfig
from outlast.objectives.config import ClassifyConfig, MlmConfig
from outlast.shards.config import ShardsConfig
from outlast.tokenizer.config import TokenizerConfig
from outlast.training.config import MeshConfig, OptimizerConfig, TrainingConfig

MASKED_LM, CLASSIFICATION = "masked_lm", "classification"
"""The kinds of objectives."""

ModelTable = Annotated[
    ModelConfig | ResNetModelConfig,
    ToldApart("architecture", {ModelConfig: tuple(FAMILIES), ResNetModelConfig: (RESNET,)}),
]
ObjectiveTable = Annotated[
    MlmConfig | ClassifyConfig,
    ToldApart("kind", {MlmConfig: (MASKED_LM,), ClassifyConfig: (CLASSIFICATION,)}),
]
Model = TypeVar("Model")
Objective = TypeVar("Objective")


@table
class Recipe:
    """A run, and the data set that it reads."""

    corpus: CorpusConfig = CorpusConfig()
    """Where the raw text lies and how it becomes documents."""
    cleaning: CleaningConfig = CleaningConfig()
    """What is done to documents before they are tokenized, and which are dropped."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Which vocabulary to train, or which existing one to use."""
    shards: ShardsConfig = ShardsConfig()
    """Into how many portions a corpus is cut, and what the shards tell beside tokens."""
    stream: ImageStreamConfig = ImageStreamConfig()
    """Which examples a run sees, and how they are read."""
    model: ModelTable = ModelConfig()
    """The shape of the model."""
    objective: ObjectiveTable = MlmConfig()
    """What turns the outputs of the model into a loss."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How gradients become updates, and the learning rate of each step."""
    training: TrainingConfig = TrainingConfig()
    """How long a run is, and how a step is computed."""
    mesh: MeshConfig = MeshConfig()
    """Among which devices a step is divided."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """How often to save, what to keep, when an owner counts as gone."""


def tables_of(recipe: Recipe, model: type[Model], objective: type[Objective]) -> tuple[Model, Objective]:
    """Return ``[model]`` and ``[objective]`` as those of a kind. Raises ConfigError where they are others."""
    if isinstance(recipe.model, model) and isinstance(recipe.objective, objective):
        return recipe.model, recipe.objective
    raise ConfigError(
        f"A {recipe.model.architecture} model has no objective of the kind {recipe.objective.kind}.",
        where="objective.kind",
        remedy="leave it out, or choose another model.architecture",
    )
