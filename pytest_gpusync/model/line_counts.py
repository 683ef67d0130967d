"""The syncs of a measurement by source line and step, for budgets and reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_gpusync.model.measurement import DeviceCount

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_gpusync.model.measurement import Kind, Measurement, Sync


@dataclass(frozen=True, slots=True)
class LineCount:
    """All syncs of one source line, of any kind, thread and library frame."""

    path: str
    line: int
    function: str
    kind: Kind
    """Of the first sync."""
    thread: str
    """Of the first sync."""
    by_step: tuple[int, ...]
    """Syncs in each measured step, in order."""
    outside_measured_steps: int
    """Syncs in warm-up steps and after the last step."""
    via: tuple[str, ...] = ()
    """The library frames between the line and its syncs, the one with most syncs first."""
    allowed: str | None = None
    background: bool = False
    cause: str | None = None
    """What makes the library wait, where that is known of all syncs of the line; see :func:`cause_of`."""
    devices: tuple[DeviceCount, ...] = ()
    """All of its syncs by device, in the order of the ordinals."""

    @property
    def counted(self) -> bool:
        """True if budgets count these syncs: neither allowed nor made by a background thread."""
        return self.allowed is None and not self.background


CHOICE_OF_ALGORITHM: Final = "cuDNN tries its algorithms, once per shape"


def cause_of(kind: Kind, via: str | None) -> str | None:
    """Return what makes a library wait, if the kind of the call and the library frame tell.

    A convolution waits for the device or for an event only while cuDNN times its algorithms for a new shape
    (``torch.backends.cudnn.benchmark``).
    """
    is_convolution = via is not None and ("torch/nn/modules/conv.py:" in via or "in ConvolutionBackward" in via)
    return CHOICE_OF_ALGORITHM if kind in ("device", "event") and is_convolution else None


def measured_steps(measurement: Measurement) -> range:
    """Return the indices of the steps after warm-up; empty when all of them are warm-up."""
    return range(min(measurement.warmup, measurement.steps), measurement.steps)


def line_counts(measurement: Measurement) -> list[LineCount]:
    """Return the lines that synced, ordered by most syncs in one measured step."""
    groups: dict[tuple[object, ...], list[Sync]] = {}
    for sync in measurement.all_syncs:
        site = sync.site
        groups.setdefault((site.path, site.line, sync.allowed, sync.background), []).append(sync)
    found = [_line(group, measured_steps(measurement)) for group in groups.values()]
    return sorted(
        found,
        key=lambda line: (-max(line.by_step, default=0), -sum(line.by_step), line.path, line.line),
    )


def counted_per_step(found: Iterable[LineCount], measurement: Measurement) -> list[int]:
    """Return the number of counted syncs in each measured step, in order."""
    counts = [0] * len(measured_steps(measurement))
    for line in found:
        if line.counted:
            counts = [count + made for count, made in zip(counts, line.by_step, strict=True)]
    return counts


def count_by_device(syncs: Iterable[Sync]) -> tuple[DeviceCount, ...]:
    """Return how many of `syncs` waited for each device and for how long, in the order of the ordinals."""
    groups: dict[int | None, list[int | None]] = {}
    for sync in syncs:
        groups.setdefault(sync.device, []).append(sync.blocked_ns)
    counts = []
    for device in sorted(groups, key=lambda device: (device is None, device)):
        times = [blocked for blocked in groups[device] if blocked is not None]
        counts.append(DeviceCount(device, len(groups[device]), sum(times) / 1e6 if times else None))
    return tuple(counts)


def _line(syncs: list[Sync], steps: range) -> LineCount:
    first = syncs[0]
    made = Counter(sync.step for sync in syncs)
    by_step = tuple(made[step] for step in steps)
    vias = Counter(sync.site.via for sync in syncs if sync.site.via is not None)
    causes = {cause_of(sync.kind, sync.site.via) for sync in syncs}
    return LineCount(
        path=first.site.path,
        line=first.site.line,
        function=first.site.function,
        kind=first.kind,
        thread=first.thread,
        by_step=by_step,
        outside_measured_steps=len(syncs) - sum(by_step),
        via=tuple(via for via, _ in vias.most_common()),
        allowed=first.allowed,
        background=first.background,
        cause=causes.pop() if len(causes) == 1 else None,
        devices=count_by_device(syncs),
    )
