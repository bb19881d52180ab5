"""Whole words are masked: which, how many, how evenly, and never a part of one."""

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.models.config import ModelConfig, resolve_model
from outlast.models.params import init_params
from outlast.models.randomness import row_keys
from outlast.objectives.config import MASKED, MlmConfig
from outlast.objectives.mlm import MaskedBatch, make_objective, mask_tokens
from outlast.objectives.whole_words import choose_words

PAD, CLS, SEP, MASK, UNK, VOCAB_SIZE = 0, 1, 2, 3, 4, 200
EXCLUDED = (PAD, CLS, SEP, MASK, UNK)
WHOLE = MlmConfig(whole_words=True)

Words = list[list[int]]
choose = jax.jit(choose_words, static_argnames="num_slots")


def words_of(starts: NDArray[Any], eligible: NDArray[Any]) -> Words:
    """The eligible positions of each word of a row, words without one left out."""
    words: Words = []
    for place, begins in enumerate(starts):
        if begins or not place:
            words.append([])
        if eligible[place]:
            words[-1].append(place)
    return words


def choose_in_order(words: Words, order: list[int], wanted: int) -> list[int]:
    """The rule of BERT's data preparation: pass over what is too long, stop when there is enough."""
    chosen: list[int] = []
    for number in order:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(words[number]) <= wanted:
            chosen += words[number]
    return chosen


@pytest.mark.parametrize(("length", "word_length"), [(64, 1.5), (64, 3), (40, 12), (256, 2)])
def test_the_choice_is_that_of_going_through_shuffled_words(length: int, word_length: float) -> None:
    rng = np.random.default_rng(length)
    rows, num_slots = 300, length // 4
    starts = rng.random((rows, length)) < 1 / word_length
    eligible = rng.random((rows, length)) < 0.95
    eligible[:3] = [[False], [True], [True]] * np.ones((3, length), np.bool_)
    starts[1], starts[2] = True, False  # all words of one token; one word, longer than all that is wanted
    ranks = rng.integers(0, 2**31, (rows, length)).astype(np.int32)
    ranks[3:20] %= 3  # many are equal
    counts = np.minimum(rng.integers(0, num_slots + 1, rows), eligible.sum(axis=1)).astype(np.int32)
    positions, used = choose(eligible, starts.astype(np.int32), ranks, counts, num_slots=num_slots)
    for row in range(rows):
        words = words_of(starts[row], eligible[row])
        first = np.flatnonzero(starts[row] | (np.arange(length) == 0))
        order = [
            number
            for number in np.argsort(-ranks[row, first].astype(np.int64), kind="stable").tolist()
            if words[number]
        ]
        expected = choose_in_order(words, order, int(counts[row]))
        found = np.asarray(positions)[row][np.asarray(used)[row]].tolist()
        assert found == expected
        assert len(set(np.asarray(positions)[row].tolist())) == num_slots, "slots point at distinct places"


def keys_of(rows: int, step: int = 0) -> Any:
    return row_keys(0, "train", step, jnp.arange(rows))


def mask(
    ids: NDArray[np.int32], starts: NDArray[Any], config: MlmConfig = WHOLE, step: int = 0
) -> MaskedBatch:
    return compiled_mask(
        jnp.asarray(ids), jnp.asarray(starts, jnp.int8), keys_of(len(ids), step), config=config
    )


@partial(jax.jit, static_argnames="config")
def compiled_mask(ids: Any, starts: Any, keys: Any, *, config: MlmConfig) -> MaskedBatch:
    return mask_tokens(
        ids,
        (ids != PAD).astype(jnp.int8),
        keys,
        config=config,
        vocab_size=VOCAB_SIZE,
        mask_id=MASK,
        excluded_ids=EXCLUDED,
        word_starts=starts,
    )


