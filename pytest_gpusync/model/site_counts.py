"""The syncs of a measurement by site and by device, as the run file and the terminal show them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_gpusync.model.line_counts import count_by_device, counted_per_step, line_counts
from pytest_gpusync.model.measurement import SiteCount

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import DeviceCount, Measurement, Sync


def syncs_per_step(measurement: Measurement) -> list[int]:
    """Return the counted syncs of each measured step, in order: without warm-up and what follows the last step."""
    return counted_per_step(line_counts(measurement), measurement)


def device_counts(measurement: Measurement) -> tuple[DeviceCount, ...]:
    """Return the counted syncs of the whole region by device, warm-up included."""
    return count_by_device(sync for sync in measurement.all_syncs if sync.allowed is None and not sync.background)


def site_counts(measurement: Measurement) -> list[SiteCount]:
    """Return one entry per line, kind, thread and allow reason, ordered by most syncs per step."""
    groups: dict[tuple[object, ...], list[Sync]] = {}
    for sync in measurement.all_syncs:
        key = (sync.site, sync.kind, sync.direction, sync.thread, sync.allowed, sync.background)
        groups.setdefault(key, []).append(sync)
    counts = [_site_count(group, measurement) for group in groups.values()]
    return sorted(
        counts,
        key=lambda c: (
            c.allowed is not None or c.background,
            -c.per_step_max,
            -c.syncs,
            c.site.path,
            c.site.line,
        ),
    )


def _site_count(group: list[Sync], measurement: Measurement) -> SiteCount:
    first = group[0]
    by_step = Counter(sync.step for sync in group if sync.step is not None and sync.step >= measurement.warmup)
    blocked = [sync.blocked_ns for sync in group if sync.blocked_ns is not None]
    nbytes = [sync.nbytes for sync in group if sync.nbytes is not None]
    phases_seen = Counter(sync.phase for sync in group)
    return SiteCount(
        site=first.site,
        kind=first.kind,
        direction=first.direction,
        syncs=len(group),
        steps=len(by_step),
        per_step_max=max(by_step.values(), default=0),
        blocked_ms=sum(blocked) / 1e6 if blocked else None,
        nbytes=sum(nbytes) if nbytes else None,
        phase=phases_seen.most_common(1)[0][0],
        thread=first.thread,
        allowed=first.allowed,
        background=first.background,
        devices=count_by_device(group),
    )
