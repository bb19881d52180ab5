"""What decides the last bits of a result, asked of this process, and the promise that follows from it.

In: jax as it runs here, and the operation fields of a recipe. Out: plain values that every commit keeps, and
at a resume one line: bit-identical, or the same examples and masks within rounding. Invariant: the line says
"bit-identical" only where nothing that jax and XLA know of has changed. The instructions that XLA compiles
for and the threads it has started are asked of XLA itself, not taken from the environment.
"""

import functools
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
from jax.experimental.serialize_executable import serialize

from outlast.config import differences
from outlast.training.config import TrainingConfig
from outlast.training.mesh import ONE_DEVICE, Layout
from outlast.version import __version__

ARITHMETIC_VERSION = 2
"""Raised whenever this package computes other bits than before from the same recipe."""

_NOTED = "settings"
"""A field that checkpoints of older versions lack; they noted less, so nothing can be promised of them."""

_MIXED = "mixed"
"""A field of the commits of a run that went on in another environment: from there on its bits are nobody
else's, though every later attempt finds the environment of the one before it."""

_VARIABLES = (
    *("LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUDNN_DETERMINISTIC"),
    *("TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS", "TF_DISABLE_MXU"),
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "XLA_PYTHON_CLIENT_ALLOCATOR"),
)
"""Of the environment, beside XLA_FLAGS and what jax makes its own settings."""

_COMPILERS = re.compile(
    r"libtpu|(?:jax[-_](?:cuda|rocm|metal)|nvidia[-_](?:cudnn|cublas|cuda[-_]nvcc|nccl)).*"
)
"""Distributions that compile for a device or compute on it."""

_OUTSIDE_THE_NUMBERS = re.compile(
    "jax2tf_|jax_("
    "serialization|export|platforms|check|captured|debug_(leaked|key|log)|log|explain|distributed|"
    "compilation|persistent|enable_compilation_cache|raise_persistent|hlo_source|source_url|include|"
    "traceback|share_binary|transfer_guard|array_garbage|thread_guard|send_traceback|dump_ir|xla_profile|"
    "numpy_rank_promotion|enable_checks|no_|remove_custom_partitioning|mutable_array_checks|backend_target|"
    "cross_host|force_dcn|(cuda|rocm|oneapi)_visible|compiler_detailed|cpu_get|platform_name|pprint|"
    "tracer_error|enable_(preemption|recoverability)|sort_devices|pallas_(verbose|enable_debug)|"
    "disable_(vmap_shmap|bwd_checks)|disallow|explicit_x64|experimental_unsafe_xla_runtime_errors)"
)
"""Settings of jax that write, cache, check or refuse, and never change a number."""

_FEATURES = re.compile(rb"\x12[\x01-\x1f]([\w.-]+)\x1a..?((?:[+-][\w.-]+,){4,}[+-][\w.-]+)", re.DOTALL)
"""In a program compiled for a CPU: the name of the processor and its instructions, as XLA sees them."""


