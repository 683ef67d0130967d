"""Growth of memory from step to step, from the samples of a measurement.

Growth is the slope over the steps after warm-up, so that neither one late allocation nor a varying batch size is taken
for a leak.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pytest_gpusync.model.estimates import LEAST_SAMPLES, slope_estimate

if TYPE_CHECKING:
    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.measurement import Measurement

Of = Literal["allocated", "reserved", "process", "host"]
"""Whose memory: torch's tensors, torch's allocator with its cache, all that the driver has given the process on its
GPUs, or the process's resident set."""

OF: Final[tuple[Of, ...]] = ("allocated", "reserved", "process", "host")


class Mallocs(NamedTuple):
    """Calls of ``cudaMalloc`` and its like, or of ``cudaFree``, in the steps after warm-up."""

    median: float
    max: int


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
