"""What the times of steps tell. A step takes time to issue on the host, to complete on the device.

The host can run ahead of the device only until the driver's queue of launches (some thousand) is full; from then on a
launch waits for room, and the time to issue is no longer the host's own. :func:`may_have_waited_for_room` tells.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.model.estimates import median_estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.model.estimates import Estimate
    from pytest_gpusync.model.measurement import Measurement

SIMULATED: Final = "time is not simulated: it takes a real GPU"
"""Why nothing is timed on the simulated device."""

_AHEAD: Final = 0.25
"""Part of a step that the device is behind when the step returns, from which its queue may be full."""


class Times(NamedTuple):
    """The steps after warm-up that were timed, each with its time on the device."""

    issue: list[int]
    complete: list[int]
    ahead: list[int]


def times(measurement: Measurement) -> Times | None:
    """Return the times of the steps after warm-up; None if they were not all timed."""
    if measurement.timing is None:
        return None
    steps = measurement.timing[measurement.warmup :]
    complete = [step.complete for step in steps if step.complete]
    ahead = [step.ahead for step in steps if step.ahead is not None]
    if not steps or not len(complete) == len(ahead) == len(steps):
        return None
    return Times([step.issue for step in steps], complete, ahead)


def dispatch_ratio(measurement: Measurement) -> Estimate | None:
    """Return the median over the steps after warm-up of time to issue by time to complete; None if not timed.

    Near 1 the device is kept waiting by the host, or the host by the device; well below 1 the host runs ahead.
    """
    found = times(measurement)
    if found is None:
        return None
    return median_estimate([issue / complete for issue, complete in zip(found.issue, found.complete, strict=True)])


def most_in_flight(measurement: Measurement) -> int | None:
    """Return the most steps that were in flight when one after warm-up returned, itself included; None if not timed."""
    steps = (measurement.timing or ())[measurement.warmup :]
    counts = [step.in_flight for step in steps if step.in_flight is not None]
    return max(counts) if steps and len(counts) == len(steps) else None


def may_have_waited_for_room(measurement: Measurement) -> bool:
    """Tell whether launches may have waited because the driver's queue was full.

    So it is where no step made a sync and yet the device was well behind when the steps returned: then nothing but
    the queue can have held the host back, and the time to issue is an upper bound of what issuing took.
    """
    found = times(measurement)
    if found is None or any(sync.step is None or sync.step >= measurement.warmup for sync in measurement.all_syncs):
        return False
    return _behind(found.ahead, found.complete) >= _AHEAD


def _behind(ahead: Sequence[int], complete: Sequence[int]) -> float:
    """Return by how many steps the device was behind, in the median."""
    return median(late / whole for late, whole in zip(ahead, complete, strict=True))
