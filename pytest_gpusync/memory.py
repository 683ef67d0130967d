"""Memory at the end of steps, and its growth.

To sample is to read counters: nothing is synchronized, nothing allocated on a device. Growth is the slope over the
steps after warm-up, so that neither one late allocation nor a varying batch size is taken for a leak.
"""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pytest_gpusync.allocations import Allocations
from pytest_gpusync.devices import simulation_is_on
from pytest_gpusync.driver_memory import DriverMemory
from pytest_gpusync.estimates import LEAST_SAMPLES, slope_estimate
from pytest_gpusync.events import MemorySample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpusync.estimates import Estimate
    from pytest_gpusync.events import GrownLine, Measurement

Of = Literal["allocated", "reserved", "process", "host"]
"""Whose memory: torch's tensors, torch's allocator with its cache, all that the driver has given the process on its
GPUs, or the process's resident set."""

OF: Final[tuple[Of, ...]] = ("allocated", "reserved", "process", "host")


class Mallocs(NamedTuple):
    """Calls of ``cudaMalloc`` and its like, or of ``cudaFree``, in the steps after warm-up."""

    median: float
    max: int


class Sampler:
    """Samples memory at the ends of a region's steps."""

    def __init__(self, warmup: int, process: bool = False) -> None:
        """Sample for a region with so many steps of warm-up; ask the driver for the process's memory if `process`."""
        self._driver = DriverMemory() if process else None
        self.allocations = Allocations(warmup)
        self._steps = 0
        self.grown: tuple[GrownLine, ...] | None = None
        """Once closed, the lines that allocated what grew; None where that was not recorded."""

    def take(self, samples: list[MemorySample]) -> None:
        """Append what is in use now, and look at how that grows."""
        process = self._driver.bytes() if self._driver is not None and _on_a_gpu() else None
        samples.append(sample()._replace(process=process))
        self._steps = len(samples)
        self.allocations.look(samples)

    def close(self) -> None:
        """Stop. Harmless when stopped."""
        found = self.allocations.close(self._steps)
        self.grown = self.grown if found is None else found
        if self._driver is not None:
            self._driver.close()


def sample() -> MemorySample:
    """Return the memory in use now. Imports nothing and initialises nothing; takes some 10 us per GPU."""
    statistics = _statistics()
    host = _resident()
    if not statistics:
        return MemorySample(None, None, host, None)
    return MemorySample(
        allocated=_total(s["allocated_bytes"]["all"]["current"] for s in statistics),
        reserved=_total(s["reserved_bytes"]["all"]["current"] for s in statistics),
        host=host,
        device_mallocs=_total(s.get("num_device_alloc") for s in statistics),
        device_frees=_total(s.get("num_device_free") for s in statistics),
    )


def measured_samples(measurement: Measurement, of: Of) -> list[int] | None:
    """Return the bytes at the end of each step after warm-up; None if a step has none."""
    if measurement.memory is None:
        return None
    samples = [getattr(step, of) for step in measurement.memory[measurement.warmup :]]
    return samples if samples and None not in samples else None


def growth(measurement: Measurement, of: Of) -> Estimate | None:
    """Return the growth of a kind of memory in bytes per step; None if it was not measured, or in too few steps."""
    samples = measured_samples(measurement, of)
    return slope_estimate(samples) if samples is not None and len(samples) >= LEAST_SAMPLES else None


def peak_over_baseline(measurement: Measurement, of: Of) -> int | None:
    """Return how far memory rose, at the ends of steps, above what it was at the end of warm-up; None if not measured.

    Without warm-up the first step's end is what it is compared with.
    """
    if measurement.memory is None:
        return None
    samples = [getattr(step, of) for step in measurement.memory[max(0, measurement.warmup - 1) :]]
    return max(samples) - samples[0] if samples and None not in samples else None


def device_mallocs_per_step(measurement: Measurement) -> Mallocs | None:
    """Return the device mallocs of the steps after warm-up; None where they are not counted.

    Without warm-up there is no count to compare the first step's with, and it is left out.
    """
    return _calls_per_step(measurement, "device_mallocs")


def device_frees_per_step(measurement: Measurement) -> Mallocs | None:
    """Return the calls of ``cudaFree`` likewise."""
    return _calls_per_step(measurement, "device_frees")


def _calls_per_step(measurement: Measurement, name: str) -> Mallocs | None:
    if measurement.memory is None:
        return None
    counts = [getattr(step, name) for step in measurement.memory[max(0, measurement.warmup - 1) :]]
    known = [count for count in counts if count is not None]
    if len(known) < max(2, len(counts)):
        return None
    calls = [after - before for before, after in pairwise(known)]
    return Mallocs(median(calls), max(calls))


def _on_a_gpu() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and not simulation_is_on()


def _statistics() -> list[dict[str, Any]]:
    """Return the allocator's statistics of each GPU; none before CUDA is initialised, or if the allocator has none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    try:
        return [torch.cuda.memory_stats_as_nested_dict(index) for index in range(torch.cuda.device_count())]
    except (RuntimeError, NotImplementedError):  # a pluggable allocator need not keep statistics
        return []


def _total(parts: Iterable[int | None]) -> int | None:
    total = 0
    for part in parts:
        if part is None:
            return None
        total += part
    return total


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
