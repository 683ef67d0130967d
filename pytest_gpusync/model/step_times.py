"""What the times of steps show. A step takes time to issue on the host, and time to complete on the device.

The host can run ahead of the device until the driver's launch queue (about a thousand launches) is full. Then a launch
waits for room, and the time to issue no longer is the host's own: see :func:`launch_queue_may_be_full`.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.model.estimates import median_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.measurement import Measurement

SIMULATED: Final = "time is not simulated: times need a real GPU"
"""Why nothing is timed on the simulated device."""

_FULL_QUEUE_SHARE: Final = 0.25
"""If the device is this share of a step behind when the step returns, the launch queue may be full."""


class Times(NamedTuple):
    """Times of the steps after warm-up."""

    issue: list[int]
    complete: list[int]
    ahead: list[int]


def times(measurement: Measurement) -> Times | None:
    """Return the times of the steps after warm-up; None if not all of them were timed."""
    if measurement.timing is None:
        return None
    steps = measurement.timing[measurement.warmup :]
    complete = [step.complete for step in steps if step.complete]
    ahead = [step.ahead for step in steps if step.ahead is not None]
    if not steps or not len(complete) == len(ahead) == len(steps):
        return None
    return Times([step.issue for step in steps], complete, ahead)


def dispatch_ratio(measurement: Measurement) -> Estimate | None:
    """Return the median, over the steps after warm-up, of time to issue divided by time to complete; None if not timed.

    Near 1 the device waits for the host, or the host for the device; well below 1 the host runs ahead.
    """
    found = times(measurement)
    if found is None:
        return None
    return median_estimate([issue / complete for issue, complete in zip(found.issue, found.complete, strict=True)])


def latency_ms(measurement: Measurement) -> Estimate | None:
    """Return the median time of the steps after warm-up in milliseconds, from their start on the host to the end of
    their work on the device; None if not timed.
    """
    steps = (measurement.timing or ())[measurement.warmup :]
    times = [step.issue + step.ahead for step in steps if step.ahead is not None]
    return median_estimate([time / 1e6 for time in times]) if times and len(times) == len(steps) else None


def most_in_flight(measurement: Measurement) -> int | None:
    """Return the most steps in flight when a step after warm-up returned, including itself; None if not timed."""
    steps = (measurement.timing or ())[measurement.warmup :]
    counts = [step.in_flight for step in steps if step.in_flight is not None]
    return max(counts) if steps and len(counts) == len(steps) else None


def launch_queue_may_be_full(measurement: Measurement) -> bool:
    """Return whether launches may have waited because the driver's queue was full.

    This may be so if no step made a sync and the device was still well behind when the steps returned. Then only the
    queue can have held the host back, and the time to issue is an upper bound of the host's own time.
    """
    found = times(measurement)
    if found is None or any(sync.step is None or sync.step >= measurement.warmup for sync in measurement.all_syncs):
        return False
    return _steps_behind(found.ahead, found.complete) >= _FULL_QUEUE_SHARE


def _steps_behind(ahead: Sequence[int], complete: Sequence[int]) -> float:
    """Return the median share of a step that the device was behind."""
    return median(late / whole for late, whole in zip(ahead, complete, strict=True))
