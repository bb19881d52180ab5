"""The whole training step as accelerators get it: lowered for CUDA and TPU, compiled for TPU by libtpu."""

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

from outlast.models.config import ArchitectureName, AttentionName, ModelConfig, RandomBlocks, resolve_model
from outlast.objectives.config import MlmConfig
from outlast.objectives.mlm import make_objective
from outlast.training.config import OptimizerConfig
from outlast.training.optimizer import decays, make_optimizer, make_schedule
from outlast.training.state import initial_state
from outlast.training.step import make_train_step

CHECKOUT = Path(__file__).parents[2]
SPECIAL_IDS = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
NO_LIBTPU = "libtpu is not installed (the extra aot): nothing compiles for TPU here"
KERNEL = "tpu_custom_call"
BASE_SHAPES: dict[ArchitectureName, tuple[int, int]] = {
    "bert": (32, 128),
    "roberta": (8, 512),
    "bigbird": (2, 4096),
    "modernbert": (8, 1024),
}


def lowered(
    platform: str,
    architecture: ArchitectureName,
    length: int,
    *,
    attention: AttentionName | None = None,
    random_blocks: RandomBlocks = "uniform",
) -> str:
    """Return the program of a bfloat16 training step of two layers or more, as text."""
    model = ModelConfig(
        architecture=architecture,
        preset="tiny",
        max_positions=max(length, 512),
        attention=attention,
        random_blocks=random_blocks,
    )
    encoder = resolve_model(model, vocab_size=300, special_ids=SPECIAL_IDS, sequence_length=length)
    objective = make_objective(
        encoder, MlmConfig(), special_ids=SPECIAL_IDS, compute_dtype=jnp.bfloat16, remat="selective"
    )
    config = OptimizerConfig()
    schedule = make_schedule(config, 100)
    optimizer = make_optimizer(config, schedule, decays(objective.param_table))
    step: Any = make_train_step(objective, optimizer, schedule, seed=0, num_microbatches=1)
    state = jax.eval_shape(lambda: initial_state(objective.param_table, optimizer, 0))
    batch = {
        "input_ids": jax.ShapeDtypeStruct((2, length), jnp.int32),
        "attention_mask": jax.ShapeDtypeStruct((2, length), jnp.int8),
    }
    return step.trace(state, batch).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(
    ("architecture", "length"), [("bert", 128), ("roberta", 512), ("bigbird", 1024), ("modernbert", 256)]
)
def test_the_step_lowers_for_cuda(architecture: ArchitectureName, length: int) -> None:
    text = lowered("cuda", architecture, length)
    assert "bf16" in text
    assert KERNEL not in text


def test_a_tpu_gets_the_kernel_where_it_computes_the_same() -> None:
    assert KERNEL in lowered("tpu", "bigbird", 1024)
    assert KERNEL in lowered("tpu", "modernbert", 256)
    assert KERNEL not in lowered("tpu", "bigbird", 1024, attention="full")
    # At 1,024 tokens transformers draws the last block at random, which is global already: it counts twice.
    assert KERNEL not in lowered("tpu", "bigbird", 1024, random_blocks="transformers")


def compile_for_tpu(*arguments: str) -> str:
    """Compile a step in a process of its own, for libtpu answers to the environment at import only."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip(NO_LIBTPU)
    command = [sys.executable, str(CHECKOUT / "benchmarks" / "compile_step.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_small_step_compiles_for_a_tpu_that_is_not_there() -> None:
    """With dropout on the probabilities it crashed before attention had its barrier."""
    said = compile_for_tpu("--preset", "tiny", "--rows", "8")
    assert float(found(said, r"temporaries ([\d.]+) GiB")) < 0.1, said


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
