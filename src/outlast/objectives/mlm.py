"""Masked language modelling: the masks are made on the device, inside the step, or came with the examples.

In: unmasked examples and one key per row, or static examples that say what they hide. Out: the sum of the
cross-entropy over the predicted tokens, and their number. A row's mask is a function of its key and its
tokens alone, so the caller decides what it repeats with: (seed, step, global row) in training, (seed, example
index) in evaluation.

Letters: b row, l position, p prediction slot, v vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from outlast.errors import ConfigError
from outlast.models.architectures import ARCHITECTURES
from outlast.models.attention.full import AttentionMask
from outlast.models.attention.kernels import AttentionKernel
from outlast.models.bert import EncoderInputs
from outlast.models.config import EncoderConfig
from outlast.models.params import Params, ParamTable
from outlast.models.randomness import RowKeys, fold, random_bits
from outlast.models.remat import Remat
from outlast.objectives.config import MASKED, NEXT_SENTENCE, MlmConfig
from outlast.objectives.loss import LossOutput, LossTerm, is_right, row_weights
from outlast.objectives.next_sentence import next_sentence_term
from outlast.objectives.report import Report
from outlast.objectives.whole_words import choose_words

NEVER_PREDICTED = ("pad", "cls", "sep", "mask", "unk")
"""Special ids that are neither predicted nor drawn as random replacements."""


class MaskedBatch(NamedTuple):
    """Examples with tokens hidden. Unused slots have weight 0, and point at some position all the same."""

    input_ids: Int[Array, "b l"]
    positions: Int[Array, "b p"]
    labels: Int[Array, "b p"]
    weights: Float[Array, "b p"]


@dataclass(frozen=True, kw_only=True)
class MlmObjective:
    """Masked language modelling on one encoder. Made by ``make_objective``."""

    model: EncoderConfig
    config: MlmConfig
    mask_id: int
    separator_id: int | None
    """What stands behind each document; None: documents are not kept apart."""
    excluded_ids: tuple[int, ...]
    """Sorted ids that are neither predicted nor drawn."""
    vocab_size: int
    """Ids that may be drawn: those below it."""
    compute_dtype: DTypeLike
    remat: Remat
    attention_kernel: AttentionKernel

    @property
    def report(self) -> Report:
        return self.config.report

    @property
    def param_table(self) -> ParamTable:
        return ARCHITECTURES[self.model.architecture].param_table(self.model)

    @property
    def state_table(self) -> ParamTable:
        """Encoders have no state."""
        return {}

    def loss(
        self,
        params: Params,
        model_state: dict[str, Array],
        batch: Mapping[str, Array],
        *,
        row_keys: RowKeys,
        train: bool,
    ) -> LossOutput:
        """Mask a batch and return the summed cross-entropy of the predictions, in nats, float32.

        Args:
            params: float32, as ``param_table`` declares.
            model_state: passed through; these models have none.
            batch: ``input_ids`` int32 (b, l); ``attention_mask`` integer or bool (b, l), absent: all real;
                ``token_type_ids`` optional; ``example_weights`` float (b,) optional, multiplies each row's
                loss. With ``masked_positions``, ``masked_ids`` int32 and ``masked_weights`` float32 (b, p)
                tokens are hidden already, and no others are: the positions, what stood there, and how much
                each prediction counts. ``next_sentence_label`` int32 (b,) where that is an objective.
                ``word_starts`` integer (b, l), not 0 where a word begins, where whole words are masked.
            row_keys: one key per row; masks and dropout take different streams of it.
            train: with dropout.
        """
        architecture = ARCHITECTURES[self.model.architecture]
        attention_mask = batch.get("attention_mask")
        masked = self._masked(batch, row_keys)
        inputs = EncoderInputs(
            masked.input_ids,
            attention_mask,
            batch.get("token_type_ids"),
            segment_ids=None
            if self.separator_id is None
            else segment_ids(batch["input_ids"], self.separator_id),
        )
        hidden = architecture.encode(
            params,
            inputs,
            config=self.model,
            dropout_keys=fold(row_keys, "dropout") if train else None,
            compute_dtype=self.compute_dtype,
            remat=self.remat,
            attention_kernel=self.attention_kernel,
        )
        chosen = jnp.take_along_axis(hidden, masked.positions[:, :, None], axis=1)
        logits = architecture.predict_tokens(params, chosen, config=self.model)
        weights = _weights(masked, batch)
        with jax.named_scope("loss"):
            loss_sum, correct = cross_entropy(logits, masked.labels, weights)
        terms = {MASKED: LossTerm(loss_sum, jnp.sum(weights), {"accuracy": correct})}
        if self.config.next_sentence:
            terms[NEXT_SENTENCE] = next_sentence_term(params, hidden, batch)
        return LossOutput(terms, model_state)

    def weight_sums(self, batch: Mapping[str, Array], *, row_keys: RowKeys) -> dict[str, Array]:
        """Return the summed weight of every term, without the model.

        A batch that is computed in parts needs them before the first part: each part's share of the gradient
        is divided by the weight of the whole.
        """
        sums = {MASKED: jnp.sum(_weights(self._masked(batch, row_keys), batch))}
        if self.config.next_sentence:
            sums[NEXT_SENTENCE] = jnp.sum(row_weights(batch))
        return sums

    def _masked(self, batch: Mapping[str, Array], row_keys: RowKeys) -> MaskedBatch:
        """Hide tokens, or take the masks that came with the examples."""
        if "masked_positions" in batch:
            return given_masks(batch, self.config)
        with jax.named_scope("mask_tokens"):
            keys, starts = fold(row_keys, "masks"), batch.get("word_starts")
            return self.mask(batch["input_ids"], batch.get("attention_mask"), keys, starts)

    def mask(
        self,
        input_ids: Int[Array, "b l"],
        attention_mask: AttentionMask | None,
        row_keys: RowKeys,
        word_starts: Int[Array, "b l"] | None = None,
    ) -> MaskedBatch:
        """Hide tokens of each row as the configuration says."""
        return mask_tokens(
            input_ids,
            attention_mask,
            row_keys,
            config=self.config,
            vocab_size=self.vocab_size,
            mask_id=self.mask_id,
            excluded_ids=self.excluded_ids,
            word_starts=word_starts,
        )


def make_objective(
    model: EncoderConfig,
    config: MlmConfig,
    *,
    special_ids: Mapping[str, int],
    vocab_size: int | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: Remat = "selective",
    attention_kernel: AttentionKernel = "auto",
) -> MlmObjective:
    """Make the objective of a run.

    Args:
        special_ids: names and ids of the tokenizer manifest; ``mask`` and ``pad`` are needed.
        vocab_size: ids of the tokenizer, where the model has rows beside them; those are never drawn.

    Raises:
        ConfigError: a tokenizer without a mask id, or with nothing but special ids; documents that are to be
            kept apart by a model that cannot.
    """
    if "mask" not in special_ids:
        raise ConfigError(
            "The tokenizer has no mask id.",
            where="special ids: " + ", ".join(special_ids),
            expected="mask among them",
            remedy="prepare the data with a tokenizer that has a mask piece",
        )
    excluded = {special_ids[name] for name in NEVER_PREDICTED if name in special_ids}
    if not excluded <= set(range(model.vocab_size)) or len(excluded) == model.vocab_size:
        raise ConfigError(
            f"The special ids {sorted(excluded)} leave no token in a vocabulary of {model.vocab_size}.",
            expected="special ids inside the vocabulary, and other ids beside them",
        )
    if config.separate_documents and model.alternating is None:
        raise ConfigError(
            f"A {model.architecture} model cannot keep documents apart.",
            where="[objective] separate_documents",
            remedy='leave it out, or set model.architecture to "modernbert"',
        )
    if config.next_sentence and not model.next_sentence:
        raise ConfigError(
            "The model was made without a next-sentence head.",
            where="[objective] next_sentence",
            remedy="resolve_model(..., next_sentence=True)",
        )
    return MlmObjective(
        model=model,
        config=config,
        mask_id=special_ids["mask"],
        separator_id=special_ids["sep"] if config.separate_documents else None,
        excluded_ids=tuple(sorted(excluded)),
        vocab_size=vocab_size or model.vocab_size,
        compute_dtype=compute_dtype,
        remat=remat,
        attention_kernel=attention_kernel,
    )


def segment_ids(input_ids: Int[Array, "b l"], separator_id: int) -> Int[Array, "b l"]:
    """Number the documents of each row; a document's separator belongs to it, [CLS] to the first."""
    ends = (input_ids == separator_id).astype(jnp.int32)
    return jnp.cumsum(ends, axis=1, dtype=jnp.int32) - ends


