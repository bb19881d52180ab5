"""BigBird's attention alone, as it grows with the length: ours, dense attention, and that of transformers.

One row, 12 heads of 64, blocks of 64, 3 random blocks, float32, forward and backward. Ours and the library's
get the same random blocks; first their outputs are compared (1e-5). Then all of them at all lengths are timed
in turn, round after round, so that what else the machine does falls on each alike. A contestant leaves out
the lengths above its limit: the library's keeps a tensor of length x length for every head.

    python benchmarks/training/attention.py --rounds 5

What --in-a-row is for, ``step.py`` says. With --step it is a whole training step of a BigBird of --num-layers
layers instead, with block-sparse and with full attention, and what the compiler sets aside for each.

    python benchmarks/training/attention.py --step --num-layers 2 --rounds 3
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from step_contestants import Ours, make_setting
from transformers import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

from outlast.models.attention.block_sparse import block_sparse_attend
from outlast.models.attention.full import attend
from outlast.models.attention.random_blocks import BlockSparse, random_block_table
from outlast.models.families import AttentionName

HEADS, SIZE, BLOCK, RANDOM = 12, 64, 64, 3
TOLERANCE = 1e-5
Run = Callable[[], Any]


def projected(length: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(1, length, HEADS, SIZE)).astype(np.float32) for _ in range(3)]


def ours(length: int, *, dense: bool) -> tuple[Run, Array]:
    """Return what runs forward and backward, and the output."""
    sparse = BlockSparse(
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        random_block_seed=0,
        random_blocks="transformers",
        evaluation_random_blocks="same",
        simulated=False,
    )
    table = random_block_table(
        sparse, num_layers=1, num_heads=HEADS, num_blocks=length // BLOCK, max_positions=max(length, 4096)
    )[0]

    def run(*arrays: Array) -> Array:
        if dense:
            return attend(*arrays, attention_mask=None)
        blocks = jnp.asarray(table)
        return block_sparse_attend(*arrays, attention_mask=None, random_blocks=blocks, block_size=BLOCK)

    def loss(*arrays: Array) -> Array:
        return jnp.sum(run(*arrays) ** 2)

    arrays = [jnp.asarray(x) for x in projected(length)]
    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    return lambda: jax.block_until_ready(gradient(*arrays)), jax.jit(run)(*arrays)


def library(length: int) -> tuple[Run, torch.Tensor]:
    """Return the same for ``BigBirdBlockSparseAttention`` in training, from projected heads on."""
    config = BigBirdConfig(hidden_size=HEADS * SIZE, num_attention_heads=HEADS, num_random_blocks=RANDOM)
    config.block_size, config.max_position_embeddings = BLOCK, max(length, 4096)
    module: Any = BigBirdBlockSparseAttention(config, seed=0).train()
    masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, length), BLOCK)
    blocked, band, from_mask, to_mask = masks
    arrays = [torch.tensor(x).transpose(1, 2).contiguous().requires_grad_() for x in projected(length)]

    def forward() -> torch.Tensor:
        sizes: tuple[Any, ...] = (HEADS, RANDOM, SIZE, BLOCK, BLOCK, 1, length, length)
        context, _ = module.bigbird_block_sparse_attention(
            *arrays,
            band,
            from_mask,
            to_mask,
            blocked,
            blocked,
            *sizes,
            seed=0,
            plan_from_length=None,
            plan_num_rand_blocks=None,
        )
        return context

    def run() -> None:
        for array in arrays:
            array.grad = None
        (forward() ** 2).sum().backward()

    return run, forward().detach()


def attention_runs(length: int, limits: dict[str, int]) -> dict[str, Run]:
    """Return what is timed at a length, after comparing ours with the library's."""
    runs: dict[str, Run] = {}
    runs["ours"], mixed = ours(length, dense=False)
    if length <= limits["library"]:
        runs["library"], context = library(length)
        apart = float(np.max(np.abs(np.asarray(mixed) - context.numpy().reshape(mixed.shape))))
        if apart > TOLERANCE:
            raise SystemExit(f"at {length} tokens ours and the library's differ by {apart:.1e}")
    if length <= limits["dense"]:
        runs["dense"], _ = ours(length, dense=True)
    return runs


def step_runs(length: int, limits: dict[str, int], num_layers: int) -> dict[str, Run]:
    """Return whole training steps, after printing what the compiler sets aside for them."""
    runs: dict[str, Run] = {}
    kinds: tuple[tuple[str, AttentionName], ...] = (("ours", "block_sparse"), ("dense", "full"))
    for name, attention in kinds:
        if length > limits[name]:
            continue
        model = {
            "architecture": "bigbird",
            "attention": attention,
            "num_layers": num_layers,
            "max_positions": length,
            "random_blocks": "uniform",  # with which the published figures were made
        }
        setting = make_setting(model, vocab_size=8000, rows=1, length=length, remat="selective")
        side = Ours(setting, "gathered")
        print(f"{length:6d} {name:8s} temporaries {side.temporary_bytes() / 2**20:.0f} MiB", flush=True)
        runs[name] = lambda side=side: side.advance(0)
    return runs


def time_in_turn(
    runs: dict[tuple[int, str], Run], rounds: int, in_a_row: int
) -> dict[tuple[int, str], float]:
    """Return the median seconds of each; the first round does not count, and of those in a row the last."""
    times: dict[tuple[int, str], list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            for _ in range(in_a_row - 1):
                run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def report(medians: dict[tuple[int, str], float], lengths: list[int]) -> None:
    """Print a line for each length: seconds, ratios, and the power of the length that ours grows with."""
    for place, length in enumerate(lengths):
        found = {name: seconds for (of, name), seconds in medians.items() if of == length}
        line = f"{length:6d} " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in found.items())
        for other in found.keys() - {"ours"}:
            line += f", ours / {other} {found['ours'] / found[other]:.3f}"
        if place:
            before = lengths[place - 1]
            power = math.log(found["ours"] / medians[before, "ours"]) / math.log(length / before)
            line += (
                f", ours / ours at {before} {found['ours'] / medians[before, 'ours']:.2f} (power {power:.2f})"
            )
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--in-a-row",
        type=int,
        choices=range(1, 10),
        default=1,
        help="runs of each in its turn; the last counts",
    )
    parser.add_argument("--step", action="store_true", help="whole training steps")
    parser.add_argument("--num-layers", type=int, default=2, help="of the steps")
    parser.add_argument("--library-limit", type=int, default=8192, help="longest that the library computes")
    parser.add_argument("--dense-limit", type=int, default=8192, help="longest by dense attention")
    arguments = parser.parse_args()
    limits = {"ours": max(arguments.lengths), "library": arguments.library_limit}
    limits["dense"] = arguments.dense_limit
    runs: dict[tuple[int, str], Run] = {}
    for length in arguments.lengths:
        if arguments.step:
            made = step_runs(length, limits, arguments.num_layers)
        else:
            made = attention_runs(length, limits)
        runs |= {(length, name): run for name, run in made.items()}
    report(time_in_turn(runs, arguments.rounds, arguments.in_a_row), arguments.lengths)


if __name__ == "__main__":
    main()
