"""Masked language modelling: what is masked, with what, how evenly, and what the loss makes of it."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.models.config import ModelConfig, resolve_model
from outlast.models.params import Params, flatten, init_params
from outlast.models.randomness import row_keys
from outlast.objectives.config import MASKED, MlmConfig
from outlast.objectives.loss import LossOutput, LossTerm
from outlast.objectives.mlm import (
    MaskedBatch,
    cross_entropy,
    make_objective,
    mask_tokens,
    segment_ids,
)

PAD, UNK, CLS, SEP, MASK, VOCAB_SIZE, LENGTH = 1, 60, 0, 2, 211, 212, 64
SPECIAL_IDS = {"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK}
EXCLUDED = (CLS, PAD, SEP, UNK, MASK)
MODEL = resolve_model(
    ModelConfig(preset="tiny", hidden_size=32, num_heads=2, intermediate_size=64),
    vocab_size=VOCAB_SIZE,
    special_ids=SPECIAL_IDS,
    sequence_length=LENGTH,
)
OBJECTIVE = make_objective(MODEL, MlmConfig(), special_ids=SPECIAL_IDS)
PARAMS = init_params(OBJECTIVE.param_table, 0)


def examples(rows: int, seed: int = 0) -> NDArray[np.int32]:
    """Rows of CLS, ordinary and unknown tokens, SEP, then padding of varied length."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(3, 211, (rows, LENGTH)).astype(np.int32)
    ids[:, 0] = CLS
    for row in range(rows):
        end = int(rng.integers(LENGTH // 2, LENGTH))
        ids[row, end], ids[row, end + 1 :] = SEP, PAD
    return ids


def run(
    ids: NDArray[np.int32], step: int = 0, rows: Any = None, config: MlmConfig | None = None
) -> MaskedBatch:
    keys = row_keys(0, "train", step, jnp.arange(len(ids)) if rows is None else jnp.asarray(rows))
    return jax.jit(
        lambda ids, keys: mask_tokens(
            ids,
            (ids != PAD).astype(jnp.int8),
            keys,
            config=config or MlmConfig(),
            vocab_size=VOCAB_SIZE,
            mask_id=MASK,
            excluded_ids=tuple(sorted(EXCLUDED)),
        )
    )(jnp.asarray(ids), keys)


def outcomes(ids: NDArray[np.int32], masked: MaskedBatch) -> tuple[NDArray[Any], NDArray[Any]]:
    """The original and the new id of every prediction."""
    used = np.asarray(masked.weights) == 1
    new = np.take_along_axis(np.asarray(masked.input_ids), np.asarray(masked.positions), axis=1)
    old = np.take_along_axis(ids, np.asarray(masked.positions), axis=1)
    return old[used], new[used]


def test_only_ordinary_tokens_are_chosen_and_nothing_else_changes() -> None:
    ids = examples(200)
    masked = run(ids)
    old, _ = outcomes(ids, masked)
    assert not set(old.tolist()) & set(EXCLUDED)
    for row in range(len(ids)):
        chosen = np.asarray(masked.positions)[row][np.asarray(masked.weights)[row] == 1]
        assert len(set(chosen.tolist())) == len(chosen)
        others = np.setdiff1d(np.arange(LENGTH), chosen)
        np.testing.assert_array_equal(np.asarray(masked.input_ids)[row, others], ids[row, others])
    np.testing.assert_array_equal(
        masked.labels, np.take_along_axis(ids, np.asarray(masked.positions), axis=1)
    )


def test_the_attention_mask_decides_too() -> None:
    ids = jnp.full((1, 20), 7, jnp.int32)
    mask = jnp.array([[1] * 4 + [0] * 16])
    masked = OBJECTIVE.mask(ids, mask, row_keys(0, "train", 0, jnp.arange(1)))
    used = np.asarray(masked.positions)[np.asarray(masked.weights) == 1]
    assert used.size == 1
    assert used[0] < 4


def test_the_number_of_predictions_is_a_rounded_share_of_the_eligible() -> None:
    ids = examples(100)
    eligible = (~np.isin(ids, EXCLUDED)).sum(axis=1)
    expected = np.clip(np.round(0.15 * eligible), 1, 10)
    np.testing.assert_array_equal(np.asarray(run(ids).weights).sum(axis=1), expected)


@pytest.mark.parametrize(("ordinary", "expected"), [(0, 0), (1, 1), (3, 1), (10, 2), (64, 10)])
def test_short_rows_have_one_prediction_and_empty_ones_none(ordinary: int, expected: int) -> None:
    ids = np.full((1, LENGTH), PAD, np.int32)
    ids[0, :ordinary] = 9
    assert np.asarray(run(ids).weights).sum() == expected


def chi_square(observed: list[int], shares: list[float]) -> float:
    expected = np.array(shares) * sum(observed)
    return float(((np.array(observed) - expected) ** 2 / expected).sum())


CRITICAL_2 = 27.6
"""Chi-square with 2 degrees of freedom: exceeded by chance once in a million."""


def proportions() -> list[int]:
    ids = examples(3000)
    ids[np.isin(ids, [UNK])] = 10
    old, new = outcomes(ids, run(ids))
    return [int((new == MASK).sum()), int(((new != MASK) & (new != old)).sum()), int((new == old).sum())]


def test_80_10_10() -> None:
    observed = proportions()
    # A random id is the original one in 1 of 207 cases, and is then counted as kept.
    same = 1 / (VOCAB_SIZE - len(EXCLUDED))
    assert sum(observed) > 15_000
    assert chi_square(observed, [0.8, 0.1 * (1 - same), 0.1 + 0.1 * same]) < CRITICAL_2
    # What a common mistake makes of it (half of a tenth kept, the rest random) is told apart.
    assert chi_square(observed, [0.8, 0.02, 0.18]) > CRITICAL_2
    assert chi_square(observed, [0.8, 0.18, 0.02]) > CRITICAL_2


def test_shares_are_configurable() -> None:
    ids = examples(100)
    old, new = outcomes(ids, run(ids, config=MlmConfig(mask_share=1.0, random_share=0.0)))
    assert old.size
    assert (new == MASK).all()
    old, new = outcomes(ids, run(ids, config=MlmConfig(mask_share=0.0, random_share=0.0)))
    np.testing.assert_array_equal(new, old)
    _, new = outcomes(ids, run(ids, config=MlmConfig(mask_share=0.0, random_share=1.0)))
    assert MASK not in new


def test_random_ids_are_even_over_the_ordinary_ones() -> None:
    ids = np.full((4000, LENGTH), 9, np.int32)
    _, new = outcomes(ids, run(ids, config=MlmConfig(mask_share=0.0, random_share=1.0)))
    counts = np.bincount(new, minlength=VOCAB_SIZE)
    assert not counts[list(EXCLUDED)].any()
    ordinary = np.delete(counts, EXCLUDED)
    assert ordinary.min() > 0
    statistic = chi_square(ordinary.tolist(), [1 / len(ordinary)] * len(ordinary))
    freedom = len(ordinary) - 1
    assert abs(statistic - freedom) < 6 * np.sqrt(2 * freedom)


def test_positions_are_even_and_drawn_in_pairs_without_favour() -> None:
    ids = np.full((6000, 32), 9, np.int32)
    masked = run(ids)
    hits = np.zeros((6000, 32))
    np.put_along_axis(hits, np.asarray(masked.positions), np.asarray(masked.weights), axis=1)
    statistic = chi_square(hits.sum(0).astype(int).tolist(), [1 / 32] * 32)
    # Without replacement the counts vary less than independent ones: the upper bound is what counts.
    assert statistic < 31 + 6 * np.sqrt(2 * 31)
    together = hits.T @ hits
    pairs = together[np.triu_indices(32, 1)]
    assert abs(pairs.mean() - 6000 * 5 * 4 / (32 * 31)) < 1e-6
    assert np.abs(pairs - pairs.mean()).max() < 6 * np.sqrt(pairs.mean())


def assert_same(first: MaskedBatch, second: MaskedBatch, rows: Any = slice(None)) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[rows], other)


def test_masks_do_not_depend_on_the_batch_around_a_row() -> None:
    ids = examples(16)
    whole = run(ids)
    assert_same(whole, run(ids[4:8], rows=np.arange(4, 8)), slice(4, 8))
    order = np.random.default_rng(0).permutation(16)
    assert_same(whole, run(ids[order], rows=order), order)


def test_the_same_step_repeats_and_another_differs() -> None:
    ids = examples(16)
    assert_same(run(ids, step=3), run(ids, step=3))
    assert not np.array_equal(run(ids, step=3).input_ids, run(ids, step=4).input_ids)


def batch_of(ids: NDArray[np.int32]) -> dict[str, Array]:
    return {"input_ids": jnp.asarray(ids), "attention_mask": jnp.asarray(ids != PAD, jnp.int8)}


@partial(jax.jit, static_argnames="train")
def compiled_loss(params: Params, batch: dict[str, Array], keys: Array, *, train: bool) -> LossOutput:
    return OBJECTIVE.loss(params, {}, batch, row_keys=keys, train=train)


def loss(ids: NDArray[np.int32], rows: Any = None, *, train: bool = False, **extra: Array) -> LossTerm:
    keys = row_keys(0, "train", 0, jnp.arange(len(ids)) if rows is None else jnp.asarray(rows))
    output = compiled_loss(PARAMS, batch_of(ids) | extra, keys, train=train)
    assert (list(output.terms), output.model_state) == ([MASKED], {})
    return output.terms[MASKED]


def test_loss_of_fresh_parameters_is_that_of_guessing() -> None:
    out = loss(examples(16))
    assert float(out.loss_sum / out.weight_sum) == pytest.approx(np.log(VOCAB_SIZE), abs=0.1)
    assert 0 <= float(out.scores["accuracy"]) <= float(out.weight_sum)
    assert {out.loss_sum.dtype, out.weight_sum.dtype} == {jnp.dtype(jnp.float32)}


def test_microbatches_add_up_with_dropout_on() -> None:
    ids = examples(8)
    whole = loss(ids, train=True)
    parts = [
        loss(ids[start : start + 2], np.arange(start, start + 2), train=True) for start in range(0, 8, 2)
    ]
    np.testing.assert_allclose(sum(part.loss_sum for part in parts), whole.loss_sum, rtol=1e-5)
    assert sum(float(part.weight_sum) for part in parts) == float(whole.weight_sum)
    assert float(loss(ids, train=False).loss_sum) != pytest.approx(float(whole.loss_sum), rel=1e-5)


def test_loss_equals_the_indexed_reference() -> None:
    """Boolean indexing in NumPy, over the projection of all positions."""
    from outlast.models.bert import EncoderInputs, encode, predict_tokens
    from outlast.models.randomness import fold

    ids = examples(6)
    out = loss(ids)
    keys = row_keys(0, "train", 0, jnp.arange(6))
    masked = OBJECTIVE.mask(jnp.asarray(ids), jnp.asarray(ids != PAD), fold(keys, "masks"))
    inputs = EncoderInputs(masked.input_ids, jnp.asarray(ids != PAD, jnp.int8))
    logits = predict_tokens(PARAMS, encode(PARAMS, inputs, config=MODEL), config=MODEL)
    logits = np.asarray(logits, np.float64)
    chosen = np.zeros(ids.shape, np.bool_)
    for row in range(6):
        chosen[row, np.asarray(masked.positions)[row][np.asarray(masked.weights)[row] == 1]] = True
    picked, labels = logits[chosen], ids[chosen]
    log_probabilities = picked - np.log(np.exp(picked).sum(-1, keepdims=True))
    expected = -log_probabilities[np.arange(len(labels)), labels].sum()
    np.testing.assert_allclose(out.loss_sum, expected, rtol=1e-5)
    assert float(out.scores["accuracy"]) == (picked.argmax(-1) == labels).sum()


def test_a_batch_with_nothing_to_mask_gives_zero_and_finite_gradients() -> None:
    ids = np.full((2, LENGTH), PAD, np.int32)
    keys = row_keys(0, "train", 0, jnp.arange(2))

    @jax.jit
    def loss_sum(params: Params) -> tuple[Array, Array]:
        out = OBJECTIVE.loss(params, {}, batch_of(ids), row_keys=keys, train=True).terms[MASKED]
        return out.loss_sum, out.weight_sum

    (value, weight), gradients = jax.value_and_grad(loss_sum, has_aux=True)(PARAMS)
    assert (float(value), float(weight)) == (0.0, 0.0)
    assert all(not np.asarray(gradient).any() for gradient in flatten(gradients).values())


def test_example_weights_leave_rows_out() -> None:
    ids = examples(4)
    some = loss(ids, example_weights=jnp.array([1.0, 0.0, 1.0, 0.0]))
    first, third = loss(ids[:1], [0]), loss(ids[2:3], [2])
    np.testing.assert_allclose(some.loss_sum, first.loss_sum + third.loss_sum, rtol=1e-5)
    assert float(some.weight_sum) == float(first.weight_sum + third.weight_sum)


def test_bfloat16_loss_is_near_float32() -> None:
    half = dataclasses.replace(OBJECTIVE, compute_dtype=jnp.bfloat16)
    keys = row_keys(0, "train", 0, jnp.arange(8))
    wide, narrow = (
        objective.loss(PARAMS, {}, batch_of(examples(8)), row_keys=keys, train=True).terms[MASKED]
        for objective in (OBJECTIVE, half)
    )
    np.testing.assert_allclose(narrow.loss_sum, wide.loss_sum, rtol=5e-3)
    assert narrow.loss_sum.dtype == jnp.float32


def test_cross_entropy_of_huge_logits_is_exact() -> None:
    logits = jnp.array([[[1e4, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    value, right = cross_entropy(logits, jnp.array([[0, 2]]), jnp.ones((1, 2)))
    assert float(value) == pytest.approx(np.log(3))
    assert float(right) == 1  # of equal scores the lowest id is the answer


@pytest.mark.parametrize(
    ("special_ids", "message"),
    [({"pad": 0, "cls": 1}, "no mask id"), ({"pad": 0, "mask": 900}, "leave no token")],
)
def test_tokenizers_that_cannot_be_masked_are_refused(special_ids: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_objective(MODEL, MlmConfig(), special_ids=special_ids)


def test_documents_that_share_an_example_are_kept_apart() -> None:
    """Nothing of the second document changes what the model makes of the first."""
    model = resolve_model(
        ModelConfig(architecture="modernbert", preset="tiny", local_attention=8),
        vocab_size=VOCAB_SIZE,
        special_ids=SPECIAL_IDS,
        sequence_length=24,
    )
    sep = SPECIAL_IDS["sep"]
    rows = jax.random.randint(jax.random.key(0), (1, 24), 10, 59, dtype=jnp.int32)
    rows = rows.at[0, 11].set(sep).at[0, 23].set(sep)
    other = rows.at[0, 12:23].add(1)
    places = jnp.arange(2, 6, dtype=jnp.int32)[None]
    masked = {
        "masked_positions": places,
        "masked_ids": rows[:, 2:6],
        "masked_weights": jnp.ones((1, 4), jnp.float32),
    }
    plain = make_objective(model, MlmConfig(), special_ids=SPECIAL_IDS)
    params = init_params(plain.param_table, 0)

    def loss(ids: Array, *, apart: bool) -> float:
        objective = make_objective(model, MlmConfig(separate_documents=apart), special_ids=SPECIAL_IDS)
        keys = row_keys(0, "train", 0, jnp.arange(1))
        batch = {"input_ids": ids, **masked}
        return float(objective.loss(params, {}, batch, row_keys=keys, train=False).terms[MASKED].loss_sum)

    assert loss(rows, apart=True) == pytest.approx(loss(other, apart=True), abs=1e-6)
    assert abs(loss(rows, apart=False) - loss(other, apart=False)) > 1e-6
    assert segment_ids(rows, sep).tolist() == [[0] * 12 + [1] * 12]
    with pytest.raises(ConfigError, match="roberta model cannot keep documents apart"):
        make_objective(MODEL, MlmConfig(separate_documents=True), special_ids=SPECIAL_IDS)
