"""What a recipe of masked language modelling comes to, and what must fit together in it. No jax here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from outlast.errors import ConfigError
from outlast.models.config import FAMILIES, EncoderConfig, ModelConfig, resolve_model
from outlast.objectives.config import MlmConfig
from outlast.recipe.tables import Recipe, tables_of
from outlast.stream.order import check_divides
from outlast.training.phase_plan import Phase, plan_phases, source_shares

_ONLY_PAD = MappingProxyType({"pad": 0})


def text_tables(recipe: Recipe) -> tuple[ModelConfig, MlmConfig]:
    """Return ``[model]`` and ``[objective]``. Raises ConfigError where they are not of text."""
    return tables_of(recipe, ModelConfig, MlmConfig)


def encoder_of(
    recipe: Recipe, *, vocab_size: int | None = None, special_ids: Mapping[str, int] = _ONLY_PAD
) -> EncoderConfig:
    """Return the shape of the encoder, checked at the length of every phase. Raises ConfigError.

    Args:
        vocab_size, special_ids: of the tokenizer. Without it the size is the one that the recipe asks for.
    """
    model, objective = text_tables(recipe)
    plan = plan_phases(recipe.training, recipe.stream)
    lengths = sorted({phase.sequence_length or 0 for phase in plan}, reverse=True)
    encoder, *_ = [  # of any of the lengths, after a check of each
        resolve_model(
            model,
            vocab_size=vocab_size or model.vocab_size or recipe.tokenizer.vocab_size,
            special_ids=special_ids,
            sequence_length=length,
            next_sentence=objective.next_sentence,
        )
        for length in lengths
    ]
    return encoder


def resolve_text(recipe: Recipe) -> Recipe:
    """Return the recipe with what follows from other keys. Raises ConfigError where two do not fit."""
    model, objective = text_tables(recipe)
    plan = plan_phases(recipe.training, recipe.stream)
    _check_batches(recipe, plan)
    if recipe.training.epochs is None:
        source_shares(recipe.stream, plan)
    if recipe.stream.packing == "pairs" and recipe.shards.pairs.lengths is None:
        lengths = tuple(dict.fromkeys(phase.sequence_length or 0 for phase in plan))
        pairs = replace(recipe.shards.pairs, lengths=lengths)
        recipe = replace(recipe, shards=replace(recipe.shards, pairs=pairs))
    if objective.mask_probability is None:
        family = FAMILIES[model.architecture]
        recipe = replace(recipe, objective=replace(objective, mask_probability=family.mask_probability))
    if objective.whole_words:
        recipe = _with_words(recipe)
    # Only the tokenizer will tell its size and ids, but all else must fit together before data is prepared.
    _check_pairs(recipe, objective, encoder_of(recipe))
    return recipe


def _check_pairs(recipe: Recipe, objective: MlmConfig, encoder: EncoderConfig) -> None:
    of_pairs = recipe.stream.packing == "pairs"
    if objective.next_sentence and not of_pairs:
        raise ConfigError(
            "Next-sentence prediction needs examples of two segments.",
            where="objective.next_sentence",
            expected='stream.packing = "pairs"',
            remedy="set it, and corpus.sentences, before the data is prepared; or leave next_sentence out",
        )
    if of_pairs and encoder.type_vocab_size < 2:
        raise ConfigError(
            f"A {encoder.architecture} model does not tell the two segments of a pair apart.",
            where="stream.packing",
            expected="a model with two token types",
            remedy='set model.type_vocab_size to 2, or take "bert", or set stream.packing to "blocks"',
        )
    if objective.separate_documents and of_pairs:
        raise ConfigError(
            "The two segments of a pair are to be seen together.",
            where="objective.separate_documents",
            remedy='leave it out, or set stream.packing to "blocks"',
        )


def _with_words(recipe: Recipe) -> Recipe:
    """Return a recipe that masks whole words with shards that tell where words begin."""
    if recipe.shards.words == "none":
        raise ConfigError(
            "Whole words are to be masked, and the shards are not to tell where words begin.",
            where='objective.whole_words = true, shards.words = "none"',
            remedy='leave shards.words out ("pieces"), or set it to "mecab" for Japanese',
        )
    return replace(recipe, shards=replace(recipe.shards, words=recipe.shards.words or "pieces"))


def _check_batches(recipe: Recipe, plan: Sequence[Phase]) -> None:
    """Check that the batch of every phase divides as the run needs it. Raises ConfigError."""
    where = "training.phases" if recipe.training.phases else "stream.global_batch_size"
    for phase in plan:
        batch = phase.global_batch_size
        check_divides("training.num_microbatches", recipe.training.num_microbatches, batch, where=where)
        if recipe.stream.num_lanes is not None:
            check_divides("stream.num_lanes", recipe.stream.num_lanes, batch, where=where)
