"""Growth of memory from step to step, from the samples of a measurement.

Growth is the slope over the steps after warm-up, so neither one late allocation nor a varying batch size looks like a
leak.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pytest_gpusync.model.estimates import MIN_SAMPLES, slope_estimate

if TYPE_CHECKING:
    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.measurement import Measurement

MemoryKind = Literal["allocated", "reserved", "process", "host"]
"""Which memory: torch's tensors, torch's allocator with its cache, all that the driver has given the process on its
GPUs, or the process's resident set."""

MEMORY_KINDS: Final[tuple[MemoryKind, ...]] = ("allocated", "reserved", "process", "host")


class CallsPerStep(NamedTuple):
    """Calls of ``cudaMalloc`` and similar functions, or of ``cudaFree``, in the steps after warm-up."""

    median: float
    max: int


def measured_samples(measurement: Measurement, of: MemoryKind) -> list[int] | None:
    """Return the bytes at the end of each step after warm-up; None if a step has no sample."""
    if measurement.memory is None:
        return None
    samples = [getattr(step, of) for step in measurement.memory[measurement.warmup :]]
    return samples if samples and None not in samples else None


def growth(measurement: Measurement, of: MemoryKind) -> Estimate | None:
    """Return the growth of a kind of memory in bytes per step; None if it was not measured, or there were too few
    steps.
    """
    samples = measured_samples(measurement, of)
    return slope_estimate(samples) if samples is not None and len(samples) >= MIN_SAMPLES else None


def peak_over_baseline(measurement: Measurement, of: MemoryKind) -> int | None:
    """Return the most bytes at the end of a step above those at the end of warm-up; None if not measured.

    Without warm-up, the end of the first step is the reference.
    """
    if measurement.memory is None:
        return None
    samples = [getattr(step, of) for step in measurement.memory[max(0, measurement.warmup - 1) :]]
    return max(samples) - samples[0] if samples and None not in samples else None


def device_mallocs_per_step(measurement: Measurement) -> CallsPerStep | None:
    """Return the device allocations per step after warm-up; None if they are not counted.

    Without warm-up the first step is left out: there is no earlier count to subtract from its own.
    """
    return _calls_per_step(measurement, "device_mallocs")


def device_frees_per_step(measurement: Measurement) -> CallsPerStep | None:
    """The same for calls of ``cudaFree``."""
    return _calls_per_step(measurement, "device_frees")


def _calls_per_step(measurement: Measurement, name: str) -> CallsPerStep | None:
    if measurement.memory is None:
        return None
    counts = [getattr(step, name) for step in measurement.memory[max(0, measurement.warmup - 1) :]]
    known = [count for count in counts if count is not None]
    if len(known) < max(2, len(counts)):
        return None
    calls = [after - before for before, after in pairwise(known)]
    return CallsPerStep(median(calls), max(calls))
