"""The recipe: one TOML file that describes a data set and a run, validated whole by every verb.

In: a file and overrides. Out: a frozen ``Recipe``, one field per table. This module is free of jax, so the
data half validates the model's table too, and a mistake shows before an hour of preparation rather than after
it.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from outlast.checkpoint.config import CheckpointConfig
from outlast.cleaning.config import CleaningConfig
from outlast.config import apply_overrides, build, nearest, read_toml, resolve_locations, table
from outlast.corpus.config import CorpusConfig
from outlast.errors import ConfigError
from outlast.images.config import ImageStreamConfig
from outlast.models.config import FAMILIES, ModelConfig, resolve_model
from outlast.models.resnet_config import ResNetModelConfig, resolve_resnet
from outlast.objectives.config import ClassifyConfig, MlmConfig
from outlast.shards.config import ShardsConfig
from outlast.stream.order import check_divides
from outlast.tokenizer.config import TokenizerConfig
from outlast.training.config import OptimizerConfig, TrainingConfig
from outlast.training.phase_plan import Phase, plan_phases, source_shares


@table
class Recipe:
    """A run on text, and the data set that it reads."""

    corpus: CorpusConfig = CorpusConfig()
    """Where the raw text lies and how it becomes documents."""
    cleaning: CleaningConfig = CleaningConfig()
    """What is done to documents before they are tokenized, and which are dropped."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Which vocabulary to train, or which existing one to use."""
    shards: ShardsConfig = ShardsConfig()
    """Into how many pieces a corpus is cut, and what the pieces tell beside tokens."""
    stream: ImageStreamConfig = ImageStreamConfig()
    """Which examples a run sees, and how they are read."""
    model: ModelConfig = ModelConfig()
    """The shape of the encoder."""
    objective: MlmConfig = MlmConfig()
    """What turns the outputs of the model into a loss."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How gradients become updates, and the learning rate of each step."""
    training: TrainingConfig = TrainingConfig()
    """How long a run is, and how a step is computed."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """How often to save, what to keep, when an owner counts as gone."""


@table
class ImageRecipe:
    """A run on images: the tables of a recipe whose ``stream.packing`` is ``images``."""

    stream: ImageStreamConfig = ImageStreamConfig(packing="images")
    """Which examples a run sees, and how they are read."""
    model: ResNetModelConfig = ResNetModelConfig()
    """The shape of the ResNet."""
    objective: ClassifyConfig = ClassifyConfig()
    """What turns the outputs of the model into a loss."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How gradients become updates, and the learning rate of each step."""
    training: TrainingConfig = TrainingConfig()
    """How long a run is, and how a step is computed."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """How often to save, what to keep, when an owner counts as gone."""


def read_run_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe | ImageRecipe:
    """Read a recipe of text or of images. Raises ConfigError listing every mistake with its key."""
    return make_run_recipe(read_tables(path, overrides), where=str(path), overrides=overrides)


def read_tables(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the tables of a recipe before they are validated, with every place in them absolute: a relative
    path of the file begins at the file's folder, one of an override at the working folder.
    """
    path = Path(path).expanduser()
    of_file = _locate(read_toml(path), path.absolute().parent)
    return _locate(apply_overrides(of_file, overrides), Path.cwd())


