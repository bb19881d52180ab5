"""Which blocks of keys BigBird's query blocks attend to at random: static tables, made before anything runs.

In: the shape of the attention and how its random blocks are chosen. Out: int32 tables of block numbers,
(num_layers, num_heads, num_blocks - 2, num_random_blocks); the first and the last query block attend to
everything and have no row. Invariant: a table is a pure function of its arguments, so it is the same in every
attempt, in training, evaluation and in the exported model.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from outlast.errors import ConfigError
from outlast.prng import derive_key, uniform_bits

RandomBlocks = Literal["uniform", "transformers"]
EvaluationRandomBlocks = Literal["same", "first_block"]
DEFAULT_RANDOM_BLOCKS: RandomBlocks = "transformers"
DEFAULT_EVALUATION_RANDOM_BLOCKS: EvaluationRandomBlocks = "first_block"
"""The pair that transformers computes, so that a model is there what it is here."""
Table = NDArray[np.int32]

GLOBAL_AND_WINDOW = 5
"""Key blocks of a middle query block beside the random ones."""

_PLANNED_TOKENS = 1024
_PLANNED_LENGTHS = (1024, 3072, 4096)
_OTHER_BLOCKS = 'set model.random_blocks to "uniform"'


@dataclass(frozen=True, kw_only=True)
class BlockSparse:
    """BigBird's pattern of attention (Zaheer et al., 2020); the keys of ``ModelConfig`` of the same names."""

    block_size: int
    num_random_blocks: int
    random_block_seed: int
    random_blocks: RandomBlocks
    evaluation_random_blocks: EvaluationRandomBlocks
    simulated: bool
    """By the dense formula."""


def is_sparse(length: int, *, block_size: int, num_random_blocks: int) -> bool:
    """Return whether a sequence is long enough for sparse attention; a shorter one is attended to in full."""
    return length > longest_in_full(block_size=block_size, num_random_blocks=num_random_blocks)


def longest_in_full(*, block_size: int, num_random_blocks: int) -> int:
    """Return the tokens of the longest sequence that is attended to in full.

    The border, 2r + 5 blocks, is the original's: below it the blocks would cover nearly all pairs.
    """
    return (2 * num_random_blocks + GLOBAL_AND_WINDOW) * block_size


def random_block_table(
    sparse: BlockSparse, *, num_layers: int, num_heads: int, num_blocks: int, max_positions: int
) -> Table:
    """Return the random key blocks of every layer, head and middle query block.

    ``uniform``: each row draws without replacement from all blocks that its window and the two global blocks
    leave, by (random_block_seed, layer, head, num_blocks). Zaheer et al. (2020), section 2.

    ``transformers``: what ``BigBirdBlockSparseAttention`` of transformers 5.23 draws in training. Its rows
    reach the first 1,024 tokens only (lengths 1,024, 3,072 and 4,096), or the first 2r + 5 blocks.

    Args:
        max_positions: of the model; the library draws its table for that length and cuts it.

    Raises:
        ConfigError: sizes that the library's plan has no table for.
    """
    if sparse.random_blocks == "transformers":
        tables = [
            _library_table(sparse, layer, num_heads, num_blocks, max_positions) for layer in range(num_layers)
        ]
        return np.stack(tables)
    return np.stack(
        [
            np.stack([_uniform_rows(sparse, layer, head, num_blocks) for head in range(num_heads)])
            for layer in range(num_layers)
        ]
    )


def check_random_blocks(sparse: BlockSparse, *, num_blocks: int, max_positions: int) -> None:
    """Check that there is a table for sequences of so many blocks. Raises ConfigError."""
    if sparse.random_blocks == "transformers":
        _library_table(sparse, 0, 1, num_blocks, max_positions)  # what is drawn does not matter


def first_block_table(shape: tuple[int, ...]) -> Table:
    """Return the table of the library's evaluation: block 0 in every slot, so that it counts 1 + r times."""
    return np.zeros(shape, np.int32)


def none_twice(table: Table) -> bool:
    """Return whether no query block has a key block twice among its global, window and random ones."""
    num_blocks = table.shape[2] + 2
    rows = np.arange(1, num_blocks - 1)[None, None, :, None]
    fixed = (abs(table - rows) <= 1) | (table == 0) | (table == num_blocks - 1)
    return not fixed.any() and bool((np.diff(np.sort(table, axis=3), axis=3) > 0).all())


