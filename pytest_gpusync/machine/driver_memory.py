"""GPU memory of this process as the driver sees it: torch's, and what libraries and contexts take in addition.

NVML lists memory by the process ids of the host system. In a container this process is not found by its id; then, if at
most one process is listed, all used memory of the GPU is counted as its own, including what the driver reserves for
itself.
"""

from __future__ import annotations

import os
from typing import Any

from pytest_gpusync.machine.nvml import gpu_uuid


class DriverMemory:
    """Queries the driver, which takes some tenths of a millisecond each time."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []

    def bytes(self) -> int | None:
        """Return the memory of this process on all of torch's GPUs; None if it cannot be separated from that
        of others.
        """
        if self._nvml is None:
            self._open()
        total = 0
        for handle in self._handles:
            used = self._used(handle)
            if used is None:
                return None
            total += used
        return total if self._handles else None

    def close(self) -> None:
        """Shut NVML down."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None
        self._handles = []

    def _open(self) -> None:
        import torch

        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no driver or no permission: unknown
            return
        self._nvml = pynvml
        try:
            count = torch.cuda.device_count()
            self._handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(index)) for index in range(count)]
        except Exception:  # a MIG instance, or a GPU that NVML does not list
            self._handles = []

    def _used(self, handle: Any) -> int | None:
        try:
            listed = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            own = [process for process in listed if process.pid == os.getpid()]
            if own and own[0].usedGpuMemory is not None:
                return int(own[0].usedGpuMemory)
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used) if len(listed) <= 1 else None
        except Exception:  # not supported here
            return None