def environment() -> dict[str, Any]:
    """Return what the bits of a result depend on besides the identity of the run."""
    device = jax.devices()[0]
    fields: dict[str, Any] = {
        "outlast": __version__,
        "arithmetic_version": ARITHMETIC_VERSION,
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "compilers": {
            name: found.version
            for found in distributions()
            if _COMPILERS.fullmatch(name := (found.metadata["Name"] or "").lower())
        },
        "platform": device.platform,
        "platform_version": device.client.platform_version,
        "device_kind": device.device_kind,
        "xla_flags": _xla_flags(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        _NOTED: _settings(),
    }
    return fields | (_processor() if device.platform == "cpu" else {})


def topology(layout: Layout) -> dict[str, Any]:
    """Return among what a sum over the rows of a batch is divided, and what adds the parts up.

    Commits from before there was a mesh are of one device, and say no more; so one device says no more.
    """
    if layout.num_devices == 1:
        return {"num_devices": 1}
    fields: dict[str, Any] = {
        "num_devices": layout.num_devices,
        "mesh": layout.shape,
        "num_processes": jax.process_count(),
    }
    if jax.default_backend() == "cpu":  # of other platforms the compilers say it
        own = jax.config.jax_cpu_collectives_implementation  # pyright: ignore[reportAttributeAccessIssue]
        fields["collectives"] = "in process" if jax.process_count() == 1 else own
    return fields


def arithmetic(training: TrainingConfig, layout: Layout = ONE_DEVICE) -> dict[str, Any]:
    """Return the environment, the topology, and the operation fields that change rounding."""
    fields: dict[str, Any] = {
        **environment(),
        **topology(layout),
        "num_microbatches": training.num_microbatches,
        "compute_dtype": training.compute_dtype,
        "remat": training.remat,
    }
    if fields["platform"] != "cpu":  # a CPU has the plain formula only
        fields["attention_kernel"] = training.attention_kernel
    return fields


def describe_promise(checkpoint: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say in one line which promise this resume keeps.

    Args:
        checkpoint, now: what ``arithmetic`` gave then and gives now.
    """
    if _NOTED not in checkpoint:
        changed = ["the checkpoint is of a version that noted less of what it ran on"]
    else:
        changed = ["an earlier part of the run ran elsewhere"] if checkpoint.get(_MIXED) else []
        changed += [f"{name} {_shown(old, new)}" for name, old, new in _changes(checkpoint, now)]
    if not changed:
        return "same environment: the result is bit-identical to that of an unbroken run"
    return "the same examples and masks in the same order; losses equal within rounding, since " + ", ".join(
        changed
    )


def kept_arithmetic(now: Mapping[str, Any], checkpoint: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the commits of an attempt keep: its arithmetic, and whether its run ever had another.

    Args:
        checkpoint: what the commit kept from which the attempt went on, None for a new run.
    """
    is_mixed = checkpoint is not None and (
        _NOTED not in checkpoint or bool(checkpoint.get(_MIXED)) or bool(_changes(checkpoint, now))
    )
    return {**now, _MIXED: True} if is_mixed else dict(now)


def _changes(checkpoint: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return differences({name: value for name, value in checkpoint.items() if name != _MIXED}, now)


def _shown(old: Any, new: Any) -> str:
    """Return two values for a person; of lists only what the other one lacks."""
    if isinstance(old, list) and isinstance(new, list):
        gone = [f"without {value}" for value in old if value not in new]
        come = [f"with {value}" for value in new if value not in old]
        return " ".join([*gone, *come]) or "in another order"
    return f"{'unset' if old is None else old} -> {'unset' if new is None else new}"


def _xla_flags() -> list[str]:
    """Return XLA's flags in their order, in which the last of two counts; without those that only dump.

    Where the variable does not begin with a dash XLA takes it for the name of a file that holds the flags.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if given and not given.lstrip().startswith("-"):
        with suppress(OSError):  # XLA starts without flags where it cannot read them
            given = Path(given).read_text(encoding="utf-8", errors="replace")
    return [flag for flag in given.split() if not flag.startswith("--xla_dump_")]


def _settings() -> dict[str, Any]:
    """Return jax's settings, as they are now, that may change a number."""
    values: Mapping[str, Any] = jax.config.values
    plain = (bool, int, float, str, type(None))
    return {
        name: value if isinstance(value, plain) else str(value)
        for name, value in sorted(values.items())
        if not _OUTSIDE_THE_NUMBERS.match(name)
    }


@functools.cache
def _processor() -> dict[str, Any]:
    """Return the instructions that XLA compiles for, and the number of its threads, which cuts reductions.

    Both are read from what XLA has made, a compiled program and the threads of this process. Where the
    program does not say (another form in another jaxlib), the machine's own description takes its place: it
    may differ where nothing changes, never the other way round.
    """
    program = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((1,), jnp.float32)).compile()
    try:
        found = _FEATURES.search(serialize(program)[0])
    except (ValueError, RuntimeError):  # not every backend can write a program down
        found = None
    if found:
        features = [feature[1:] for feature in found[2].decode().split(",") if feature[0] == "+"]
        processor: dict[str, Any] = {"processor": found[1].decode(), "instructions": features}
    else:
        processor = {"processor": _cpuinfo(), "instructions": []}
    return {**processor, "num_threads": _num_threads()}


def _num_threads() -> int:
    """Return the number of XLA's threads for computing; where they cannot be told, the cores it may use."""
    try:
        names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    except OSError:
        names = []
    return names.count("tf_XLAEigen") or int(os.environ.get("NPROC") or _num_cores())


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpuinfo() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    told = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    return "; ".join(sorted({line.partition(":")[2].strip() for line in lines if line.startswith(told)}))
