"""Which device and dtype to use, and how much memory there is."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import torch

from soup_engine.errors import DeviceError

GIB = 1024**3
CPU_KV_SHARE = 0.25
CPU_KV_LIMIT = 4 * GIB
CUDA_MEMORY_SHARE = 0.9
CUDA_ACTIVATION_RESERVE = 1 * GIB
"""Left free on a GPU for activations and the graphs of decode steps."""


def resolve_device(name: str | None) -> torch.device:
    """The device asked for, or the best there is: cuda, then mps, then cpu.

    Raises:
        DeviceError: there is no such device here.
    """
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda", torch.cuda.current_device())
        if torch.backends.mps.is_available():
            return torch.device("mps")
        return torch.device("cpu")
    device = torch.device(name)  # a name that ``ModelConfig`` has let pass
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise DeviceError(f"There is no device {name} here ({count} CUDA devices were found).")
        return torch.device("cuda", device.index or 0)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError("There is no device mps here.")
    return device


def default_dtype(device: torch.device) -> torch.dtype:
    """bf16 where the device computes in it, else fp16 on GPUs and fp32 on CPUs."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "mps":
        return torch.float16
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.bfloat16
    return torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def in_gib(num_bytes: float) -> str:
    """For messages, in the unit that sizes are given in."""
    return f"{num_bytes / GIB:.2f} GiB"


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on the device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _cgroup_headroom())
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def default_kv_budget(device: torch.device) -> int:
    """Bytes for keys and values, asked after the weights are loaded.

    On a GPU what is left of 90 % of its memory; elsewhere a quarter of the free memory, at
    most 4 GiB.
    """
    free = available_memory(device)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        used = total - free
        return max(0, int(total * CUDA_MEMORY_SHARE) - used - CUDA_ACTIVATION_RESERVE)
    return min(CPU_KV_LIMIT, int(free * CPU_KV_SHARE))


def _cgroup_headroom() -> int:
    """What a container's memory limit leaves, or a number too large to matter."""
    limit, usage = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    try:
        return max(0, int(limit.read_text()) - int(usage.read_text()))
    except (OSError, ValueError):
        return 1 << 62


def release_free_memory() -> None:
    """Give freed memory back: to other processes on a GPU, and to the system, where the C library
    can."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
        if trim is not None:
            trim(0)
