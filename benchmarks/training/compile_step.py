r"""What XLA says of a training step on an accelerator that is not there: memory, FLOPs, whether it compiles.

The step is the one that ``outlast train`` runs: forward, backward, clipping and AdamW, bfloat16 products,
on one chip, or on ``--data`` times ``--fsdp`` of them. Nothing is run. TPU topologies are known to libtpu
(the extra ``aot``), which needs no TPU for it. For a GPU (``cuda:h200``) the CUDA plugin
compiles without one and without a driver (the extra ``cuda``; the packages jax-cuda13-plugin and
jax-cuda13-pjrt are enough), but tries no variants of a product out, as it does where the GPU is there.
``cuda`` alone only lowers, which needs neither.

    python benchmarks/training/compile_step.py --architecture bigbird --rows 2 --length 4096 \
        --topology v5e:2x2
    python benchmarks/training/compile_step.py --architecture modernbert --rows 8 --length 1024 \
        --topology v6e:2x2
    python benchmarks/training/compile_step.py --length 512 --topology cuda:h200 \
        --attention-kernel plain fused
    python benchmarks/training/compile_step.py --architecture resnet --rows 256 --remat none \
        --topology v5e:2x2
    python benchmarks/training/compile_step.py --preset large --rows 64 --length 512 --topology v5e:2x4 \
        --fsdp 8

The compiler counts the body of a loop once, and the layers of an encoder are a loop: beside its FLOPs stands
the formula's count of the same (``step_formula.py``), then the formula's count of the whole step. A kernel
of our own it may not count at all.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

# Before jax is imported: no TPU is asked for, the search for one does not wait for a network, and several
# compilers may run side by side (libtpu lets one process in, for the sake of a device that is not there).
os.environ.update(
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
)

import jax
import jax.numpy as jnp
from cuda_targets import GPUS, lowering_for, topology_of
from jax.experimental import topologies
from step_formula import Estimate, estimate_encoder, estimate_resnet

from outlast.models.config import ModelConfig
from outlast.models.params import count
from outlast.models.remat import Remat
from outlast.recipe import make_recipe
from outlast.run.assemble import make_learner
from outlast.run.kind import DataFacts, Learner
from outlast.training.mesh import ONE_DEVICE, ROWS, lay_out
from outlast.training.step import make_train_step
from support.programs import Program, read_program

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
GIB = 2**30


class Case(NamedTuple):
    """What is compiled: what learns, the shapes of a batch, and the formula's figures for one chip."""

    learner: Learner[Any]
    batch: dict[str, jax.ShapeDtypeStruct]
    estimate: Estimate


def learner_of(arguments: argparse.Namespace, facts: DataFacts, **tables: dict[str, Any]) -> Learner[Any]:
    training = {name: getattr(arguments, name) for name in ("compute_dtype", "remat", "attention_kernel")}
    tables["stream"]["global_batch_size"] = arguments.rows
    return make_learner(make_recipe({"training": training, **tables}, where="the command line"), facts)


def encoder_case(arguments: argparse.Namespace) -> Case:
    shape = (arguments.rows, arguments.length)
    learner = learner_of(
        arguments,
        DataFacts(vocab_size=arguments.vocab_size, special_ids=SPECIAL_IDS),
        stream={"sequence_length": arguments.length},
        model={
            "architecture": arguments.architecture,
            "preset": arguments.preset or "base",
            "num_layers": arguments.num_layers,
            "attention": arguments.attention,
            "max_positions": max(ModelConfig().max_positions, arguments.length),
        },
    )
    batch = {
        "input_ids": jax.ShapeDtypeStruct(shape, jnp.int32),
        "attention_mask": jax.ShapeDtypeStruct(shape, jnp.int8),
    }
    estimate = estimate_encoder(
        learner.objective.model,
        rows=rows_of_a_chip(arguments),
        length=arguments.length,
        predictions=learner.objective.config.num_predictions(arguments.length),
        num_parameters=count(learner.objective.param_table),
        remat=arguments.remat,
    )
    return Case(learner, batch, estimate)


def resnet_case(arguments: argparse.Namespace) -> Case:
    rows, size = arguments.rows, arguments.image_size
    learner = learner_of(
        arguments,
        DataFacts(num_classes=1000),
        stream={"packing": "images"},
        model={"preset": arguments.preset or "resnet50"},
        optimizer={"name": "sgd"},
    )
    batch = {
        "images": jax.ShapeDtypeStruct((rows, size, size, 3), jnp.uint8),
        "labels": jax.ShapeDtypeStruct((rows,), jnp.int32),
    }
    estimate = estimate_resnet(
        learner.objective.model, rows=rows_of_a_chip(arguments), image_size=size, remat=arguments.remat
    )
    return Case(learner, batch, estimate)


def rows_of_a_chip(arguments: argparse.Namespace) -> int:
    return arguments.rows // (arguments.data * arguments.fsdp)


