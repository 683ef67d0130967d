"""Disturbances of a GPU while it is timed: throttling and other processes, from NVML.

NVML lists processes by the ids of the host system, which differ from those inside a container. So this process, which
has work on the GPU, is assumed to be one of those listed.
"""

from __future__ import annotations

import time
from typing import Any, Final

from pytest_gpusync.model.measurement import Disturbance

_SLOWDOWNS: Final = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons (nvml.h) for a GPU that is slowed down by more than its power limit. A GPU under
load is usually at its power limit."""

_POWER_CAP: Final = 0x04


class DisturbanceMonitor:
    """Samples the state of one GPU. Without NVML it sees nothing, and says so."""

    def __init__(self, uuid: str) -> None:
        """Watch the GPU with NVML's `uuid`, such as "GPU-8a5..."."""
        self._reasons = 0
        self._others = 0
        self._since = int(time.time() * 1e6)
        self._unavailable: str | None = None
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # timing must work without NVML
            self._unavailable = f"throttling and other processes were not checked (NVML: {error})"

    def sample(self) -> None:
        """Take one sample."""
        if self._handle is None:
            return
        self._reasons |= self._query(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        listed = self._query("nvmlDeviceGetComputeRunningProcesses") or ()
        self._others = max(self._others, len(listed) - 1)

    def close(self) -> Disturbance:
        """Take the last sample, and return what was seen."""
        self.sample()
        busy = self._busy()
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = self._handle = None
        slowdowns = [name for bit, name in _SLOWDOWNS.items() if self._reasons & bit]
        clauses = [f"the GPU was throttled ({', '.join(slowdowns)})"] if slowdowns else []
        if self._reasons & _POWER_CAP:
            clauses.append("the GPU was at its power limit")
        if busy:
            clauses.append(f"{_processes(busy)} kept the GPU busy")
        elif self._others > 0:
            clauses.append(f"{_processes(self._others)} held the GPU, idle")
        if self._unavailable is not None:
            clauses.append(self._unavailable)
        return Disturbance("; ".join(clauses) or None, bool(slowdowns or busy))

    def _busy(self) -> int:
        """Return how many other processes kept the GPU's multiprocessors busy."""
        if self._handle is None:
            return 0
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since)
        except Exception:  # not supported, or no process was busy
            return 0
        at_work = {sample.pid for sample in samples if sample.smUtil > 0 and sample.timeStamp >= self._since}
        return max(0, len(at_work) - 1)

    def _query(self, *names: str) -> Any:
        """Return the result of the first of these functions that this pynvml and this GPU have; 0 if there is none."""
        for name in names:
            try:
                return getattr(self._nvml, name)(self._handle)
            except Exception:  # an old pynvml or driver, a MIG instance, no permission
                continue
        return 0


def gpu_uuid(index: int) -> str:
    """Return NVML's identifier of the GPU with this index in torch."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def monitor_current_gpu() -> DisturbanceMonitor:
    """Return a monitor of torch's current GPU."""
    import torch

    return DisturbanceMonitor(gpu_uuid(torch.cuda.current_device()))


def _processes(number: int) -> str:
    return "another process" if number == 1 else f"{number} other processes"