def examples(rows: int, length: int = 64, seed: int = 0) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Rows of [CLS], words of one to five tokens, [SEP] and padding; some tokens are unknown."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (rows, length)).astype(np.int32)
    starts = (rng.random((rows, length)) < 0.5).astype(np.int8)
    ids[rng.random((rows, length)) < 0.02] = UNK
    for row in range(rows):
        end = int(rng.integers(length // 2, length))
        ids[row, end], ids[row, end + 1 :] = SEP, PAD
        starts[row, end:] = 1
    ids[:, 0], starts[:, :2] = CLS, 1
    return ids, starts


def chosen_of(masked: MaskedBatch, length: int) -> NDArray[np.bool_]:
    chosen = np.zeros((len(masked.positions), length))
    np.put_along_axis(chosen, np.asarray(masked.positions), np.asarray(masked.weights), axis=1)
    return chosen == 1


def test_all_of_a_word_is_predicted_or_nothing_and_never_too_much() -> None:
    ids, starts = examples(400)
    masked = mask(ids, starts)
    chosen, eligible = chosen_of(masked, 64), ~np.isin(ids, EXCLUDED)
    assert not (chosen & ~eligible).any()
    for row in range(len(ids)):
        for word in words_of(starts[row], eligible[row]):
            assert chosen[row, word].all() or not chosen[row, word].any()
    wanted = np.clip(np.round(0.15 * eligible.sum(axis=1)), 1, WHOLE.num_predictions(64))
    assert (chosen.sum(axis=1) <= wanted).all()
    # With words of two tokens on average nearly always some word fits the last places.
    assert chosen.sum() > 0.98 * wanted.sum()
    untouched = np.where(chosen, ids, np.asarray(masked.input_ids))
    np.testing.assert_array_equal(untouched, ids)
    np.testing.assert_array_equal(
        masked.labels, np.take_along_axis(ids, np.asarray(masked.positions), axis=1)
    )


def test_words_of_one_token_are_masked_as_tokens_are() -> None:
    ids, _ = examples(100)
    for one, other in zip(
        mask(ids, np.ones_like(ids)), mask(ids, np.ones_like(ids), MlmConfig()), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_the_choice_is_the_rows_own() -> None:
    ids, starts = examples(32)
    whole = mask(ids, starts)
    part = compiled_mask(
        jnp.asarray(ids[7:9]),
        jnp.asarray(starts[7:9]),
        row_keys(0, "train", 0, jnp.arange(7, 9)),
        config=WHOLE,
    )
    for one, other in zip(whole, part, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[7:9], other)
    for one, other in zip(whole, mask(ids, starts), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(whole.input_ids, mask(ids, starts, step=1).input_ids)


def chi_square(observed: NDArray[Any], expected: NDArray[Any]) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


def even_words(rows: int, sizes: list[int]) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """The same row many times: words of these sizes, nothing else."""
    starts = np.concatenate([np.eye(1, size, dtype=np.int8)[0] for size in sizes])
    return np.full((rows, len(starts)), 9, np.int32), np.tile(starts, (rows, 1))


def exact_share_of_each(sizes: list[int], wanted: int, draws: int = 200_000) -> NDArray[Any]:
    """How often each word is chosen by the rule, from a simulation of its own."""
    rng = np.random.default_rng(1)
    hits = np.zeros(len(sizes))
    ends = np.cumsum(sizes)
    words = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    for _ in range(draws // 10):
        chosen = set(choose_in_order(words, rng.permutation(len(sizes)).tolist(), wanted))
        hits += [word[0] in chosen for word in words]
    return hits / (draws // 10)


def test_words_of_one_length_are_chosen_evenly_and_long_ones_by_the_rule() -> None:
    sizes = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 4, 8]  # 40 tokens, 6 of them wanted
    rows = 20_000
    ids, starts = even_words(rows, sizes)
    chosen = chosen_of(mask(ids, starts), len(ids[0]))
    first = (np.cumsum(sizes) - sizes).tolist()
    hits = chosen[:, first].sum(axis=0)
    assert hits[-1] == 0, "a word longer than all that is wanted is never chosen"
    for size in (1, 2, 3, 4):
        same = hits[[number for number, own in enumerate(sizes) if own == size]]
        assert chi_square(same, np.full(len(same), same.mean())) < 40
    expected = exact_share_of_each(sizes, 6)[:-1]
    error = np.sqrt(expected * (1 - expected) * (1 / rows + 1 / 20_000))
    assert (np.abs(hits[:-1] / rows - expected) < 5 * error).all()
    # What it is not: stopping at the first word that does not fit chooses fewer tokens.
    assert chosen.sum() / rows > 5.95


def fates(config: MlmConfig = WHOLE) -> tuple[NDArray[Any], Counter[tuple[bool, bool]]]:
    """How many chosen tokens became the mask, another, themselves; and the fates of pairs within words."""
    ids, starts = even_words(12_000, [2] * 32)
    masked = mask(ids, starts, config)
    chosen, new = chosen_of(masked, 64), np.asarray(masked.input_ids)
    is_mask, is_same = chosen & (new == MASK), chosen & (new == ids)
    counts = np.array([is_mask.sum(), (chosen & ~is_mask & ~is_same).sum(), is_same.sum()])
    words = is_mask.reshape(12_000, 32, 2)[chosen.reshape(12_000, 32, 2)[..., 0]]
    return counts, Counter(map(tuple, words.tolist()))


def test_each_token_of_a_word_draws_its_own_80_10_10() -> None:
    counts, pairs = fates()
    total, same = counts.sum(), 1 / (VOCAB_SIZE - len(EXCLUDED))
    assert total == 12_000 * 10
    critical = 27.6  # 2 degrees of freedom, once in a million

    def statistic(shares: list[float]) -> float:
        return chi_square(counts, np.array(shares) * total)

    assert statistic([0.8, 0.1 * (1 - same), 0.1 + 0.1 * same]) < critical
    assert statistic([0.8, 0.02, 0.18]) > critical
    assert statistic([0.8, 0.18, 0.02]) > critical
    observed = np.array([pairs[True, True], pairs[True, False] + pairs[False, True], pairs[False, False]])
    assert chi_square(observed, np.array([0.64, 0.32, 0.04]) * total / 2) < critical
    # One fate for the whole word would be this.
    assert chi_square(observed, np.array([0.799, 0.001, 0.2]) * total / 2) > critical


def test_the_training_step_takes_word_starts_and_says_where_they_lack() -> None:
    special = {"pad": PAD, "cls": CLS, "sep": SEP, "mask": MASK, "unk": UNK}
    model = resolve_model(
        ModelConfig(preset="tiny", hidden_size=32, num_heads=2, intermediate_size=64),
        vocab_size=VOCAB_SIZE,
        special_ids=special,
        sequence_length=64,
    )
    objective = make_objective(model, WHOLE, special_ids=special)
    ids, starts = examples(4)
    params = init_params(objective.param_table, 0)

    @jax.jit
    def loss(params: Any, batch: dict[str, Any]) -> Any:
        out = objective.loss(params, {}, batch, row_keys=keys_of(4), train=True)
        term = out.terms[MASKED]
        return term.loss_sum, term.weight_sum

    batch = {"input_ids": jnp.asarray(ids), "attention_mask": jnp.asarray(ids != PAD, jnp.int8)}
    marked = {**batch, "word_starts": jnp.asarray(starts)}
    (value, weight), gradients = jax.value_and_grad(loss, has_aux=True)(params, marked)
    assert float(value / weight) == pytest.approx(np.log(VOCAB_SIZE), abs=0.2)
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradients))
    with pytest.raises(ConfigError, match="do not tell where words begin"):
        loss(params, batch)
    static = {
        **batch,
        "masked_positions": jnp.ones((4, 2), jnp.int32),
        "masked_ids": jnp.ones((4, 2), jnp.int32),
        "masked_weights": jnp.ones((4, 2), jnp.float32),
    }
    with pytest.raises(ConfigError, match="cannot be masked anew"):
        loss(params, static)
