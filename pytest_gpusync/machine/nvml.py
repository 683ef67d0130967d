"""What else goes on on a GPU while it is timed: throttling and other processes, as NVML tells.

NVML lists processes by the ids of the host system, which inside a container are not those the container knows. So this
process, which has work on the GPU, is taken for one of those listed.
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
"""Bits of NVML's clock event reasons (nvml.h) for a GPU that is held back by more than its power limit. A GPU at its
power limit is in its usual state under load."""

_POWER_CAP: Final = 0x04


class Watch:
    """Looks at one GPU from :meth:`look` to :meth:`look`. Without NVML it sees nothing, and says so."""

    def __init__(self, uuid: str) -> None:
        """Take the GPU with NVML's `uuid`, as in "GPU-8a5..."."""
        self._reasons = 0
        self._others = 0
        self._since = int(time.time() * 1e6)
        self._blind: str | None = None
        self._nvml: Any = None
        self._handle: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except Exception as error:  # whatever is wrong with NVML, it is no reason not to time
            self._blind = f"throttling and other processes were not looked for (NVML: {error})"

    def look(self) -> None:
        """Look once."""
        if self._handle is None:
            return
        self._reasons |= self._ask(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        listed = self._ask("nvmlDeviceGetComputeRunningProcesses") or ()
        self._others = max(self._others, len(listed) - 1)

    def close(self) -> Disturbance:
        """Look for the last time, and say what was seen."""
        self.look()
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
        if self._blind is not None:
            clauses.append(self._blind)
        return Disturbance("; ".join(clauses) or None, bool(slowdowns or busy))

    def _busy(self) -> int:
        """Return how many other processes had the GPU's multiprocessors at work."""
        if self._handle is None:
            return 0
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._since)
        except Exception:  # not supported, or no process was at work
            return 0
        at_work = {sample.pid for sample in samples if sample.smUtil > 0 and sample.timeStamp >= self._since}
        return max(0, len(at_work) - 1)

    def _ask(self, *names: str) -> Any:
        """Return the answer of the first of these functions that this pynvml and this GPU have; 0 if none."""
        for name in names:
            try:
                return getattr(self._nvml, name)(self._handle)
            except Exception:  # an old pynvml or driver, a MIG slice, no permission: not seen, and not fatal
                continue
        return 0


def uuid_of(index: int) -> str:
    """Return NVML's identifier of torch's GPU with this index."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def watch_current() -> Watch:
    """Return a watch over torch's current GPU."""
    import torch

    return Watch(uuid_of(torch.cuda.current_device()))


def _processes(number: int) -> str:
    return "another process" if number == 1 else f"{number} other processes"
