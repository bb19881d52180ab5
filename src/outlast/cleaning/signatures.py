"""What documents are compared by: a hash of the text, a MinHash signature, hashes of the lines.

In: cleaned text. Out: arrays of fixed width. Equal text gives equal values on every machine.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.cleaning.config import CleaningConfig
from outlast.cleaning.measures import window_hashes
from outlast.errors import ConfigError
from outlast.prng import mix64

NUM_PERMUTATIONS = 128
_SEED = 1
_WANTED_RECALL = 0.95


def text_hash(text: str) -> bytes:
    """Return a hash of 16 bytes; outer white space does not count."""
    return hashlib.blake2b(text.strip().encode(), digest_size=16).digest()


def line_hashes(text: str, min_characters: int) -> tuple[NDArray[np.intp], bytes]:
    """Return the numbers of the lines that are long enough to be compared, and 16 bytes for each.

    Outer white space does not count, neither for the length nor for the hash.
    """
    lines = [line.strip() for line in text.split("\n")]
    chosen = [number for number, line in enumerate(lines) if len(line) >= min_characters]
    return np.array(chosen, np.intp), b"".join(text_hash(lines[number]) for number in chosen)


def num_bands(similarity: float) -> tuple[int, int]:
    """Return how many bands a signature is cut into, and of how many values each.

    Documents are compared if a band of theirs is equal. Of all bands of r values, the longest are taken with
    which two documents of this similarity s meet with probability 1 - (1 - s^r)^b of at least 0.95 (Leskovec,
    Rajaraman, Ullman, "Mining of massive datasets", section 3.4).
    """
    fitting = [
        rows
        for rows in range(1, NUM_PERMUTATIONS + 1)
        if 1 - (1 - similarity**rows) ** (NUM_PERMUTATIONS // rows) >= _WANTED_RECALL
    ]
    rows = max(fitting)
    return NUM_PERMUTATIONS // rows, rows


class Signatures:
    """Makes MinHash signatures.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(self, config: CleaningConfig) -> None:
        self.bands, self.rows = num_bands(config.near_duplicate_similarity)
        try:
            from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]
        except ImportError:
            raise ConfigError(
                "Near duplicates cannot be found: rensa is not installed.",
                where="cleaning.duplicates",
                remedy='pip install "outlast[dedup]"',
            ) from None
        self._library: Any = RMinHash

    def sign(self, texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
        """Return the hash of each band, uint64 of shape (texts, bands), and the low byte of each value of the
        signature, uint8 of shape (texts, 128).

        Letter case and white space do not count.
        """
        windows = [window_hashes("".join(text.lower().split()).encode()) for text in texts]
        offsets = np.cumsum([0, *map(len, windows)]).astype(np.uint64)
        matrix = self._library.digest_matrix_from_flat_token_hashes(
            mix64(np.concatenate(windows)), offsets, NUM_PERMUTATIONS, _SEED
        )
        values = np.array(matrix.to_rows(), np.uint64).reshape(len(texts), NUM_PERMUTATIONS)
        return self._hash_bands(values), (values & np.uint64(0xFF)).astype(np.uint8)

    def _hash_bands(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        used = values[:, : self.bands * self.rows].reshape(len(values), self.bands, self.rows)
        hashes = np.broadcast_to(mix64(np.arange(self.bands, dtype=np.uint64)), used.shape[:2])
        for row in range(self.rows):
            hashes = mix64(hashes ^ used[:, :, row])
        return hashes


def estimate_similarity(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the estimated Jaccard similarity of signatures, both uint8 of shape (pairs, 128).

    Low bytes of different values agree once in 256, which is taken off (Li and König 2010, "b-bit minwise
    hashing"). The standard error is sqrt(J (1 - J) / 128), 0.035 at J = 0.8.
    """
    agreeing = (one == other).mean(axis=1)
    return (agreeing - 1 / 256) / (1 - 1 / 256)