def mask_tokens(
    input_ids: Int[Array, "b l"],
    attention_mask: AttentionMask | None,
    row_keys: RowKeys,
    *,
    config: MlmConfig,
    vocab_size: int,
    mask_id: int,
    excluded_ids: tuple[int, ...],
    word_starts: Int[Array, "b l"] | None = None,
) -> MaskedBatch:
    """Choose tokens to predict and hide them.

    Per row, min(slots, max(1, round(mask_probability * eligible))) of the eligible tokens are drawn
    uniformly without replacement, none where nothing is eligible; where whole words are masked, words of
    together at most so many tokens (``choose_words``). Each token is replaced by the mask
    (``mask_share``), by an id drawn uniformly from those not excluded (``random_share``), or stays. The
    original BERT code draws the random id from the whole vocabulary, special ids included; here they are
    left out.

    Args:
        attention_mask: positions with 0 are not eligible; None: all are real.
        excluded_ids: sorted ids that are not eligible and never drawn.
        word_starts: needed where whole words are masked, else not looked at.

    Raises:
        ConfigError: whole words are to be masked, and nothing tells where they begin.
    """
    eligible = _not_in(input_ids, excluded_ids)
    if attention_mask is not None:
        eligible = eligible & attention_mask.astype(jnp.bool_)
    num_slots = config.num_predictions(input_ids.shape[1])
    counts = _count(eligible, config.probability, num_slots)
    ranks = (random_bits(fold(row_keys, "positions"), eligible.shape[1:]) >> jnp.uint32(1)).astype(jnp.int32)
    if not config.whole_words:
        positions, used = _choose(eligible, ranks, counts, num_slots)
    elif word_starts is not None:
        positions, used = choose_words(eligible, word_starts, ranks, counts, num_slots)
    else:
        raise ConfigError(
            "Whole words are to be masked, and the batches do not tell where words begin.",
            where="objective.whole_words",
            expected="word_starts in the batch",
            remedy="pass word_starts=True to the stream",
        )
    labels = jnp.take_along_axis(input_ids, positions, axis=1)

    draws = random_bits(fold(row_keys, "replacement"), (num_slots,))
    num_drawable = jnp.uint32(vocab_size - len(excluded_ids))
    drawn = _skip(
        (random_bits(fold(row_keys, "random id"), (num_slots,)) % num_drawable).astype(jnp.int32),
        excluded_ids,
    )
    replacement = jnp.where(_below(draws, config.mask_share + config.random_share), drawn, labels)
    replacement = jnp.where(_below(draws, config.mask_share), jnp.int32(mask_id), replacement)
    replacement = jnp.where(used, replacement, labels)

    def put(row: Array, places: Array, values: Array) -> Array:
        return row.at[places].set(values, unique_indices=True)

    masked_ids = jax.vmap(put)(input_ids, positions, replacement)
    return MaskedBatch(masked_ids, positions, labels, used.astype(jnp.float32))


