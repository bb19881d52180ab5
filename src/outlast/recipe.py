"""The recipe: one TOML file that describes a data set and a run, validated whole by every verb.

In: a file and overrides. Out: a frozen ``Recipe``, one field per table. This module is free of jax, so the
data half validates the model's table too, and a mistake shows before an hour of preparation rather than after
it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from outlast.checkpoint.config import CheckpointConfig
from outlast.cleaning.config import CleaningConfig
from outlast.config import apply_overrides, build, read_toml, table
from outlast.corpus.config import CorpusConfig
from outlast.errors import ConfigError
from outlast.models.config import ModelConfig, resolve_model
from outlast.objectives.config import MlmConfig
from outlast.shards.config import ShardsConfig
from outlast.stream.config import StreamConfig
from outlast.stream.order import check_divides
from outlast.tokenizer.config import TokenizerConfig
from outlast.training.config import OptimizerConfig, TrainingConfig


@table
class Recipe:
    corpus: CorpusConfig = CorpusConfig()
    cleaning: CleaningConfig = CleaningConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    shards: ShardsConfig = ShardsConfig()
    stream: StreamConfig = StreamConfig()
    model: ModelConfig = ModelConfig()
    objective: MlmConfig = MlmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()


def read_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe. Raises ConfigError listing every mistake with its key."""
    return make_recipe(apply_overrides(read_toml(path), overrides), where=str(path))


def make_recipe(data: dict[str, Any], *, where: str) -> Recipe:
    """Validate plain data as a recipe, then what no table can check by itself. Raises ConfigError."""
    recipe = build(Recipe, data, where=where)
    batch = recipe.stream.global_batch_size
    check_divides("training.num_microbatches", recipe.training.num_microbatches, batch)
    if recipe.stream.num_lanes is not None:
        check_divides("stream.num_lanes", recipe.stream.num_lanes, batch)
    if recipe.stream.packing == "pairs" and recipe.shards.pairs.lengths is None:
        pairs = replace(recipe.shards.pairs, lengths=(recipe.stream.sequence_length,))
        recipe = replace(recipe, shards=replace(recipe.shards, pairs=pairs))
    # Only the tokenizer will tell its size and ids, but all else must fit together before data is prepared.
    encoder = resolve_model(
        recipe.model,
        vocab_size=recipe.tokenizer.vocab_size,
        special_ids={"pad": 0},
        sequence_length=recipe.stream.sequence_length,
    )
    if recipe.stream.packing == "pairs" and encoder.type_vocab_size < 2:
        raise ConfigError(
            f"A {encoder.architecture} model does not tell the two segments of a pair apart.",
            where="stream.packing",
            expected="a model with two token types",
            remedy='set model.architecture to "bert", or stream.packing to "blocks"',
        )
    if recipe.objective.separate_documents and recipe.stream.packing == "pairs":
        raise ConfigError(
            "The two segments of a pair are to be seen together.",
            where="objective.separate_documents",
            remedy='leave it out, or set stream.packing to "blocks"',
        )
    return recipe
