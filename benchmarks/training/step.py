r"""Seconds per training step beside transformers on PyTorch: the same work, interleaved in one run.

A step is forward, backward, clipping by the global norm and AdamW, in float32, with every core. Each side
starts from the same weights (through our export) and gets the same batches, masks and optimizer settings; a
quarter of the rows ends in padding. transformers' masked-LM classes project every position onto the
vocabulary, we only the positions that are predicted, so there are four contestants:

    ours, gathered        as training runs: logits at the predicted positions
    ours, full            logits at every position, as transformers computes them
    theirs, full          transformers as it is
    theirs, gathered      transformers' encoder and head, with our gathering between the two

Theirs use the faster of eager and sdpa attention and torch's fused AdamW, the fastest it has on CPU (the one
transformers' Trainer takes). First, with dropout 0, all of them make three steps: losses must agree to 1e-5
relative, and the weights' changes to 1e-2 (relative norm of the difference). Then all are timed in turn,
round after round, with dropout on (where the architecture has it); the medians and their ratios are printed.
A step that follows another contestant's pays for memory which that one has given back to the system, on some
machines two seconds of it. In a training a step follows its like, so --in-a-row 3 makes three steps of each
and times the last.
With --memory each makes two steps in a process of its own, and the peak of its resident memory is printed
(Linux only), and how far that is above what stood before the model was made: the libraries, the same for all.

    python benchmarks/training/step.py --architecture bert --rows 8 --length 128 --rounds 7
    python benchmarks/training/step.py --architecture roberta --rows 2 --length 512 --vocab-size 50265
    python benchmarks/training/step.py --architecture bigbird --rows 1 --length 4096 \
        --vocab-size 50358 --rounds 3
    python benchmarks/training/step.py --architecture modernbert --rows 1 --length 1024 --vocab-size 50368

With --policies ours alone is compared, under several remat policies:

    python benchmarks/training/step.py --policies none selective layer --rounds 7
"""

import argparse
import gc
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from step_contestants import Arrays, Contestant, Head, Ours, Setting, Theirs, export_initial, make_setting

from outlast.training.config import TrainingConfig

LOSS_TOLERANCE, CHANGE_TOLERANCE = 1e-5, 1e-2


def contestants(
    setting: Setting, pairs: list[tuple[type[Ours] | type[Theirs], Head]], attention: str, folder: Path
) -> list[Callable[[], Contestant]]:
    """Return what makes each contestant: one by one, for they are large."""
    return [
        partial(Ours, setting, head) if side is Ours else partial(Theirs, setting, head, attention, folder)
        for side, head in pairs
    ]


def check_same_work(make: list[Callable[[], Contestant]], num_steps: int = 3) -> None:
    """Let each contestant make a few steps; stop where losses or updated weights differ from the first's."""
    reference: tuple[list[float], Arrays, Arrays] | None = None
    for build in make:
        side = build()
        start = side.weights()
        losses = [_advance(side, number) for number in range(num_steps)]
        end = side.weights()
        if reference is None:
            reference = (losses, start, end)
        expected, first, last = reference
        loss = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
        names = [name for name in last if name in end]
        change = math.sqrt(sum(float(np.sum((last[n] - first[n]) ** 2)) for n in names))
        apart = math.sqrt(sum(float(np.sum((end[n] - last[n]) ** 2)) for n in names))
        print(
            f"check  {side.name:18s} {len(names)} tensors, "
            f"losses apart {loss:.1e}, updates {apart / change:.1e}"
        )
        if loss > LOSS_TOLERANCE or apart > CHANGE_TOLERANCE * change:
            raise SystemExit(f"{side.name} does other work")
        del side
        gc.collect()


def time_in_turn(
    sides: list[Contestant], rounds: int, warmup: int = 2, in_a_row: int = 1
) -> dict[str, tuple[list[float], list[float]]]:
    """Return wall and CPU seconds per step of each contestant; the first steps of each do not count.

    Args:
        in_a_row: steps of one contestant before it is the next one's turn; the last of them counts.
    """
    times: dict[str, tuple[list[float], list[float]]] = {side.name: ([], []) for side in sides}
    for number in range(rounds + warmup):
        for side in sides:
            if isinstance(side, Theirs):
                side.prepare(number)
            wall = cpu = 0.0
            for _ in range(in_a_row):
                wall, cpu = time.perf_counter(), time.process_time()
                side.advance(number)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            times[side.name][0].append(wall)
            times[side.name][1].append(cpu)
        print(f"round {number}: " + ", ".join(f"{n} {w[-1]:.3f}" for n, (w, _) in times.items()), flush=True)
    return {name: (wall[warmup:], cpu[warmup:]) for name, (wall, cpu) in times.items()}


def compare_policies(setting: Setting, arguments: argparse.Namespace) -> None:
    """Time our own step under each remat policy, in turn, and print the temporaries the compiler counts."""
    sides: list[Ours] = []
    for remat in arguments.policies:
        sides.append(Ours(setting.with_training(remat=remat), "gathered"))
        sides[-1].name = remat
        print(f"{remat:18s} temporaries {sides[-1].temporary_bytes() / 2**30:.2f} GiB", flush=True)
    if not arguments.rounds:
        return
    times = time_in_turn([*sides], arguments.rounds, arguments.warmup, arguments.in_a_row)
    report(times)
    first = arguments.policies[0]
    for remat in arguments.policies[1:]:
        # Of neighbours in time, so that other work on the machine falls on both.
        for kind, what in enumerate(("time", "CPU time")):
            ratios = [one / other for one, other in zip(times[remat][kind], times[first][kind], strict=True)]
            print(
                f"ratio  {remat} / {first}, {what}: median {statistics.median(ratios):.3f} "
                f"({min(ratios):.3f} to {max(ratios):.3f})"
            )