def given_masks(batch: Mapping[str, Array], config: MlmConfig) -> MaskedBatch:
    """Return the masks that static examples bring along.

    Raises:
        ConfigError: a recipe that asks for another number of predictions than the examples have, or for
            whole words.
    """
    if config.whole_words:
        raise ConfigError(
            "The data set's examples are masked already: fixed examples cannot be masked anew.",
            where="objective.whole_words",
            remedy="leave it out, or prepare the data from text",
        )
    positions = batch["masked_positions"]
    if config.max_predictions not in (None, positions.shape[1]):
        raise ConfigError(
            f"The data set's examples have {positions.shape[1]} predictions each, the recipe "
            f"{config.max_predictions}: fixed examples cannot be masked anew.",
            where="objective.max_predictions",
            remedy=f"leave it out, or set it to {positions.shape[1]}",
        )
    weights = batch["masked_weights"].astype(jnp.float32)
    return MaskedBatch(batch["input_ids"], positions, batch["masked_ids"], weights)


def cross_entropy(
    logits: Float[Array, "b p v"], labels: Int[Array, "b p"], weights: Float[Array, "b p"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the weighted sums of the cross-entropy (nats) and of the predictions that are right, float32.

    A prediction is right where ``is_right`` says so.
    """
    label_logits = jnp.take_along_axis(logits, labels[:, :, None], axis=2)[:, :, 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - label_logits
    return jnp.sum(losses * weights), jnp.sum(is_right(logits, labels) * weights)


def _weights(masked: MaskedBatch, batch: Mapping[str, Array]) -> Float[Array, "b p"]:
    """Return how much each prediction counts, its row's weight included."""
    return masked.weights * row_weights(batch)[:, None] if "example_weights" in batch else masked.weights


def _count(eligible: Array, probability: float, num_slots: int) -> Int[Array, "b"]:
    """Return how many tokens of each row are to be predicted."""
    num_eligible = jnp.sum(eligible, axis=1, dtype=jnp.int32)
    wanted = jnp.round(num_eligible.astype(jnp.float32) * probability).astype(jnp.int32)
    return jnp.minimum(jnp.minimum(jnp.maximum(wanted, 1), num_slots), num_eligible)


def _choose(eligible: Array, ranks: Array, counts: Array, num_slots: int) -> tuple[Int[Array, "b p"], Array]:
    """Return distinct positions, those of the highest random rank first, and which slots are used."""
    _, positions = jax.lax.top_k(jnp.where(eligible, ranks, jnp.int32(-1)), num_slots)
    return positions, jax.lax.broadcasted_iota(jnp.int32, (1, num_slots), 1) < counts[:, None]


def _not_in(ids: Array, excluded_ids: tuple[int, ...]) -> Array:
    allowed = jnp.ones(ids.shape, jnp.bool_)
    for excluded in excluded_ids:
        allowed = allowed & (ids != excluded)
    return allowed


def _skip(numbers: Array, excluded_ids: tuple[int, ...]) -> Array:
    """Map 0, 1, 2, ... to the ids that are not excluded, in order. ``excluded_ids`` must be sorted."""
    for excluded in excluded_ids:
        numbers = numbers + (numbers >= excluded).astype(jnp.int32)
    return numbers


def _below(draws: Array, share: float) -> Array:
    return draws < jnp.uint32(round(share * 2**32)) if share < 1 else jnp.ones(draws.shape, jnp.bool_)
