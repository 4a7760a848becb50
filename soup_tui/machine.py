"""Memory of this machine, and of its NVIDIA GPUs where their library is installed."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes."""

    total: int
    available: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What NVML says of one GPU; ``None`` where it does not say.

    Attributes:
        utilisation: share of the last sample period with a kernel running.
        others_bytes: memory of other processes.
    """

    name: str
    memory: Memory
    utilisation: float | None
    clock_mhz: int | None
    power_w: float | None
    others_bytes: int | None


def read_host_memory(meminfo: Path = Path("/proc/meminfo")) -> Memory:
    """Of the whole machine; what is available is a guess where there is no such file."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        total, available = (
            int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable")
        )
    except (OSError, KeyError, ValueError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        available = total // 2
    return Memory(total, available)


@cache
def _nvml() -> ModuleType | None:
    """NVML, begun; ``None`` where its package or the driver is not there."""
    try:
        module = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        module.nvmlInit()
    except module.NVMLError:
        return None
    return module


def read_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine: none without NVIDIA's driver and nvidia-ml-py."""
    nvml = _nvml()
    if nvml is None:
        return ()
    try:
        return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()


def _gpu(nvml: ModuleType, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)

    def asked(name: str, *arguments: Any) -> Any:
        """Many GPUs answer only some of the questions."""
        try:
            return getattr(nvml, name)(handle, *arguments)
        except nvml.NVMLError:
            return None

    utilisation = asked("nvmlDeviceGetUtilizationRates")
    power_mw = asked("nvmlDeviceGetPowerUsage")
    processes = asked("nvmlDeviceGetComputeRunningProcesses")
    name = nvml.nvmlDeviceGetName(handle)
    return Gpu(
        name=name.decode() if isinstance(name, bytes) else str(name),
        memory=Memory(int(memory.total), int(memory.free)),
        utilisation=None if utilisation is None else utilisation.gpu / 100,
        clock_mhz=asked("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        power_w=None if power_mw is None else power_mw / 1000,
        others_bytes=None
        if processes is None
        else sum(found.usedGpuMemory or 0 for found in processes if found.pid != os.getpid()),
    )