def _uniform_rows(sparse: BlockSparse, layer: int, head: int, num_blocks: int) -> Table:
    key = derive_key(sparse.random_block_seed, "random blocks", layer, head, num_blocks)
    # Half of the range, so that what is taken stands above everything that may be drawn.
    drawn = uniform_bits(num_blocks * num_blocks, key).reshape(num_blocks, num_blocks) >> np.uint64(1)
    query, key_block = np.indices((num_blocks, num_blocks))
    taken = (abs(query - key_block) <= 1) | (key_block == 0) | (key_block == num_blocks - 1)
    drawn[taken] = np.uint64(2**64 - 1)
    chosen = np.argsort(drawn, axis=1)[1:-1, : sparse.num_random_blocks]
    return np.sort(chosen, axis=1).astype(np.int32)


def _library_table(
    sparse: BlockSparse, layer: int, num_heads: int, num_blocks: int, max_positions: int
) -> Table:
    rng = np.random.RandomState(layer)  # the library seeds NumPy's legacy generator with the layer's number
    length = num_blocks * sparse.block_size
    if length not in _PLANNED_LENGTHS:
        return _first_blocks_rows(rng, sparse, num_heads, num_blocks)
    whole = max_positions // sparse.block_size
    beyond = 2 * sparse.block_size >= _PLANNED_TOKENS and whole > num_blocks + 1
    if whole < num_blocks or beyond:
        raise ConfigError(
            f"transformers' random blocks of a model of {max_positions} positions do not fit {num_blocks} "
            f"blocks of {sparse.block_size} tokens.",
            where="[model] random_blocks",
            remedy=f"{_OTHER_BLOCKS}, or model.max_positions to {length}",
        )
    try:
        rows = [_first_tokens_rows(rng, sparse, whole)[: num_blocks - 2] for _ in range(num_heads)]
    except ValueError:
        raise ConfigError(
            f"There are not {sparse.num_random_blocks} random blocks of {sparse.block_size} tokens among the "
            f"first 1,024 of {length} tokens, from which transformers draws them.",
            where="[model] random_blocks",
            remedy=f"{_OTHER_BLOCKS}, or model.block_size to less",
        ) from None
    return np.stack(rows)


def _first_tokens_rows(rng: np.random.RandomState, sparse: BlockSparse, num_blocks: int) -> Table:
    """Draw one head's rows among the blocks of the first 1,024 tokens, with the library's borders.

    Raises:
        ValueError: a row that too few blocks are left for. As in the library, which also assigns to the rows
            of an array, a single one stands in all places of its row.
    """
    middle = np.arange(1, num_blocks - 1, dtype=np.int32)
    last = num_blocks - 1
    if 2 * sparse.block_size < _PLANNED_TOKENS:
        last = _PLANNED_TOKENS // sparse.block_size - 1
    rows = np.zeros((num_blocks - 2, sparse.num_random_blocks), np.int32)
    for block in range(1, num_blocks - 1):
        before, after = block - 2, block + 1
        if block <= 2:
            legal = middle[block + 1 : last]
        elif block >= num_blocks - 3 or before > last:
            legal = middle[:last]
        elif after == last:
            legal = middle[:before]
        else:
            legal = np.concatenate((middle[:before], middle[after:last]))
        rows[block - 1] = rng.permutation(legal)[: sparse.num_random_blocks]
    return rows


def _first_blocks_rows(
    rng: np.random.RandomState, sparse: BlockSparse, num_heads: int, num_blocks: int
) -> Table:
    """Draw all heads' rows among the first 2r + 5 blocks, row by row, in the library's order."""
    reach = 2 * sparse.num_random_blocks + 5
    candidates = np.arange(reach, dtype=np.int32)
    table = np.zeros((num_heads, num_blocks, sparse.num_random_blocks), np.int32)
    for block in range(1, num_blocks):
        illegal = {block - 1, block, block + 1, 0, reach - 1}
        if block == 1:
            illegal.add(reach - 2)
        if block == reach - 2:
            illegal.add(1)
        for head in range(num_heads):
            legal = [drawn for drawn in rng.permutation(candidates).tolist() if drawn not in illegal]
            table[head, block] = legal[: sparse.num_random_blocks]
    return table[:, 1:-1]
