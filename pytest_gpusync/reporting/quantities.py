"""Memory and time of a region as objects of the run file."""

from __future__ import annotations

from math import isfinite
from statistics import median
from typing import TYPE_CHECKING, Any

from pytest_gpusync import memory, timing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.estimates import Estimate
    from pytest_gpusync.events import Measurement
    from pytest_gpusync.pairs import Ratio

Document = dict[str, Any]


def memory_document(measurement: Measurement) -> Document | None:
    """Return the memory object of a region; None where memory was not sampled."""
    if measurement.memory is None:
        return None
    mallocs = memory.device_mallocs_per_step(measurement)
    return {
        **{of: _memory_of(measurement, of) for of in memory.OF},
        "device_mallocs_per_step": None if mallocs is None else mallocs._asdict(),
    }


def timing_document(measurement: Measurement) -> Document | None:
    """Return the timing object of a region; None where its steps were not timed."""
    found = timing.times(measurement)
    ratio = timing.dispatch_ratio(measurement)
    if found is None or ratio is None:
        return None
    return {
        "issue_ms": _spread(found.issue),
        "complete_ms": _spread(found.complete),
        "dispatch_ratio": estimate_document(ratio),
        "ratio": None,
    }


def ratio_document(ratio: Ratio) -> Document:
    """Return the timing object of what gpu_elapsed.ratio measured."""
    measured = {
        "outcome": ratio.outcome,
        "value": ratio.value,
        "low": ratio.low,
        "high": ratio.high if isfinite(ratio.high) else None,
        "confidence": ratio.confidence,
        "rounds": ratio.rounds,
        "calls": ratio.calls,
        "a_ms": ratio.a_ms,
        "b_ms": ratio.b_ms,
        "note": ratio.note,
    }
    return {"issue_ms": None, "complete_ms": None, "dispatch_ratio": None, "ratio": measured}


def estimate_document(estimate: Estimate) -> Document:
    """Return an estimate with its interval; a bound that the samples do not give is null."""
    low, high = (bound if isfinite(bound) else None for bound in (estimate.low, estimate.high))
    return {"value": estimate.value, "low": low, "high": high, "confidence": estimate.confidence}


def _memory_of(measurement: Measurement, of: memory.Of) -> Document | None:
    samples = memory.measured_samples(measurement, of)
    if samples is None:
        return None
    growth = memory.growth(measurement, of)
    return {
        "first": samples[0],
        "last": samples[-1],
        "max": max(samples),
        "growth": None if growth is None else estimate_document(growth),
    }


def _spread(nanoseconds: Sequence[int]) -> Document:
    return {"median": median(nanoseconds) / 1e6, "max": max(nanoseconds) / 1e6}
