"""The whole step as accelerators get it: lowered for CUDA and TPU, compiled where the compilers are."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from outlast.models.attention.kernels import AttentionKernel
from outlast.models.attention.random_blocks import RandomBlocks
from outlast.models.config import ArchitectureName, AttentionName, ModelConfig, resolve_model
from outlast.objectives.config import MlmConfig
from outlast.objectives.mlm import make_objective
from outlast.training.config import OptimizerConfig
from outlast.training.mesh import AXES, ONE_DEVICE, ROWS, Layout
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import initial_state
from outlast.training.step import make_train_step

CHECKOUT = Path(__file__).parents[2]
SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
NO_LIBTPU = "libtpu is not installed (scripts/test does it): nothing compiles for TPU here"
NO_CUDA_PLUGIN = "jax's CUDA plugin is not installed (the extra cuda): nothing compiles for GPUs here"
KERNEL = "tpu_custom_call"
GPU_KERNEL = "triton"
LIBTPU_APART = Path(sys.prefix, "aot")
"""Where scripts/test puts it: beside jax, libtpu would make every import of jax look for a TPU."""
BASE_SHAPES: dict[ArchitectureName, tuple[int, int]] = {
    "bert": (32, 128),
    "roberta": (8, 512),
    "bigbird": (2, 4096),
    "modernbert": (8, 1024),
}


def lowered(
    platforms: str,
    architecture: ArchitectureName,
    length: int,
    *,
    attention: AttentionName | None = None,
    random_blocks: RandomBlocks | None = None,
    attention_dropout: float | None = None,
    kernel: AttentionKernel = "auto",
    fsdp: int | None = None,
) -> str:
    """Return the program of a bfloat16 training step of two layers or more, as text. For several platforms, a
    space between them, it is one program with what each of them takes.

    Args:
        fsdp: on four devices, of which so many share parameters; None: on one.
    """
    model = ModelConfig(
        architecture=architecture,
        preset="tiny",
        max_positions=max(length, 512),
        attention=attention,
        random_blocks=random_blocks,
        attention_dropout=attention_dropout,
    )
    encoder = resolve_model(model, vocab_size=300, special_ids=SPECIAL_IDS, sequence_length=length)
    objective = make_objective(
        encoder,
        MlmConfig(),
        special_ids=SPECIAL_IDS,
        compute_dtype=jnp.bfloat16,
        remat="selective",
        attention_kernel=kernel,
    )
    config = OptimizerConfig()
    schedule = make_schedule(config, 100)
    optimizer = make_optimizer(config, schedule, decays(objective.param_table))
    # From 0.11 on, jax asks which GPU a kernel is for, where there is none.
    gpu = jax.sharding.AbstractDevice("NVIDIA H200", 132, "gpu") if platforms == "cuda" else None
    mesh: Any = jax.sharding.AbstractMesh((), (), abstract_device=gpu)
    layout, rows = ONE_DEVICE, None
    if fsdp is not None:
        types = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Auto)
        mesh = jax.sharding.AbstractMesh((4 // fsdp, fsdp), AXES, types, abstract_device=gpu)
        layout, rows = Layout(mesh), jax.sharding.NamedSharding(mesh, ROWS)
    step: Any = make_train_step(objective, optimizer, schedule, seed=0, num_microbatches=1, layout=layout)
    state = jax.eval_shape(lambda: initial_state(objective.param_table, optimizer, 0))
    state = layout.template(state, objective.param_table)
    batch = {
        "input_ids": jax.ShapeDtypeStruct((4, length), jnp.int32, sharding=rows),
        "attention_mask": jax.ShapeDtypeStruct((4, length), jnp.int8, sharding=rows),
    }
    with jax.sharding.use_abstract_mesh(mesh):
        return step.trace(state, batch).lower(lowering_platforms=tuple(platforms.split())).as_text()


# jax 0.12 says of Triton that a later version will not have it: docs/design/accelerators.md.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("architecture", "length"),
    [
        ("bert", 128),
        pytest.param("roberta", 512, marks=pytest.mark.long),  # bert's program but for its positions
        ("bigbird", 1024),
        ("modernbert", 256),
    ],
)
def test_the_step_lowers_for_cuda_with_and_without_the_kernel(
    architecture: ArchitectureName, length: int
) -> None:
    text = lowered("cuda", architecture, length)
    assert "bf16" in text
    assert KERNEL not in text
    assert GPU_KERNEL not in text
    text = lowered("cuda", architecture, length, kernel="fused")
    for kernel in ("forward", "backward_queries", "backward_keys"):
        assert re.search(rf'custom_call @\S*triton.* name = "fused_attention_{kernel}"', text)
    assert KERNEL not in text


def test_only_a_gpu_gets_the_gpus_kernel() -> None:
    assert GPU_KERNEL not in lowered("cpu tpu", "bert", 128, kernel="fused")


def test_a_tpu_gets_the_kernel_where_it_computes_the_same() -> None:
    assert KERNEL in lowered("tpu", "bigbird", 1024, random_blocks="uniform")
    assert KERNEL in lowered("tpu", "modernbert", 256)
    assert KERNEL not in lowered("tpu", "bigbird", 1024, attention="full")
    # At 1,024 tokens transformers draws the last block at random, which is global already: it counts twice.
    assert KERNEL not in lowered("tpu", "bigbird", 1024)


def test_a_tpu_gets_the_kernel_for_full_attention_without_dropout() -> None:
    assert KERNEL in lowered("tpu", "roberta", 1024, attention_dropout=0.0)
    assert KERNEL not in lowered("tpu", "roberta", 1024)
    assert KERNEL not in lowered("tpu", "roberta", 512, attention_dropout=0.0)
    assert KERNEL not in lowered("tpu", "roberta", 1024, attention_dropout=0.0, kernel="plain")


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("fsdp", [1, 4])
@pytest.mark.parametrize(("architecture", "length"), [("bigbird", 1024), ("modernbert", 256)])
def test_kernels_lower_on_several_devices(architecture: ArchitectureName, length: int, fsdp: int) -> None:
    """A compiler cannot divide a kernel: each device has to come to it with its own rows."""
    blocks = "uniform" if architecture == "bigbird" else None
    assert KERNEL in lowered("tpu", architecture, length, random_blocks=blocks, fsdp=fsdp)
    assert GPU_KERNEL in lowered("cuda", architecture, length, kernel="fused", fsdp=fsdp)


def compile_for_tpu(*arguments: str) -> str:
    if importlib.util.find_spec("libtpu") is None and not (LIBTPU_APART / "libtpu").is_dir():
        pytest.skip(NO_LIBTPU)
    return compile_step(*arguments)


def compile_step(*arguments: str) -> str:
    """Compile a step in a process of its own, for compilers answer to the environment at import only."""
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "training" / "compile_step.py"), *arguments]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(LIBTPU_APART)]))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sys.stdout.write(done.stdout)  # the compiler's figures, shown by -rP
    return done.stdout


def test_a_small_step_compiles_for_a_tpu_that_is_not_there() -> None:
    """With dropout on the probabilities it crashed before attention had its barrier."""
    said = compile_for_tpu("--preset", "tiny", "--rows", "8")
    assert float(found(said, r"temporaries ([\d.]+) GiB")) < 0.1, said
    counted, formula = (
        float(found(said, pattern)) for pattern in (r"([\d.e+]+) FLOPs", r"FLOPs \(formula ([\d.e+]+)")
    )
    assert 0.9 < formula / counted < 1.05, said


@pytest.mark.parametrize(("architecture", "length"), [("bert", 128), ("bigbird", 1024), ("modernbert", 256)])
def test_a_small_step_compiles_for_a_gpu_that_is_not_there(
    architecture: ArchitectureName, length: int
) -> None:
    """With the kernel: its tiles fit the registers and the memory of a core, or Triton would refuse them."""
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
        pytest.skip(NO_CUDA_PLUGIN)
    shape = ("--preset", "tiny", "--architecture", architecture, "--rows", "2", "--length", str(length))
    said = compile_step(*shape, "--topology", "cuda:h200", "cuda:a100", "--attention-kernel", "fused")
    assert len(re.findall(r"temporaries ([\d.]+) GiB", said)) == 2, said


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
@pytest.mark.parametrize("architecture", list(BASE_SHAPES))
def test_every_base_model_compiles_for_every_tpu(architecture: ArchitectureName, topology: str) -> None:
    rows, length = BASE_SHAPES[architecture]
    shape = ("--rows", str(rows), "--length", str(length))
    said = compile_for_tpu("--architecture", architecture, *shape, "--topology", topology)
    assert float(found(said, r"temporaries ([\d.]+) GiB")) < 8, said


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("axis", ["--data", "--fsdp"])
@pytest.mark.parametrize(("topology", "chips"), [("v5e:2x2", 4), ("v5e:2x4", 8), ("v6e:2x4", 8)])
@pytest.mark.parametrize("architecture", list(BASE_SHAPES))
def test_every_base_model_compiles_for_several_chips(
    architecture: ArchitectureName, topology: str, chips: int, axis: str
) -> None:
    rows, length = BASE_SHAPES[architecture]
    shape = ("--rows", str(rows * chips), "--length", str(length))
    said = compile_for_tpu("--architecture", architecture, *shape, "--topology", topology, axis, str(chips))
    assert float(found(said, r"temporaries ([\d.]+) GiB")) < 8, said
    assert ("all-gather" in said) == (axis == "--fsdp"), said
    assert "all-to-all" not in said


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("topology", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
def test_resnet50_compiles_for_every_tpu(topology: str) -> None:
    shape = ("--rows", "64", "--remat", "none")
    said = compile_for_tpu("--architecture", "resnet", *shape, "--topology", topology)
    assert float(found(said, r"temporaries ([\d.]+) GiB")) < 8, said


@pytest.mark.long
@pytest.mark.timeout(1600)
@pytest.mark.parametrize(("rows", "remat", "limit"), [(2, "selective", 8.0), (8, "layer", 16.0)])
def test_bigbird_at_4096_fits_a_small_chip(rows: int, remat: str, limit: float) -> None:
    """State, batch and temporaries together, by the compiler's own count."""
    shape = ("--rows", str(rows), "--length", "4096", "--remat", remat)
    said = compile_for_tpu("--architecture", "bigbird", *shape)
    used = [float(found(said, rf"{what} ([\d.]+) GiB")) for what in ("temporaries", "state and batch")]
    assert sum(used) < limit, said


def found(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    assert match, text
    return match[1]
