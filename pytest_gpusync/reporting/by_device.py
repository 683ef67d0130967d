"""Syncs by device, as reports show them if a program waits for more than ``cuda:0``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpusync.model.measurement import DeviceCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_gpusync.model.document import Document


def counts_from(documents: Iterable[Document] | None) -> list[DeviceCount]:
    """Return the counts of a region or site object; empty for one of an earlier version, which has none."""
    return [DeviceCount(entry["device"], entry["syncs"], entry["blocked_ms"]) for entry in documents or ()]


def uses_other_devices(counts: Iterable[DeviceCount]) -> bool:
    """Return whether there is a sync of another device than ``cuda:0``."""
    return any(count.device for count in counts)


def device_label(device: int | None) -> str:
    """Return the name of a device, as torch writes it."""
    return "an unknown device" if device is None else f"cuda:{device}"


def counts_text(counts: Sequence[DeviceCount]) -> str:
    """Return "1000 on cuda:0 (9.87 ms), 1000 on cuda:1 (2.31 ms)"; without times if none were taken."""
    return ", ".join(
        f"{count.syncs} on {device_label(count.device)}"
        + ("" if count.blocked_ms is None else f" ({count.blocked_ms:.3g} ms)")
        for count in counts
    )


def place_text(counts: Sequence[DeviceCount]) -> str:
    """Return "on cuda:1" for the syncs of one device, otherwise what :func:`counts_text` does."""
    return f"on {device_label(counts[0].device)}" if len(counts) == 1 else counts_text(counts)


def merged(documents: Iterable[Iterable[Document] | None]) -> list[DeviceCount]:
    """Return the sums of several counts, in the order of the ordinals."""
    sums: dict[int | None, DeviceCount] = {}
    for found in documents:
        for count in counts_from(found):
            before = sums.get(count.device, DeviceCount(count.device, 0, None))
            times = [time for time in (before.blocked_ms, count.blocked_ms) if time is not None]
            sums[count.device] = DeviceCount(count.device, before.syncs + count.syncs, sum(times) if times else None)
    return sorted(sums.values(), key=lambda count: (count.device is None, count.device or 0))
