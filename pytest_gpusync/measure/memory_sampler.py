"""Samples memory at the ends of steps. Sampling reads counters: it neither synchronizes nor allocates on a device."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.machine.devices import simulation_is_on
from pytest_gpusync.machine.driver_memory import DriverMemory
from pytest_gpusync.measure.allocations import AllocationTracker
from pytest_gpusync.model.measurement import MemorySample

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.measure.rows import Rows
    from pytest_gpusync.model.measurement import GrownLine

_STATM_BYTES: Final = 128
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


class MemoryCounters:
    """Reads the memory in use. It runs between steps with cold caches, so it does as little as possible."""

    def __init__(self) -> None:
        self._statistics: Callable[[int], dict[str, Any]] | None = None
        """Returns the statistics of torch's allocator for a GPU; None until CUDA is initialized."""
        self._gpus: list[int] = []
        self._unused: list[int] = []
        """GPUs on which this process has no context yet, and so no memory."""
        self._host_file: int | None = None

    def read(self, process: int | None = None) -> MemorySample:
        """Return the memory in use now; `process` is the memory of the process as the driver reported it. Initializes
        nothing.
        """
        host = self._resident()
        if self._statistics is None and not self._find():
            return MemorySample(None, None, host, None, None, process)
        statistics = self._statistics
        assert statistics is not None
        if self._unused:
            self._look_for_contexts()
        allocated = reserved = 0
        mallocs: int | None = 0
        frees: int | None = 0
        try:
            for index in self._gpus:
                found = statistics(index)
                allocated += found["allocated_bytes"]["all"]["current"]
                reserved += found["reserved_bytes"]["all"]["current"]
                mallocs = _sum(mallocs, found.get("num_device_alloc"))
                frees = _sum(frees, found.get("num_device_free"))
        except (RuntimeError, NotImplementedError):  # a pluggable allocator may have no statistics
            return MemorySample(None, None, host, None, None, process)
        return MemorySample(allocated, reserved, host, mallocs, frees, process)

    def close(self) -> None:
        """Close the file of the operating system."""
        if self._host_file is not None:
            os.close(self._host_file)
            self._host_file = None

    def _find(self) -> bool:
        """Find torch's allocator; False before CUDA is initialized."""
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return False
        self._statistics = torch._C._cuda_memoryStats
        self._unused = list(range(torch.cuda.device_count()))
        return True

    def _look_for_contexts(self) -> None:
        has_context = sys.modules["torch"]._C._cuda_hasPrimaryContext
        self._gpus += [index for index in self._unused if has_context(index)]
        self._unused = [index for index in self._unused if index not in self._gpus]

    def _resident(self) -> int | None:
        try:
            if self._host_file is None:
                self._host_file = os.open("/proc/self/statm", os.O_RDONLY)
            return int(os.pread(self._host_file, _STATM_BYTES, 0).split()[1]) * _PAGE
        except (AttributeError, OSError, IndexError, ValueError):
            return None


class MemorySampler:
    """Samples memory at the ends of a region's steps."""

    def __init__(self, warmup: int, process: bool = False) -> None:
        """Sample for a region with `warmup` steps of warm-up; query the driver for the process's memory
        if `process`.
        """
        self._driver = DriverMemory() if process else None
        self.allocations = AllocationTracker(warmup)
        self._counters = MemoryCounters()
        self.grown: tuple[GrownLine, ...] | None = None
        """After closing, the lines whose allocations made memory grow; None if they were not recorded."""

    def take(self, samples: Rows[MemorySample]) -> None:
        """Append the memory in use now, and check how it grows."""
        process = self._driver.bytes() if self._driver is not None and _on_a_gpu() else None
        samples.append(self._counters.read(process))
        self.allocations.step_ended(samples)

    def close(self) -> None:
        """Stop. Does nothing if stopped."""
        found = self.allocations.close()
        self.grown = self.grown if found is None else found
        self._counters.close()
        if self._driver is not None:
            self._driver.close()


def _on_a_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and not simulation_is_on()


def _sum(total: int | None, part: int | None) -> int | None:
    return None if total is None or part is None else total + part