def _locate(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    located = resolve_locations(Recipe, data, folder)  # images have their places under the same keys
    corpus = data.get("corpus")
    if isinstance(corpus, dict) and cast(dict[str, Any], corpus).get("format") == "huggingface":
        for key in ("path", "validation_path"):  # a name where there is no such folder
            if key in corpus:
                located["corpus"][key] = _folder_or_name(corpus[key], located["corpus"][key])
    return located


def _folder_or_name(given: Any, located: Any) -> Any:
    if isinstance(given, list):
        return [_folder_or_name(*both) for both in zip(cast(list[Any], given), located, strict=True)]
    return located if isinstance(located, str) and os.path.exists(located) else given


def make_run_recipe(
    data: dict[str, Any], *, where: str, overrides: Sequence[str] = ()
) -> Recipe | ImageRecipe:
    """Validate plain data as a recipe of images where ``stream.packing`` says so, else of text."""
    stream = data.get("stream")
    is_of_images = isinstance(stream, dict) and cast(dict[str, Any], stream).get("packing") == "images"
    make = make_image_recipe if is_of_images else make_recipe
    return make(data, where=where, overrides=overrides)


def make_image_recipe(data: dict[str, Any], *, where: str, overrides: Sequence[str] = ()) -> ImageRecipe:
    """Validate plain data as a recipe of images. Raises ConfigError."""
    recipe = build(ImageRecipe, data, where=where, overrides=overrides)
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
    # Its default counts as not given: a recipe comes back from its own plain values.
    if recipe.training.epochs is not None and recipe.training.total_steps != TrainingConfig.total_steps:
        raise ConfigError(
            "The length of the run is given twice.",
            where=f"training.epochs = {recipe.training.epochs:g}, "
            f"training.total_steps = {recipe.training.total_steps}",
            remedy="leave one of the two out; --set training.epochs=0.1 makes a run short",
        )
    resolve_resnet(recipe.model, num_classes=2)  # only the data tells how many there are
    checkpoint = _with_metric(recipe.checkpoint, recipe.objective)
    return replace(recipe, checkpoint=checkpoint)


def in_steps(recipe: ImageRecipe, num_examples: int) -> ImageRecipe:
    """Return the recipe with steps in place of epochs, rounded to the nearest.

    Args:
        num_examples: of the training split.
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


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe. Raises ConfigError listing every mistake with its key."""
    return make_recipe(read_tables(path, overrides), where=str(path), overrides=overrides)


def make_recipe(data: dict[str, Any], *, where: str, overrides: Sequence[str] = ()) -> Recipe:
    """Validate plain data as a recipe, then what no table can check by itself. Raises ConfigError.

    Args:
        where: the data comes from.
        overrides: what ``apply_overrides`` has set in it.
    """
    recipe = _with_total_steps(
        build(Recipe, data, where=where, overrides=overrides), data.get("training", {})
    )
    _refuse_epochs(recipe)
    plan = plan_phases(recipe.training, recipe.stream)
    _check_batches(recipe, plan)
    source_shares(recipe.stream, plan)
    lengths = tuple(dict.fromkeys(phase.sequence_length for phase in plan))
    if recipe.stream.packing == "pairs" and recipe.shards.pairs.lengths is None:
        pairs = replace(recipe.shards.pairs, lengths=lengths)
        recipe = replace(recipe, shards=replace(recipe.shards, pairs=pairs))
    if recipe.objective.mask_probability is None:
        family = FAMILIES[recipe.model.architecture]
        recipe = replace(
            recipe, objective=replace(recipe.objective, mask_probability=family.mask_probability)
        )
    if recipe.objective.whole_words:
        recipe = _with_words(recipe)
    # Only the tokenizer will tell its size and ids, but all else must fit together before data is prepared.
    encoder, *_ = [  # of any of the lengths, after a check of each
        resolve_model(
            recipe.model,
            vocab_size=recipe.model.vocab_size or recipe.tokenizer.vocab_size,
            special_ids={"pad": 0},
            sequence_length=length,
            next_sentence=recipe.objective.next_sentence,
        )
        for length in sorted(lengths, reverse=True)
    ]
    if recipe.objective.next_sentence and recipe.stream.packing != "pairs":
        raise ConfigError(
            "Next-sentence prediction needs examples of two segments.",
            where="objective.next_sentence",
            expected='stream.packing = "pairs"',
            remedy="set it, and corpus.sentences, before the data is prepared; or leave next_sentence out",
        )
    if recipe.stream.packing == "pairs" and encoder.type_vocab_size < 2:
        raise ConfigError(
            f"A {encoder.architecture} model does not tell the two segments of a pair apart.",
            where="stream.packing",
            expected="a model with two token types",
            remedy='set model.type_vocab_size to 2, or take "bert", or set stream.packing to "blocks"',
        )
    if recipe.objective.separate_documents and recipe.stream.packing == "pairs":
        raise ConfigError(
            "The two segments of a pair are to be seen together.",
            where="objective.separate_documents",
            remedy='leave it out, or set stream.packing to "blocks"',
        )
    checkpoint = _with_metric(recipe.checkpoint, recipe.objective)
    return replace(recipe, checkpoint=checkpoint)


def _with_metric(checkpoint: CheckpointConfig, objective: MlmConfig | ClassifyConfig) -> CheckpointConfig:
    """Return the table with the metric that says which checkpoint is the best. Raises ConfigError."""
    report = objective.report
    metric = report.best if checkpoint.best_metric is None else checkpoint.best_metric
    if metric not in report.names:
        raise ConfigError(
            f"The evaluations of this run have no metric {metric!r}{nearest(metric, report.names)}",
            where="checkpoint.best_metric",
            expected=", ".join(report.names),
            remedy="choose one of these; those of next sentences come with objective.next_sentence = true",
        )
    return replace(checkpoint, best_metric=metric)


def _with_words(recipe: Recipe) -> Recipe:
    """Return a recipe that masks whole words with shards that tell where words begin."""
    if recipe.shards.words == "none":
        raise ConfigError(
            "Whole words are to be masked, and the shards are not to tell where words begin.",
            where='objective.whole_words = true, shards.words = "none"',
            remedy='leave shards.words out ("pieces"), or set it to "mecab" for Japanese',
        )
    return replace(recipe, shards=replace(recipe.shards, words=recipe.shards.words or "pieces"))


def _with_total_steps(recipe: Recipe, given: dict[str, Any]) -> Recipe:
    """Return the recipe with the steps of its phases as ``total_steps``. Raises ConfigError."""
    training = recipe.training
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


def _refuse_epochs(recipe: Recipe) -> None:
    given = {
        "training.epochs": recipe.training.epochs,
        "optimizer.warmup_epochs": recipe.optimizer.warmup_epochs,
        "optimizer.decay_epochs": recipe.optimizer.decay_epochs,
    }
    for where, value in given.items():
        if value is not None:
            raise ConfigError(
                "A run on text is measured in steps: what an epoch is depends on packing, phase and source.",
                where=where,
                remedy=f"give {where.replace('training.', 'training.total_').replace('epochs', 'steps')}",
            )


def _check_batches(recipe: Recipe, plan: Sequence[Phase]) -> None:
    """Check that the batch of every phase divides as the run needs it. Raises ConfigError."""
    where = "training.phases" if recipe.training.phases else "stream.global_batch_size"
    for phase in plan:
        batch = phase.global_batch_size
        check_divides("training.num_microbatches", recipe.training.num_microbatches, batch, where=where)
        if recipe.stream.num_lanes is not None:
            check_divides("stream.num_lanes", recipe.stream.num_lanes, batch, where=where)
