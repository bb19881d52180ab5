"""GPUs as XLA's compiler knows them, so that it compiles for one that is not there.

In: a name. Out: a topology of one such GPU. It needs the CUDA plugin (the extra ``cuda``) and no driver. The
numbers are those of NVIDIA's data sheets and of the compute capability (CUDA programming guide, "Technical
specifications per compute capability").
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What sizes the compiler's choices."""

    name: str
    capability: tuple[int, int]
    cores: int
    """Streaming multiprocessors."""
    lanes_per_core: int
    shared_memory_per_core: int
    shared_memory_per_block: int
    """The most that a block can ask for, in bytes."""
    l2_bytes: int
    memory_bytes: int
    bytes_per_second: int
    clock_ghz: float


GPUS = {
    "a100": Gpu(
        name="NVIDIA A100-SXM4-40GB",
        capability=(8, 0),
        cores=108,
        lanes_per_core=64,
        shared_memory_per_core=164 << 10,
        shared_memory_per_block=163 << 10,
        l2_bytes=40 << 20,
        memory_bytes=40 * 10**9,
        bytes_per_second=1555 * 10**9,
        clock_ghz=1.41,
    ),
    "h100": Gpu(
        name="NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        cores=132,
        lanes_per_core=128,
        shared_memory_per_core=228 << 10,
        shared_memory_per_block=227 << 10,
        l2_bytes=50 << 20,
        memory_bytes=80 * 10**9,
        bytes_per_second=3350 * 10**9,
        clock_ghz=1.98,
    ),
    "h200": Gpu(
        name="NVIDIA H200",
        capability=(9, 0),
        cores=132,
        lanes_per_core=128,
        shared_memory_per_core=228 << 10,
        shared_memory_per_block=227 << 10,
        l2_bytes=50 << 20,
        memory_bytes=141 * 10**9,
        bytes_per_second=4800 * 10**9,
        clock_ghz=1.98,
    ),
}


def topology_of(name: str) -> Any:
    """Return the topology of one GPU. Raises jax's error where its CUDA plugin is not installed."""
    return topologies.get_topology_desc(
        platform="cuda", topology_name=name, target_config=_description(GPUS[name]), topology="1x1x1"
    )


def lowering_for(name: str) -> AbstractContextManager[Any]:
    """Say which GPU a kernel is lowered for: from 0.11 on, jax asks that where there is none."""
    gpu = jax.sharding.AbstractDevice(GPUS[name].name, GPUS[name].cores, "gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=gpu))


def _description(gpu: Gpu) -> str:
    """Write a GPU as the text form of XLA's ``GpuTargetConfigProto``."""
    major, minor = gpu.capability
    device = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "core_count": gpu.cores,
        "fpus_per_core": gpu.lanes_per_core,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_core": gpu.shared_memory_per_core,
        "shared_memory_per_block_optin": gpu.shared_memory_per_block,
        "l2_cache_size": gpu.l2_bytes,
        "device_memory_size": gpu.memory_bytes,
        "memory_bandwidth": gpu.bytes_per_second,
        "clock_rate_ghz": gpu.clock_ghz,
    }
    fields = " ".join(f"{key}: {value}" for key, value in device.items())
    return (
        f"gpu_device_info {{ {fields} cuda_compute_capability {{ major: {major} minor: {minor} }} }} "
        f'platform_name: "CUDA" device_description_str: "{gpu.name}" '
        "runtime_version { major: 13 } dnn_version_info { major: 9 minor: 10 }"
    )