def trace_step(case: Case, devices: Sequence[Any], fsdp: int = 1) -> Any:
    """Return the traced step on devices, or on none in particular; state and batch are shapes."""
    learner = case.learner
    layout = lay_out(devices, fsdp) if devices else ONE_DEVICE
    step: Any = make_train_step(
        learner.objective,
        learner.optimizer,
        learner.schedule,
        seed=learner.seed,
        num_microbatches=1,
        layout=layout,
    )
    state = jax.eval_shape(learner.initial_state)
    if not devices:
        return step.trace(state, case.batch)
    if layout.mesh is None:
        sharding: Any = jax.sharding.SingleDeviceSharding(devices[0])
        state = with_sharding(state, sharding)
    else:
        state = layout.template(state, learner.objective.param_table)
        sharding = jax.sharding.NamedSharding(layout.mesh, ROWS)
    return step.trace(state, with_sharding(case.batch, sharding))


def with_sharding(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def describe_collectives(program: Program) -> str:
    """Return what one device moves in a step: of each kind how often, and the bytes of the results."""
    said: list[str] = []
    for kind in sorted({each.kind for each in program.collectives}):
        number = sum(each.times for each in program.of(kind))
        size = sum(each.times * each.bytes for each in program.of(kind))
        largest = max(program.of(kind), key=lambda each: each.bytes)
        said.append(f"{kind} {number} arrays {size / 2**20:.1f} MiB (largest {largest.shape})")
    return ", ".join(said) or "no collectives"


def compile_for(case: Case, topology: str, data: int, fsdp: int) -> str:
    """Return what the compiler says of the step for chips of a topology, or for this machine's CPU."""
    options: dict[str, str | bool] = {}
    context = nullcontext()
    if topology == "cpu":
        devices = jax.devices("cpu")
    elif topology.startswith("cuda:"):
        gpu = topology.removeprefix("cuda:")
        devices, context = topology_of(gpu).devices, lowering_for(gpu)
        options["xla_gpu_autotune_level"] = "0"
    else:
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    start = time.perf_counter()
    try:
        traced = trace_step(case, devices[: data * fsdp], fsdp)
        with context:
            lowered = traced.lower()
        compiled = lowered.compile(options)
    except jax.errors.JaxRuntimeError as error:
        return f"refused: {str(error).splitlines()[0]}"
    memory, cost, formula = compiled.memory_analysis(), compiled.cost_analysis(), case.estimate
    # The compiler for GPUs counts memory only.
    counted = f"whole step {formula.flops:.3e} FLOPs by the formula, "
    if cost is not None:
        counted = (
            f"{cost['flops']:.3e} FLOPs (formula {formula.flops_bodies_once:.3e}; "
            f"whole step {formula.flops:.3e}), {cost['bytes accessed']:.3e} bytes, "
        )
    if data * fsdp > 1:
        counted += f"{describe_collectives(read_program(compiled.as_text()))}, "
    return (
        f"temporaries {memory.temp_size_in_bytes / GIB:.2f} GiB (formula {formula.temporaries / GIB:.2f}), "
        f"state and batch {memory.argument_size_in_bytes / GIB:.2f} GiB, "
        f"{counted}"
        f"compiled in {time.perf_counter() - start:.0f} s"
    )


def lower_for_cuda(case: Case) -> str:
    """Return how large the step's program for a GPU is."""
    traced = trace_step(case, ())
    with lowering_for("h200"):
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    return f"lowered, {len(text) / 1024:.0f} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--architecture", choices=["bert", "roberta", "bigbird", "modernbert", "resnet"], default="bert"
    )
    parser.add_argument("--preset", help="default: base; resnet50")
    parser.add_argument("--num-layers", type=int)
    parser.add_argument("--attention", choices=["full", "block_sparse"], help="bigbird's")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--image-size", type=int, default=224, help="resnet's")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--compute-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--remat", nargs="+", default=["selective"], help="none, selective, layer")
    parser.add_argument(
        "--attention-kernel", nargs="+", default=["auto"], help="auto, plain, fused", metavar="KERNEL"
    )
    parser.add_argument(
        "--topology",
        nargs="+",
        default=["v5e:2x2"],
        help="such as v6e:2x2; cpu; cuda; " + ", ".join(f"cuda:{name}" for name in GPUS),
    )
    parser.add_argument("--data", type=int, default=1, help="groups of chips that share the rows")
    parser.add_argument("--fsdp", type=int, default=1, help="chips of a group, that share parameters too")
    arguments = parser.parse_args()
    policies: list[Remat] = arguments.remat
    is_resnet = arguments.architecture == "resnet"
    name = f"{arguments.architecture} {arguments.preset or ''} {arguments.rows}"
    name += f" x {arguments.image_size if is_resnet else arguments.length}"
    kinds = product(arguments.topology, policies, arguments.attention_kernel)
    for topology, arguments.remat, arguments.attention_kernel in kinds:
        case = resnet_case(arguments) if is_resnet else encoder_case(arguments)
        said = (
            lower_for_cuda(case)
            if topology == "cuda"
            else compile_for(case, topology, arguments.data, arguments.fsdp)
        )
        if arguments.data * arguments.fsdp > 1:
            topology = f"{topology} data {arguments.data} x fsdp {arguments.fsdp}"
        kind = f"{arguments.compute_dtype} {arguments.remat} {arguments.attention_kernel}"
        print(f"{topology} {name} {kind}: {said}", flush=True)


if __name__ == "__main__":
    main()
