"""The order in which the syncs of a region were made, as columns of numbers: what a timeline can be drawn from.

When a sync began is not recorded, so nothing here is a point in time: only the order, the step, and, where a clock was
read, how long the host waited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.events import Measurement, SiteCount

ORDER_KEPT: Final = 10_000
"""Syncs of a region whose order is kept, from the first on: a run file must stay readable by any tool."""


def order_document(measurement: Measurement, counts: Sequence[SiteCount]) -> dict[str, Any]:
    """Return the order object of a region: entry i of each column is its i-th sync, warm-up and allowed ones included.

    Args:
        measurement: a closed region.
        counts: its sites, as the region object lists them; the column ``sites`` holds indices into this list.
    """
    index = {
        (count.site, count.kind, count.direction, count.thread, count.allowed, count.background): number
        for number, count in enumerate(counts)
    }
    kept = measurement.all_syncs[:ORDER_KEPT]
    timed = any(sync.blocked_ns is not None for sync in kept)
    return {
        "sites": [
            index[sync.site, sync.kind, sync.direction, sync.thread, sync.allowed, sync.background] for sync in kept
        ],
        "steps": [sync.step for sync in kept],
        "blocked_ms": [None if s.blocked_ns is None else s.blocked_ns / 1e6 for s in kept] if timed else None,
        "left_out": len(measurement.all_syncs) - len(kept),
    }
