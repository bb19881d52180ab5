"""A bit for each token: packed and read back, from any place on."""

import hypothesis
import hypothesis.strategies as st
import numpy as np

from outlast.shards.word_bits import WordBits, bits_at, count_ones, read_runs


@hypothesis.given(
    lengths=st.lists(st.sampled_from([0, 1, 3, 8, 90, 40_000]), max_size=6), seed=st.integers(0, 99)
)
def test_runs_of_any_length_are_packed_end_to_end(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = [rng.random(length) < 0.4 for length in lengths]
    bits, packed = WordBits(), b""
    for run in runs:
        bits.add(run)
        packed += bits.take()
    packed += bits.finish()
    expected = np.concatenate([np.zeros(0, np.bool_), *runs])
    array = np.frombuffer(packed, np.uint8)
    assert len(array) == -(-len(expected) // 8)
    np.testing.assert_array_equal(np.unpackbits(array, count=len(expected), bitorder="little"), expected)
    assert bits.num_ones == count_ones(array) == expected.sum()


@hypothesis.given(
    num_bits=st.integers(1, 200),
    length=st.integers(1, 70),
    origins=st.lists(st.integers(-80, 220), min_size=1, max_size=9),
)
def test_runs_are_read_from_any_place_on(num_bits: int, length: int, origins: list[int]) -> None:
    bits = np.random.default_rng(num_bits).random(num_bits) < 0.5
    packed = np.packbits(bits, bitorder="little")
    found = read_runs(np.tile(packed, (len(origins), 1)), np.array(origins), length)
    assert found.shape == (len(origins), length)
    for row, origin in zip(found, origins, strict=True):
        places = origin + np.arange(length)
        inside = (places >= 0) & (places < num_bits)
        np.testing.assert_array_equal(row[inside], bits[places[inside]])
    np.testing.assert_array_equal(bits_at(packed, np.arange(num_bits)), bits)
