"""Masked language modelling on text: what differs from other kinds of runs, in one place.

In: a recipe, data sets of text, a run directory. Out: streams of tokens, the objective on an encoder, an
artifact with its tokenizer.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from outlast.errors import ConfigError, RunError, ShardError
from outlast.huggingface.load import HEADS
from outlast.logs import log
from outlast.models.attention.random_blocks import DEFAULT_EVALUATION_RANDOM_BLOCKS, DEFAULT_RANDOM_BLOCKS
from outlast.models.config import FAMILIES, EncoderConfig
from outlast.models.params import flatten, unflatten
from outlast.objectives.mlm import MlmObjective, make_objective
from outlast.recipe import Recipe
from outlast.recipe.text import encoder_of, text_tables
from outlast.run.directory import PARAMS_PREFIX, TOKENIZER_FOLDER, read_recipe_tables
from outlast.run.initialize import fitting, warn_of_differences
from outlast.run.kind import DataFacts, Former, Parts, RunKind
from outlast.storage import Store
from outlast.stream.config import StreamConfig
from outlast.stream.loader import TokenStream
from outlast.tokenizer.manifest import read_tokenizer, write_tokenizer
from outlast.training.phase_plan import plan_phases, source_shares
from outlast.training.state import TrainState

TextParts = Parts[TokenStream, MlmObjective]


class MaskedLm(RunKind[TokenStream, MlmObjective]):
    """The ``RunKind`` of text."""

    architectures = frozenset(FAMILIES)
    prefix = PARAMS_PREFIX
    held_out_remedy = "prepare it with corpus.validation_fraction > 0"

    def as_begun(self, recipe: Recipe, store: Store) -> Recipe:
        """Return the recipe with the random blocks of a BigBird filled in. Where it leaves them out, they are
        those of the run that is there, which may have begun under another default.
        """
        model, _ = text_tables(recipe)
        if model.architecture != "bigbird":
            return recipe
        try:
            begun = read_recipe_tables(store).get("model", {})
        except RunError:  # there is none, or its description is damaged: the checkpoint has the last word
            begun = {}
        model = replace(
            model,
            random_blocks=model.random_blocks or begun.get("random_blocks") or DEFAULT_RANDOM_BLOCKS,
            evaluation_random_blocks=model.evaluation_random_blocks
            or begun.get("evaluation_random_blocks")
            or DEFAULT_EVALUATION_RANDOM_BLOCKS,
        )
        return replace(recipe, model=model)

    def open_stream(self, recipe: Recipe, config: StreamConfig, split: str = "train") -> TokenStream:
        """Open a split; a mixture has the same shares in every phase."""
        _, objective = text_tables(recipe)
        return TokenStream(
            config,
            seed=recipe.training.seed,
            split=split,
            word_starts=objective.whole_words,
            shares=source_shares(config, plan_phases(recipe.training, recipe.stream)) or None,
        )

    def facts_of(self, stream: TokenStream) -> DataFacts:
        tokenizer = stream.manifest.tokenizer
        return DataFacts(
            vocab_size=tokenizer.vocab_size,
            special_ids=tokenizer.special_ids,
            tokenizer=tokenizer.fingerprint,
        )

    def make_objective(self, recipe: Recipe, facts: DataFacts) -> MlmObjective:
        _, objective = text_tables(recipe)
        return make_objective(
            encoder_of(recipe, vocab_size=facts.vocab_size, special_ids=facts.special_ids),
            objective,
            special_ids=facts.special_ids,
            vocab_size=facts.vocab_size,
            compute_dtype=jnp.dtype(recipe.training.compute_dtype),
            remat=recipe.training.remat,
            attention_kernel=recipe.training.attention_kernel,
        )

    def check_examples(self, stream: TokenStream, objective: MlmObjective) -> None:
        """Check that the model knows every token type of fixed examples."""
        encoder = objective.model
        for source in stream.sources:
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

    def check_exportable(self, parts: TextParts) -> None:
        from outlast.huggingface.export import check_exportable
        from outlast.tokenizer.encode import load_tokenizer

        objective = parts.learner.objective
        tokenizer = load_tokenizer(parts.stream.store, parts.stream.manifest.tokenizer.path)
        check_exportable(objective.model, flatten(objective.param_table), tokenizer)

    def check_same_labels(self, former: Former, parts: TextParts) -> None:
        made_with = former.restored.commit.identity["data"]["tokenizer"]
        if made_with != parts.facts.tokenizer:
            raise ConfigError(
                f"The run was trained with the tokenizer {made_with}, "
                f"the data set was made with {parts.facts.tokenizer}.",
                where=parts.recipe.stream.manifest,
                remedy="--set stream.manifest=URL names a data set of the run's own tokenizer",
            )

    def start_from(self, former: Former, state: TrainState, parts: TextParts) -> TrainState:
        """Return the state with the parameters of a checkpoint. Heads that are missing there stay as the seed
        made them, heads that this run does not have are left out.
        """
        _check_pieces(former, parts)
        found = unflatten(former.restored.under(PARAMS_PREFIX))
        fresh = [head for head in HEADS if head in state.params and head not in found]
        surplus = [head for head in HEADS if head in found and head not in state.params]
        if fresh:
            log.info("it has no %s: initialised by training.seed", " and no ".join(fresh))
        if surplus:
            log.info("left out, for this run has none: %s", ", ".join(surplus))
        warn_of_differences(former, parts.identity)
        kept = {name: value for name, value in found.items() if name not in surplus}
        kept |= {head: state.params[head] for head in fresh}
        tokenizer = f"--set tokenizer.path={former.run_dir}/tokenizer"
        more = f", and prepare the data with its tokenizer: {tokenizer}"
        return state._replace(params=fitting(kept, state.params, former.run_dir, more))

    def keep_labels(self, stream: TokenStream, store: Store) -> dict[str, Any]:
        """Copy the tokenizer."""
        expected = stream.manifest.tokenizer
        tokenizer, files = read_tokenizer(stream.store, expected.path)
        if tokenizer.fingerprint != expected.fingerprint:
            raise ShardError(
                "The data set lies beside another tokenizer than the one it was made with.",
                where=f"{stream.store.url}/{expected.path}",
                expected=expected.fingerprint,
                remedy="restore the folder, or prepare the data again",
            )
        write_tokenizer(store, TOKENIZER_FOLDER, tokenizer, files)
        return {}

    def export(self, former: Former, store: Store, out: Path, provenance: dict[str, Any]) -> Path:
        from outlast.huggingface.export import check_exportable, export_model
        from outlast.huggingface.tokenizer_files import write_tokenizer_files
        from outlast.tokenizer.encode import load_tokenizer

        identity = former.restored.commit.identity
        encoder = EncoderConfig.from_dict(identity["model"])
        tokenizer = load_tokenizer(store, TOKENIZER_FOLDER)
        _check_own_tokenizer(tokenizer.manifest.fingerprint, identity["data"]["tokenizer"], store.url)
        params = former.restored.under(PARAMS_PREFIX)
        check_exportable(encoder, params, tokenizer)
        return export_model(
            params,
            encoder,
            out,
            special_ids=tokenizer.manifest.special_ids,
            write_tokenizer=lambda folder: write_tokenizer_files(
                tokenizer,
                folder,
                max_length=encoder.max_positions,
                type_vocab_size=encoder.type_vocab_size,
            ),
            provenance=provenance,
        )


def _check_pieces(former: Former, parts: TextParts) -> None:
    """Refuse parameters whose rows stand for other pieces: no shape tells it where there are as many."""
    theirs, ours = former.restored.commit.identity["data"].get("tokenizer"), parts.facts.tokenizer
    if theirs == ours:
        return
    if former.other_tokenizer:
        log.warning("its pieces are those of the tokenizer %s, the data's those of %s", theirs, ours)
        return
    raise ConfigError(
        f"The parameters belong to the pieces of the tokenizer {theirs}, the data were made with {ours}.",
        where=f"--initialize-from {former.run_dir}",
        remedy=f"prepare the data with its tokenizer: --set tokenizer.path={former.run_dir}/tokenizer; "
        "or, to learn the embeddings of other pieces from these, add --other-tokenizer",
    )


def _check_own_tokenizer(found: str, trained_with: str, run: str) -> None:
    """Refuse a tokenizer that a process left there which had the run before, with other data."""
    if found != trained_with:
        raise RunError(
            "The tokenizer in the run is not the one that it was trained with.",
            where=f"{run}/{TOKENIZER_FOLDER}",
            expected=f"fingerprint {trained_with}, it has {found}",
            remedy="run the line that trains it again: it writes the tokenizer anew",
        )
