"""What XLA says of a training step on an accelerator that is not there: memory, FLOPs, whether it compiles.

The step is the one that ``outlast train`` runs: forward, backward, clipping and AdamW, bfloat16 products,
all rows on one chip. Nothing is run. TPU topologies are known to libtpu (the extra ``aot``), which needs no
TPU for it. For CUDA a step is only lowered, for the compiler behind it wants a GPU.

    python benchmarks/compile_step.py --architecture bigbird --rows 2 --length 4096 --topology v5e:2x2
    python benchmarks/compile_step.py --architecture modernbert --rows 8 --length 1024 --topology v6e:2x2

FLOPs are the compiler's count, in which the body of a loop counts once: those of the layers are to be
multiplied by their number.
"""

import argparse
import os
import time
from typing import Any

# Before jax is imported: no TPU is asked for, and the search for one does not wait for a network.
os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    TPU_WORKER_HOSTNAMES="localhost",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
)

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from outlast.models.config import ModelConfig, resolve_model
from outlast.objectives.config import MlmConfig
from outlast.objectives.mlm import make_objective
from outlast.training.config import OptimizerConfig
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import initial_state
from outlast.training.step import make_train_step

SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
GIB = 2**30


def trace_step(arguments: argparse.Namespace, device: Any) -> Any:
    """Return the traced step on a device; state and batch are shapes."""
    encoder = resolve_model(
        ModelConfig(
            architecture=arguments.architecture,
            preset=arguments.preset,
            num_layers=arguments.num_layers,
            attention=arguments.attention,
            max_positions=max(ModelConfig().max_positions, arguments.length),
        ),
        vocab_size=arguments.vocab_size,
        special_ids=SPECIAL_IDS,
        sequence_length=arguments.length,
    )
    dtype = jnp.dtype(arguments.compute_dtype)
    objective = make_objective(
        encoder, MlmConfig(), special_ids=SPECIAL_IDS, compute_dtype=dtype, remat=arguments.remat
    )
    config = OptimizerConfig()
    schedule = make_schedule(config, 1000)
    optimizer = make_optimizer(config, schedule, decays(objective.param_table))
    step: Any = make_train_step(objective, optimizer, schedule, seed=0, num_microbatches=1)
    shape = (arguments.rows, arguments.length)
    batch = {
        "input_ids": jax.ShapeDtypeStruct(shape, jnp.int32),
        "attention_mask": jax.ShapeDtypeStruct(shape, jnp.int8),
    }
    state = jax.eval_shape(lambda: initial_state(objective.param_table, optimizer, 0))
    if device is None:
        return step.trace(state, batch)
    sharding = jax.sharding.SingleDeviceSharding(device)

    def placed(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    return step.trace(*jax.tree.map(placed, (state, batch)))


def compile_for(arguments: argparse.Namespace, topology: str) -> str:
    """Return what the compiler says of the step for one chip of a topology, or for this machine's CPU."""
    if topology == "cpu":
        device = jax.devices("cpu")[0]
    else:
        device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    start = time.perf_counter()
    try:
        compiled = trace_step(arguments, device).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        return f"refused: {str(error).splitlines()[0]}"
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    return (
        f"temporaries {memory.temp_size_in_bytes / GIB:.2f} GiB, "
        f"state and batch {memory.argument_size_in_bytes / GIB:.2f} GiB, "
        f"{cost['flops']:.3e} FLOPs and {cost['bytes accessed']:.3e} bytes (a layer once), "
        f"compiled in {time.perf_counter() - start:.0f} s"
    )


def lower_for_cuda(arguments: argparse.Namespace) -> str:
    """Return how large the step's program for a GPU is."""
    text = trace_step(arguments, None).lower(lowering_platforms=("cuda",)).as_text()
    return f"lowered, {len(text) / 1024:.0f} KiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--architecture", choices=["bert", "roberta", "bigbird", "modernbert"], default="bert"
    )
    parser.add_argument("--preset", default="base")
    parser.add_argument("--num-layers", type=int)
    parser.add_argument("--attention", choices=["full", "block_sparse"], help="bigbird's")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--compute-dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--remat", nargs="+", default=["selective"], help="none, selective, layer")
    parser.add_argument("--topology", nargs="+", default=["v5e:2x2"], help="such as v6e:2x2; cpu; cuda")
    arguments = parser.parse_args()
    policies = arguments.remat
    for topology in arguments.topology:
        for remat in policies:
            arguments.remat = remat
            said = lower_for_cuda(arguments) if topology == "cuda" else compile_for(arguments, topology)
            name = f"{arguments.architecture} {arguments.preset} {arguments.rows} x {arguments.length}"
            print(f"{topology} {name} {arguments.compute_dtype} {remat}: {said}", flush=True)


if __name__ == "__main__":
    main()