def faster_attention(setting: Setting, folder: Path, in_a_row: int) -> str:
    """Return which of transformers' attentions is faster here, over three steps each; BigBird has its own."""
    if setting.encoder.architecture == "bigbird":
        return "eager"
    sides: list[Contestant] = []
    for attention in ("eager", "sdpa"):
        side = Theirs(setting, "full", attention, folder)
        side.name = attention
        sides.append(side)
    medians = {
        name: statistics.median(wall) for name, (wall, _) in time_in_turn(sides, 3, in_a_row=in_a_row).items()
    }
    print("theirs " + ", ".join(f"{name} {seconds:.3f} s" for name, seconds in medians.items()))
    return min(medians, key=lambda name: medians[name])


def report_memory(names: list[str], attention: str, folder: Path) -> None:
    """Let each contestant make two steps in a process of its own, and print what it says of its memory."""
    for name in names:
        alone = ["--alone", name, "--folder", str(folder), "--attention", attention]
        command = [sys.executable, __file__, *sys.argv[1:], *alone]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout.splitlines()[-1], flush=True)


def run_alone(make: list[Callable[[], Contestant]], index: int) -> None:
    """Make two steps and print the peak of this process's resident memory."""
    before = _resident_peak()
    side = make[index]()
    for number in range(2):
        _advance(side, number)
    peak = _resident_peak()
    print(f"memory {side.name:18s} peak {peak:.2f} GiB, {peak - before:.2f} GiB above the libraries")


def _resident_peak() -> float:
    # Not getrusage: a child inherits its parent's peak there.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 2**20


def report(times: dict[str, tuple[list[float], list[float]]]) -> None:
    medians = {name: statistics.median(wall) for name, (wall, _) in times.items()}
    for name, (wall, cpu) in times.items():
        print(
            f"{name:18s} median {medians[name]:.3f} s (min {min(wall):.3f}, max {max(wall):.3f}), "
            f"CPU {statistics.median(cpu):.3f} s"
        )
    for ours, theirs in (("gathered", "full"), ("full", "full"), ("gathered", "gathered")):
        names = f"ours, {ours}", f"theirs, {theirs}"
        if all(name in medians for name in names):
            print(f"ratio  {names[0]} / {names[1]}: {medians[names[0]] / medians[names[1]]:.3f}")


def _advance(side: Contestant, number: int) -> float:
    if isinstance(side, Theirs):
        side.prepare(number)
    return side.advance(number)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--architecture", choices=["bert", "roberta", "bigbird", "modernbert"], default="bert"
    )
    parser.add_argument("--preset", default="base")
    parser.add_argument("--num-layers", type=int)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=30522)
    parser.add_argument("--dropout", type=float, help="the architecture's own where not given")
    parser.add_argument("--remat", choices=["none", "selective", "layer"], default=TrainingConfig().remat)
    parser.add_argument(
        "--policies", nargs="+", choices=["none", "selective", "layer"], help="compare ours under these alone"
    )
    parser.add_argument("--rounds", type=int, default=7, help="0: only check that the work is the same")
    parser.add_argument("--warmup", type=int, default=2, help="rounds that do not count")
    parser.add_argument(
        "--in-a-row",
        type=int,
        choices=range(1, 10),
        default=1,
        help="steps of each in its turn; the last counts",
    )
    parser.add_argument("--heads", nargs="+", choices=["gathered", "full"], default=["gathered", "full"])
    parser.add_argument("--attention", choices=["eager", "sdpa"], help="theirs; the faster one if not given")
    parser.add_argument("--as-shipped", action="store_true", help="only ours, gathered and theirs, full")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--memory", action="store_true", help="measure memory too")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def setting_of(arguments: argparse.Namespace) -> Setting:
    """Return what the command line asks for. BigBird draws its random blocks as transformers does."""
    model = {
        "architecture": arguments.architecture,
        "preset": arguments.preset,
        "num_layers": arguments.num_layers,
        "dropout": arguments.dropout,
        "attention_dropout": arguments.dropout,
    }
    return make_setting(
        {key: value for key, value in model.items() if value is not None},
        vocab_size=arguments.vocab_size,
        rows=arguments.rows,
        length=arguments.length,
        remat=arguments.remat,
    )


def main() -> None:
    arguments = read_arguments()
    setting = setting_of(arguments)
    pairs: list[tuple[type[Ours] | type[Theirs], Head]]
    pairs = [(side, head) for head in arguments.heads for side in (Ours, Theirs)]
    if arguments.as_shipped:
        pairs = [(Ours, "gathered"), (Theirs, "full")]
    names = [f"{'ours' if side is Ours else 'theirs'}, {head}" for side, head in pairs]
    if arguments.alone:
        make = contestants(setting, pairs, arguments.attention, arguments.folder)
        return run_alone(make, names.index(arguments.alone))
    print(f"{arguments.architecture} {arguments.preset}, {setting.rows} x {setting.length}, {arguments}")
    if arguments.policies:
        return compare_policies(setting, arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = export_initial(setting, Path(temporary, "with_dropout"))
        attention = arguments.attention or faster_attention(setting, folder, arguments.in_a_row)
        if not arguments.no_check:
            dry = setting.without_dropout()
            dry_folder = export_initial(dry, Path(temporary, "without_dropout"))
            check_same_work(contestants(dry, pairs, attention, dry_folder))
        gc.collect()
        if arguments.rounds:
            sides = [make() for make in contestants(setting, pairs, attention, folder)]
            report(time_in_turn(sides, arguments.rounds, arguments.warmup, arguments.in_a_row))
            del sides
        if arguments.memory:
            report_memory(names, attention, folder)
    return None


if __name__ == "__main__":
    main()
