"""Which kernel computes attention on which device. The one place that decides it.

In: the recipe's ``training.attention_kernel`` and what could stand in for the plain formula, by platform.
Out: what does. The plain formulas are always there; a kernel changes time, memory and rounding, nothing else.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Literal

from jax import Array
from jaxtyping import Float

AttentionKernel = Literal["auto", "plain", "fused"]
"""``plain``: XLA's products and softmax on every device. ``fused``: a kernel that keeps the scores out of
memory wherever the device has one. ``auto``: a kernel where it is known to be worth it."""

_SIZES = (16, 32, 64, 128)

Attend = Callable[[], Float[Array, "b l h k"]]


def alternatives(kernel: AttentionKernel, *, tpu: Attend | None, cuda: Attend | None) -> dict[str, Attend]:
    """Return by platform what computes an attention instead of the plain formula.

    ``auto`` takes splash on a TPU, and nothing on a GPU: our kernel has been compiled for one and has run in
    the interpreter, but it has not been timed on one (docs/design/accelerators.md).

    Args:
        tpu, cuda: the kernels that can compute this attention; None: none can.
    """
    found: dict[str, Attend] = {}
    if kernel != "plain" and tpu is not None:
        found["tpu"] = tpu
    if kernel == "fused" and cuda is not None:
        found["cuda"] = cuda
    return found


def fits_triton(head_size: int, block_size: int = 64) -> bool:
    """Return whether the fused kernel for GPUs takes heads and blocks of these sizes: what tensor cores
    multiply.
    """
    return has_triton() and head_size in _SIZES and block_size in _SIZES


@functools.cache
def has_splash() -> bool:
    """Return whether this version of jax has the TPU's kernel; it is experimental there and may go."""
    return _imports("jax.experimental.pallas.ops.tpu.splash_attention")


@functools.cache
def has_triton() -> bool:
    """Return whether this version of jax compiles kernels for GPUs by Triton; likewise."""
    return _imports("jax.experimental.pallas.triton")


def _imports(module: str) -> bool:
    try:
        import_module(module)
    except ImportError:
        return False
    return True
