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
from outlast.models.attention import AttentionMask
from outlast.models.bert import EncoderInputs, Remat
from outlast.models.config import EncoderConfig
from outlast.models.params import Params, ParamTable
from outlast.models.randomness import RowKeys, fold, random_bits
from outlast.objectives.config import MlmConfig

NEVER_PREDICTED = ("pad", "cls", "sep", "mask", "unk")
"""Special ids that are neither predicted nor drawn as random replacements."""


class MaskedBatch(NamedTuple):
    """Examples with tokens hidden. Unused slots have weight 0, and point at some position all the same."""

    input_ids: Int[Array, "b l"]
    positions: Int[Array, "b p"]
    labels: Int[Array, "b p"]
    weights: Float[Array, "b p"]


class LossOutput(NamedTuple):
    """Sums over the batch, so that microbatches and uneven data add up exactly."""

    loss_sum: Float[Array, ""]
    weight_sum: Float[Array, ""]
    metrics: dict[str, Float[Array, ""]]
    """Further sums, to be divided by ``weight_sum``: ``correct``."""
    model_state: dict[str, Array]


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
    compute_dtype: DTypeLike
    remat: Remat

    @property
    def param_table(self) -> ParamTable:
        return ARCHITECTURES[self.model.architecture].param_table(self.model)

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
                each prediction counts.
            row_keys: one key per row; masks and dropout take different streams of it.
            train: with dropout.
        """
        architecture = ARCHITECTURES[self.model.architecture]
        attention_mask = batch.get("attention_mask")
        if "masked_positions" in batch:
            masked = given_masks(batch, self.config)
        else:
            with jax.named_scope("mask_tokens"):
                masked = self.mask(batch["input_ids"], attention_mask, fold(row_keys, "masks"))
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
        )
        chosen = jnp.take_along_axis(hidden, masked.positions[:, :, None], axis=1)
        logits = architecture.predict_tokens(params, chosen, config=self.model)
        weights = masked.weights
        if "example_weights" in batch:
            weights = weights * batch["example_weights"].astype(jnp.float32)[:, None]
        with jax.named_scope("loss"):
            loss_sum, correct = cross_entropy(logits, masked.labels, weights)
        return LossOutput(loss_sum, jnp.sum(weights), {"correct": correct}, model_state)

    def mask(
        self, input_ids: Int[Array, "b l"], attention_mask: AttentionMask | None, row_keys: RowKeys
    ) -> MaskedBatch:
        """Hide tokens of each row as the configuration says."""
        return mask_tokens(
            input_ids,
            attention_mask,
            row_keys,
            config=self.config,
            vocab_size=self.model.vocab_size,
            mask_id=self.mask_id,
            excluded_ids=self.excluded_ids,
        )


def make_objective(
    model: EncoderConfig,
    config: MlmConfig,
    *,
    special_ids: Mapping[str, int],
    compute_dtype: DTypeLike = jnp.float32,
    remat: Remat = "selective",
) -> MlmObjective:
    """Make the objective of a run.

    Args:
        special_ids: names and ids of the tokenizer manifest; ``mask`` and ``pad`` are needed.

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
    return MlmObjective(
        model=model,
        config=config,
        mask_id=special_ids["mask"],
        separator_id=special_ids["sep"] if config.separate_documents else None,
        excluded_ids=tuple(sorted(excluded)),
        compute_dtype=compute_dtype,
        remat=remat,
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
) -> MaskedBatch:
    """Choose tokens to predict and hide them.

    Per row, min(slots, max(1, round(mask_probability * eligible))) of the eligible tokens are drawn
    uniformly without replacement, none where nothing is eligible. Each is replaced by the mask
    (``mask_share``), by an id drawn uniformly from those not excluded (``random_share``), or stays. The
    original BERT code draws the random id from the whole vocabulary, special ids included; here they are
    left out.

    Args:
        attention_mask: positions with 0 are not eligible; None: all are real.
        excluded_ids: sorted ids that are not eligible and never drawn.
    """
    eligible = _not_in(input_ids, excluded_ids)
    if attention_mask is not None:
        eligible = eligible & attention_mask.astype(jnp.bool_)
    num_slots = config.num_predictions(input_ids.shape[1])
    positions, used = _choose(eligible, row_keys, config.mask_probability, num_slots)
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
        ConfigError: a recipe that asks for another number of predictions than the examples have.
    """
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

    A prediction is right where no other id scores higher than the label.
    """
    label_logits = jnp.take_along_axis(logits, labels[:, :, None], axis=2)[:, :, 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - label_logits
    right = (label_logits >= jnp.max(logits, axis=-1)).astype(jnp.float32)
    return jnp.sum(losses * weights), jnp.sum(right * weights)


def _choose(
    eligible: Array, row_keys: RowKeys, probability: float, num_slots: int
) -> tuple[Int[Array, "b p"], Array]:
    """Return distinct positions, those of the highest random rank first, and which slots are used."""
    ranks = (random_bits(fold(row_keys, "positions"), eligible.shape[1:]) >> jnp.uint32(1)).astype(jnp.int32)
    _, positions = jax.lax.top_k(jnp.where(eligible, ranks, jnp.int32(-1)), num_slots)
    num_eligible = jnp.sum(eligible, axis=1, dtype=jnp.int32)
    wanted = jnp.round(num_eligible.astype(jnp.float32) * probability).astype(jnp.int32)
    count = jnp.minimum(jnp.minimum(jnp.maximum(wanted, 1), num_slots), num_eligible)
    used = jax.lax.broadcasted_iota(jnp.int32, (1, num_slots), 1) < count[:, None]
    return positions, used


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
