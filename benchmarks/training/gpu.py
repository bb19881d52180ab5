"""Training steps on one GPU in bfloat16: tokens per second, MFU and peak memory, ours beside transformers'.

A step is what ``step.py`` says: forward, backward, clipping and AdamW, from the same weights, on the same
batches, a quarter of the rows half padding. Contestants, as each is shipped:

    plain        ours, attention by XLA's products and softmax
    fused        ours, attention by our kernel (training.attention_kernel = "fused")
    sdpa         transformers on torch, scaled_dot_product_attention; BigBird has its own attention there
    flash        transformers on torch, flash_attention_2, where the package flash-attn is installed

transformers' parameters are float32 and its products bfloat16 by autocast, as its Trainer has it. All are
timed in turn, round after round; medians are printed, and the ratio of tokens per second to sdpa's. MFU
counts the products of forward and backward over real and padded positions, with the pairs that the pattern
of attention has, nothing that is computed again, over the peak of the device. Then each makes two steps in a
process of its own, and the peak of its memory on the GPU is printed.

First the kernel is to be checked on the device:

    JAX_PLATFORMS=cuda python -m pytest tests/models/test_fused.py
    python benchmarks/training/gpu.py --rounds 5

Without a GPU it runs on the CPU, where nothing is fused: of use with --preset tiny, to see that it runs.
"""

import argparse
import gc
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

# Before jax is imported: torch needs memory on the same GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import torch
from step import time_in_turn
from step_contestants import Contestant, Ours, Setting, Theirs, export_initial, make_setting
from step_formula import estimate_encoder

from outlast.models.attention.kernels import AttentionKernel
from outlast.models.config import ArchitectureName
from outlast.models.families import PresetName
from outlast.objectives.config import MlmConfig


class Shape(NamedTuple):
    architecture: ArchitectureName
    vocab_size: int
    length: int


SHAPES = {
    "bert-128": Shape("bert", 30522, 128),
    "bert-512": Shape("bert", 30522, 512),
    "bigbird-4096": Shape("bigbird", 50358, 4096),
    "modernbert-1024": Shape("modernbert", 50368, 1024),
    "modernbert-8192": Shape("modernbert", 50368, 8192),
}
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
"""Dense bfloat16, by NVIDIA's data sheets (SXM parts)."""
KERNELS: dict[str, AttentionKernel] = {"plain": "plain", "fused": "fused"}
LOSS_TOLERANCE = 0.03


def setting_of(shape: Shape, preset: PresetName, tokens: int, length: int | None) -> Setting:
    """Return what is trained: rows for about so many tokens, random blocks drawn as transformers does."""
    length = length or shape.length
    return make_setting(
        {"architecture": shape.architecture, "preset": preset},
        vocab_size=shape.vocab_size,
        rows=max(1, tokens // length),
        length=length,
        remat="selective",
        compute_dtype="bfloat16",
        torch_device="cuda" if torch.cuda.is_available() else "cpu",
    )


def make_contestant(name: str, setting: Setting, folder: Path) -> Contestant:
    if name in KERNELS:
        side: Contestant = Ours(setting.with_training(attention_kernel=KERNELS[name]), "gathered")
    else:
        attention = {"sdpa": "sdpa", "flash": "flash_attention_2"}[name]
        own = setting.encoder.architecture == "bigbird"
        side = Theirs(setting, "full", "eager" if own else attention, folder)
    side.name = name
    return side


def contestants_of(setting: Setting, wanted: list[str]) -> list[str]:
    """Return who takes part: flash attention where it is installed and the model has it."""
    has_flash = importlib.util.find_spec("flash_attn") is not None and setting.torch_device == "cuda"
    return [
        name
        for name in wanted
        if name != "flash" or (has_flash and setting.encoder.architecture != "bigbird")
    ]


def flops_per_step(setting: Setting) -> float:
    """Return the products of forward and backward; what a remat policy computes again is no work done."""
    estimate = estimate_encoder(
        setting.encoder,
        rows=setting.rows,
        length=setting.length,
        predictions=MlmConfig().num_predictions(setting.length),
        num_parameters=0,
        remat="none",
    )
    return estimate.flops


def peak_flops(given: float | None) -> float | None:
    """Return the peak of the device in FLOP/s; None where it is not known."""
    kind = jax.devices()[0].device_kind
    return given * 1e12 if given else next((peak for name, peak in PEAK_FLOPS.items() if name in kind), None)


def compare(setting: Setting, names: list[str], folder: Path, rounds: int, peak: float | None) -> None:
    """Time the contestants in turn and print a line for each."""
    sides = [make_contestant(name, setting, folder) for name in names]
    check_losses(sides)
    medians = {name: statistics.median(wall) for name, (wall, _) in time_in_turn(sides, rounds).items()}
    for name, seconds in medians.items():
        speed = setting.rows * setting.length / seconds
        mfu = "" if peak is None else f", MFU {flops_per_step(setting) / seconds / peak:.1%}"
        ratio = f", {medians['sdpa'] / seconds:.2f} of sdpa's" if "sdpa" in medians else ""
        print(f"{name:6s} {seconds:.4f} s, {speed:.0f} tokens/s{mfu}{ratio}", flush=True)


def check_losses(sides: list[Contestant]) -> None:
    """Stop where the first losses say that somebody does other work; dropout makes them differ a little."""
    losses: dict[str, float] = {}
    for side in sides:
        if isinstance(side, Theirs):
            side.prepare(0)
        losses[side.name] = side.advance(0)
    first = next(iter(losses.values()))
    print("first losses " + ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))
    if any(abs(loss / first - 1) > LOSS_TOLERANCE for loss in losses.values()):
        raise SystemExit("the contestants do not do the same work")


def run_alone(side: Contestant) -> None:
    """Make two steps and print the peak of the memory on the GPU."""
    for number in range(2):
        if isinstance(side, Theirs):
            side.prepare(number)
        side.advance(number)
    if isinstance(side, Theirs):
        peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    else:
        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    said = "not counted on this device" if peak is None else f"{peak / 2**30:.2f} GiB"
    print(f"{side.name:6s} peak memory {said}")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument(
        "--contestants",
        nargs="+",
        choices=["plain", "fused", "sdpa", "flash"],
        default=["plain", "fused", "sdpa", "flash"],
    )
    parser.add_argument("--preset", default="base")
    parser.add_argument("--tokens", type=int, default=32768, help="in a batch")
    parser.add_argument("--length", type=int, help="instead of each shape's own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-tflops", type=float, help="of the device in bfloat16, where it is not known")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    for name in arguments.shapes:
        setting = setting_of(SHAPES[name], arguments.preset, arguments.tokens, arguments.length)
        if arguments.alone:
            return run_alone(make_contestant(arguments.alone, setting, arguments.folder))
        device = jax.devices()[0].device_kind
        print(f"== {name} {arguments.preset}, {setting.rows} x {setting.length}, bfloat16, on {device}")
        names = contestants_of(setting, arguments.contestants)
        with tempfile.TemporaryDirectory() as temporary:
            folder = export_initial(setting, Path(temporary, "model"))
            compare(setting, names, folder, arguments.rounds, peak_flops(arguments.peak_tflops))
            gc.collect()
            for contestant in [] if arguments.no_memory else names:
                alone = ["--alone", contestant, "--folder", str(folder), "--shapes", name]
                command = [sys.executable, __file__, *sys.argv[1:], *alone]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                print(done.stdout.splitlines()[-1], flush=True)
    return None


if __name__ == "__main__":
    main()
