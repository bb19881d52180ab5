"""Whole words to predict, chosen on the device.

In: which tokens may be predicted, which begin a word, a random rank for each position. Out: the positions of
the chosen words' tokens. A row's choice is a function of its own values alone, and where every word is one
token it is the choice that token masking makes, to the bit.

Letters: b row, l position, p prediction slot.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int


def choose_words(
    eligible: Bool[Array, "b l"],
    word_starts: Int[Array, "b l"],
    ranks: Int[Array, "b l"],
    counts: Int[Array, "b"],
    num_slots: int,
) -> tuple[Int[Array, "b p"], Bool[Array, "b p"]]:
    """Choose whole words of each row, together at most ``counts`` tokens.

    Words are gone through in random order. One that has more tokens than are still wanted is passed over,
    and later ones are tried: so a row may have fewer predictions than were wanted, none where no word is
    short enough, and long words are chosen less often than short ones. Of a word, the eligible tokens count
    and are chosen, all of them; what is not eligible stays.

    Source: ``create_masked_lm_predictions`` with ``do_whole_word_mask`` in google-research/bert, which goes
    through a shuffled list. Here every round takes all words up to the first that is passed over; rounds go
    on while a word fits. That word is longer than all that can still be taken, so a row has no more rounds
    than words of different length, two to five as a rule, and rows do not wait for one another's words.

    Args:
        word_starts: not 0 where a word begins. Position 0 begins one in any case.
        ranks: not negative; a word has that of its first position, the highest comes first.
        counts: at most num_slots.

    Returns:
        positions, distinct, those of the first words first; and which slots are used, the first ones.
    """
    length = eligible.shape[1]
    places = jax.lax.broadcasted_iota(jnp.int32, eligible.shape, 1)
    rank, size, left = _describe_words(eligible, word_starts, ranks, places)
    # The complement puts high ranks first, and 0 is behind them all. Tokens of a word stay together, even
    # where another word has its rank, since equal keys stay in the order of their positions.
    key = jnp.where(eligible, ~rank, jnp.int32(0))
    key, places, size, left = jax.lax.sort((key, places, size, left), dimension=1, num_keys=1)
    is_open = key < 0

    def fitting(taken: Array, room: Array) -> Array:
        return is_open & ~taken & (size <= room[:, None])

    def take(state: tuple[Array, Array]) -> tuple[Array, Array]:
        taken, room = state
        words = fitting(taken, room)
        ends = jnp.cumsum(words, axis=1, dtype=jnp.int32) + left  # tokens up to the end of each one's word
        added = words & (ends <= room[:, None])
        return taken | added, room - jnp.sum(added, axis=1, dtype=jnp.int32)

    taken, room = jax.lax.while_loop(
        lambda state: jnp.any(fitting(*state)), take, (jnp.zeros_like(eligible), counts)
    )
    order = jax.lax.broadcasted_iota(jnp.int32, eligible.shape, 1)
    _, slots = jax.lax.top_k(jnp.where(taken, length - order, 0), num_slots)
    used = jax.lax.broadcasted_iota(jnp.int32, (1, num_slots), 1) < (counts - room)[:, None]
    return jnp.take_along_axis(places, slots, axis=1), used


def _describe_words(
    eligible: Array, word_starts: Array, ranks: Array, places: Array
) -> tuple[Array, Array, Array]:
    """Return for each position its word's rank, its word's eligible tokens, and how many of them follow."""
    starts = word_starts != 0  # position 0 begins a word whatever it says: the running maxima begin with 0
    own_start = jax.lax.cummax(jnp.where(starts, places, 0), axis=1)
    rank = jnp.take_along_axis(ranks, own_start, axis=1)
    up_to_here = jnp.cumsum(eligible, axis=1, dtype=jnp.int32)
    # Counts rise, so the nearest border on either side is the largest or the smallest there is.
    before_word = jax.lax.cummax(jnp.where(starts, up_to_here - eligible.astype(jnp.int32), 0), axis=1)
    is_last = jnp.concatenate((starts[:, 1:], jnp.ones_like(starts[:, :1])), axis=1)
    beyond = jnp.int32(eligible.shape[1] + 1)
    up_to_end = jax.lax.cummin(jnp.where(is_last, up_to_here, beyond), axis=1, reverse=True)
    return rank, up_to_end - before_word, up_to_end - up_to_here
