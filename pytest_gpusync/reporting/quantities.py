"""Memory and time of a region as objects of the run file."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from pytest_gpusync.elapsed.decomposition import Decomposition
from pytest_gpusync.elapsed.overlap import Overlap
from pytest_gpusync.elapsed.paired import Ratio
from pytest_gpusync.elapsed.stalls import Stalls
from pytest_gpusync.model import memory_growth, step_times
from pytest_gpusync.model.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.elapsed.stalls import Stall
    from pytest_gpusync.model.measurement import Measurement

Document = dict[str, Any]
Elapsed = Ratio | Overlap | Decomposition | Stalls | Estimate
"""The results of gpu_elapsed's methods; an estimate is a dispatch ratio."""

_NO_ELAPSED: Final[Document] = {"ratio": None, "overlap": None, "decomposition": None, "stalls": None}


def memory_document(measurement: Measurement) -> Document | None:
    """Return the memory object of a region; None if memory was not sampled."""
    if measurement.memory is None:
        return None
    mallocs, frees = (
        memory_growth.device_mallocs_per_step(measurement),
        memory_growth.device_frees_per_step(measurement),
    )
    grown = measurement.grown
    return {
        **{of: _memory_of(measurement, of) for of in memory_growth.MEMORY_KINDS},
        "device_mallocs_per_step": None if mallocs is None else mallocs._asdict(),
        "device_frees_per_step": None if frees is None else frees._asdict(),
        "grown": None if grown is None else [line._asdict() for line in grown],
    }


def timing_document(measurement: Measurement) -> Document | None:
    """Return the timing object of a region; None if its steps were not timed."""
    found = step_times.times(measurement)
    ratio = step_times.dispatch_ratio(measurement)
    if found is None or ratio is None:
        return None
    return {
        "issue_ms": _median_and_max(found.issue),
        "complete_ms": _median_and_max(found.complete),
        "dispatch_ratio": estimate_document(ratio),
        "max_in_flight": step_times.most_in_flight(measurement),
        "note": None if measurement.disturbance is None else measurement.disturbance.note,
        **_NO_ELAPSED,
    }


def elapsed_document(found: Elapsed) -> Document:
    """Return the timing object of a result of gpu_elapsed."""
    nothing: Document = {"issue_ms": None, "complete_ms": None, "dispatch_ratio": None, "max_in_flight": None}
    if isinstance(found, Estimate):
        return {**nothing, **_NO_ELAPSED, "dispatch_ratio": estimate_document(found)}
    if isinstance(found, Ratio):
        return {**nothing, **_NO_ELAPSED, "ratio": _finite(asdict(found))}
    if isinstance(found, Overlap):
        return {**nothing, **_NO_ELAPSED, "overlap": _finite(asdict(found))}
    if isinstance(found, Stalls):
        sites = [_finite(_stall_document(stall)) for stall in found.sites]
        return {**nothing, **_NO_ELAPSED, "stalls": {**asdict(found), "idle_ms": found.idle_ms, "sites": sites}}
    predicted = {"each_predicted_ms": found.each_predicted_ms, "end_predicted_ms": found.end_predicted_ms}
    return {**nothing, **_NO_ELAPSED, "decomposition": {**asdict(found), **predicted}}


def _stall_document(stall: Stall) -> Document:
    document = asdict(stall)
    site = document.pop("site")
    return {**site, **document}


def _finite(document: Document) -> Document:
    """Return the object with null for infinite ends of an interval."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value for name, value in document.items()
    }


def estimate_document(estimate: Estimate) -> Document:
    """Return an estimate with its interval; an unbounded end is null."""
    low, high = (bound if isfinite(bound) else None for bound in (estimate.low, estimate.high))
    return {"value": estimate.value, "low": low, "high": high, "confidence": estimate.confidence}


def _memory_of(measurement: Measurement, of: memory_growth.MemoryKind) -> Document | None:
    samples = memory_growth.measured_samples(measurement, of)
    if samples is None:
        return None
    growth = memory_growth.growth(measurement, of)
    return {
        "first": samples[0],
        "last": samples[-1],
        "max": max(samples),
        "peak_over_baseline": memory_growth.peak_over_baseline(measurement, of),
        "growth": None if growth is None else estimate_document(growth),
    }


def _median_and_max(nanoseconds: Sequence[int]) -> Document:
    return {"median": median(nanoseconds) / 1e6, "max": max(nanoseconds) / 1e6}
