"""The syncs of a region one by one, as columns of numbers: the data of a timeline.

If the recorder reads a clock, each sync has the time at which it began and how long the host waited. Otherwise, as on
the simulated device, only order and step are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpusync.model.measurement import Measurement, SiteCount

SYNCS_KEPT: Final = 10_000
"""Most syncs kept per region, from the first one on: a run file must stay readable by any tool."""

STEP_ENDS_KEPT: Final = 10_000


def sequence_document(measurement: Measurement, counts: Sequence[SiteCount]) -> dict[str, Any]:
    """Return the order object of a region: entry i of each column is its i-th sync, including warm-up and allowed ones.

    Times are milliseconds after the region opened; null if the recorder reads no clock.

    Args:
        measurement: a closed region.
        counts: its sites, as the region object lists them; the column ``sites`` holds indices into this list.
    """
    index = {
        (count.site, count.kind, count.direction, count.thread, count.allowed, count.background): number
        for number, count in enumerate(counts)
    }
    kept = measurement.all_syncs[:SYNCS_KEPT]
    times = measurement.times
    return {
        "sites": [
            index[sync.site, sync.kind, sync.direction, sync.thread, sync.allowed, sync.background] for sync in kept
        ],
        "steps": [sync.step for sync in kept],
        "began_ms": _column(sync.began_ns for sync in kept),
        "blocked_ms": _column(sync.blocked_ns for sync in kept),
        "left_out": len(measurement.all_syncs) - len(kept),
        "step_ends_ms": None if times is None else _column(times.step_ends[:STEP_ENDS_KEPT]) or [],
        "closed_ms": None if times is None else _milliseconds(times.closed),
    }


def _column(nanoseconds: Iterable[int | None]) -> list[float | None] | None:
    """Return times in milliseconds; None if none is known."""
    column = [None if time is None else _milliseconds(time) for time in nanoseconds]
    return column if any(time is not None for time in column) else None


def _milliseconds(nanoseconds: int) -> float:
    # A tenth of a microsecond is shorter than any call into the driver, and every digit is written many times.
    return round(nanoseconds / 1e6, 4)
