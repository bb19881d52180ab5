"""Random numbers for the data half: pure functions of integers, frozen by golden vectors.

The order of the data is part of a run's identity and must survive library upgrades, so it does not come from
a library's random stream (NumPy keeps none stable across versions, NEP 19) but from two fixed functions:
BLAKE2b turns names into a 64-bit key, and splitmix64's finaliser turns a key and a counter into 64 random
bits.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits: a bijection of uint64, so distinct inputs never tie.

    Source: Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators", figure 15, variant 13
        of Stafford; the increment by the golden gamma is included, so that 0 is not a fixed point.
    """
    x = x + _GOLDEN_GAMMA
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def derive_key(seed: int, *names: str | int) -> int:
    """Return the 64-bit key of a purpose under a seed.

    The names are joined by their length-prefixed UTF-8 text, so ("ab", "c") and ("a", "bc") differ.
    """
    digest = hashlib.blake2b(digest_size=8)
    for name in (seed, *names):
        text = f"{type(name).__name__}:{name}".encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return int.from_bytes(digest.digest(), "little")


def permutation(n: int, key: int) -> NDArray[np.int64]:
    """Return a permutation of ``range(n)``, int64 of shape (n,).

    The indices are sorted by ``mix64(key + index)``. mix64 is a bijection, so there are no ties and the
    result does not depend on the sort's algorithm.

    NumPy sorts numbers twice as fast as it sorts indices by numbers. So each index takes the place of its
    number's low bits, and the few whose high bits are equal are put right by the whole numbers. 30 to 60
    million indices a second on one core.
    """
    indices = np.arange(n, dtype=np.uint64)
    index_bits = np.uint64(n.bit_length())
    index_mask = (np.uint64(1) << index_bits) - np.uint64(1)
    packed = mix64(indices + np.uint64(key)) & ~index_mask | indices
    packed.sort()
    high = packed >> index_bits
    shuffled = (packed & index_mask).astype(np.int64)
    equal = np.flatnonzero(high[1:] == high[:-1])
    if len(equal):
        tied = np.union1d(equal, equal + 1)
        numbers = mix64(shuffled[tied].astype(np.uint64) + np.uint64(key))
        shuffled[tied] = shuffled[tied][np.argsort(numbers)]
    return shuffled


def uniform_bits(n: int, key: int) -> NDArray[np.uint64]:
    """Return n independent 64-bit numbers, uint64 of shape (n,)."""
    return mix64(np.arange(n, dtype=np.uint64) + np.uint64(key))


def bits_at(counters: NDArray[np.int64], key: int) -> NDArray[np.uint64]:
    """Return the 64-bit numbers of a stream at any places of it, uint64 of the counters' shape."""
    return mix64(counters.astype(np.uint64) + np.uint64(key))


def scale_bits(bits: NDArray[np.uint64], limits: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return floor(bits * limits / 2**64): a number from 0 to limits - 1 for each, int64.

    Exact in 64-bit arithmetic for limits below 2**32; no number is likelier than another by more than a
    2**-32nd part.
    """
    factors = limits.astype(np.uint64)
    half = np.uint64(32)
    low = (bits & np.uint64(2**32 - 1)) * factors >> half
    return (((bits >> half) * factors + low) >> half).astype(np.int64)
