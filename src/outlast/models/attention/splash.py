"""Attention on TPU by the splash kernel that comes with jax (``jax.experimental.pallas.ops.tpu``).

In: scaled queries, keys and values per head, what the rows are padded with, and the pattern. Out: the
weighted values; the scores are never written to memory. The kernel walks over tiles of 128 queries by 128
keys and leaves out those in which nobody looks at anybody. It needs lengths that are multiples of 128 (padded
inside), attends each key at most once, and has no dropout on the probabilities.

Rows, heads and layers of a BigBird have patterns of their own, and the layers are scanned, so its table of
tiles is computed from the random blocks while the step runs. A tile of 128 holds 2 x 2 blocks of 64, so 16
masks serve all tiles.

Letters: b row, l query position, m key position, h head, k size of a head, n block of keys, q block of
queries, t tile of queries, u tile of keys.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

TILE = 128


def fits_blocks(num_blocks: int, block_size: int) -> bool:
    """Return whether blocks make tiles: of 64 or 128 positions, and as many as fill whole tiles."""
    return block_size in (TILE // 2, TILE) and num_blocks * block_size % TILE == 0


def splash_attend(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b l h k"],
    value: Float[Array, "b l h k"],
    *,
    segments: Int[Array, "b l"],
    real: Bool[Array, "b l"],
    reach: int | None,
    interpret: bool = False,
) -> Float[Array, "b l h k"]:
    """Return the attention of every position to the real keys of its segment that are in its window.

    Args:
        reach: positions on either side that are seen; None: all.
        interpret: run the kernel's program on any device, slowly.
    """
    kernels, masks = _splash()
    length, num_heads = query.shape[1:3]
    padding = -length % TILE
    query, key, value = (jnp.pad(x, ((0, 0), (0, padding), (0, 0), (0, 0))) for x in (query, key, value))
    segments, real = (jnp.pad(x, ((0, 0), (0, padding))) for x in (segments, real))
    shape = (length + padding, length + padding)
    mask = masks.FullMask(shape) if reach is None else masks.LocalMask(shape, (reach, reach), 0)
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * num_heads), head_shards=1, q_seq_shards=1, interpret=interpret
    )
    return _over_rows(kernel, query, key, value, segments, jnp.where(real, segments, -1))[:, :length]


def splash_blocks(
    query: Float[Array, "b l h k"],
    key: Float[Array, "b m h k"],
    value: Float[Array, "b m h k"],
    *,
    real: Bool[Array, "b m"],
    seen: Bool[Array, "h q n"],
    widest: int,
    interpret: bool = False,
) -> Float[Array, "b l h k"]:
    """Return the attention of blocks of queries to the real keys of the blocks that each sees.

    Args:
        seen: which blocks of keys a block of queries sees, for each head; every block sees the last one.
        widest: at most so many tiles of keys hold what one tile of queries sees.
        interpret: run the kernel's program on any device, slowly.
    """
    kernels, _ = _splash()
    sizes = kernels.BlockSizes.get_default()
    per_tile = TILE * seen.shape[2] // key.shape[1]
    codes = _tile_codes(seen, per_tile)
    forward, backward = _by_query(codes, per_tile, widest), _by_key(codes, per_tile)
    kernel = kernels.SplashAttentionKernel(
        forward,
        forward,
        backward,
        block_sizes=sizes,
        is_mqa=False,
        save_residuals=False,
        mask_value=kernels.DEFAULT_MASK_VALUE,
        attn_logits_soft_cap=None,
        residual_checkpoint_name=None,
        mask_function=None,
        interpret=interpret,
    )
    of_query = jnp.zeros((query.shape[0], query.shape[1]), jnp.int32)
    return _over_rows(kernel, query, key, value, of_query, jnp.where(real, 0, -1).astype(jnp.int32))


def _splash() -> tuple[Any, Any]:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    return kernels, masks


def _over_rows(
    kernel: Any, query: Array, key: Array, value: Array, of_query: Array, of_key: Array
) -> Float[Array, "b l h k"]:
    """Run a kernel on each row. Queries and keys with the same number see each other."""
    kernels, _ = _splash()

    def row(query: Array, key: Array, value: Array, of_query: Array, of_key: Array) -> Array:
        return kernel(query, key, value, segment_ids=kernels.SegmentIds(q=of_query, kv=of_key))

    by_head = [jnp.moveaxis(x, 2, 1) for x in (query, key, value)]
    # The kernel relies on promotions that our tests refuse.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return jnp.moveaxis(jax.vmap(row)(by_head[0], by_head[1], by_head[2], of_query, of_key), 1, 2)


def _tile_codes(seen: Bool[Array, "h q n"], per_tile: int) -> Int[Array, "h t u"]:
    """Return which pairs of blocks of a tile see each other, as bits: 0 none, the highest code all."""
    h, q, n = seen.shape
    pairs = seen.astype(jnp.int32).reshape(h, q // per_tile, per_tile, n // per_tile, per_tile)
    bits = 2 ** np.arange(per_tile**2, dtype=np.int32).reshape(1, 1, per_tile, 1, per_tile)
    return jnp.sum(pairs * bits, axis=(2, 4), dtype=jnp.int32)


def _patterns(per_tile: int) -> NDArray[np.bool_]:
    """Return the mask of each code, (codes, 128, 128)."""
    num_codes = 2**per_tile**2
    codes, places = np.arange(num_codes)[:, None], np.arange(per_tile**2)[None, :]
    bits = (codes >> places & 1).reshape(num_codes, per_tile, per_tile).astype(np.bool_)
    return bits.repeat(TILE // per_tile, axis=1).repeat(TILE // per_tile, axis=2)


def _by_query(codes: Int[Array, "h t u"], per_tile: int, widest: int) -> Any:
    """Return what the kernel reads that goes from queries to keys: for each tile of queries its tiles of
    keys, those that are seen first. What follows them repeats the last one, so that nothing more is loaded.
    """
    last = codes.shape[2] - 1
    width = min(widest, last + 1)
    order = jnp.argsort(codes == 0, axis=2, stable=True)[:, :, :width]
    chosen = jnp.take_along_axis(codes, order, axis=2)
    return _mask_info(jnp.where(chosen == 0, last, order), chosen, per_tile, transposed=False)


def _by_key(codes: Int[Array, "h t u"], per_tile: int) -> Any:
    """Return the same for the gradients of keys and values: for each tile of keys the next tile of queries
    that sees it. The first and the last tile are seen by all, so no tile is left out of the table.
    """
    last = codes.shape[1] - 1
    place = jax.lax.broadcasted_iota(jnp.int32, codes.shape, 1)
    following = jax.lax.cummin(jnp.where(codes > 0, place, last), axis=1, reverse=True)
    return _mask_info(following, codes, per_tile, transposed=True)


def _mask_info(following: Array, codes: Array, per_tile: int, *, transposed: bool) -> Any:
    """Pack the tables as small as they go, for they lie in the few kilobytes of scalar memory."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as infos

    patterns = _patterns(per_tile)
    small = jnp.int8 if max(codes.shape[1:]) <= 128 else jnp.int16
    return infos.MaskInfo(
        data_next=following.astype(small),
        mask_next=codes.astype(jnp.int8),
        block_mask=jnp.where(codes == len(patterns) - 1, 2, jnp.minimum(codes, 1)).astype(jnp.int8),
        partial_mask_blocks=jnp.asarray(patterns.swapaxes(1, 2) if transposed else patterns),
        q_sequence=None,
    )
