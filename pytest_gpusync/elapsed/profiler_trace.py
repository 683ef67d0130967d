"""Steps as torch.profiler records them: the host's calls into the driver, and the device work that each of them queued.

Only device activities are recorded, runtime calls among them. That costs about a microsecond per launch, and the times
of the device's work are right. The host is slowed down; its times are taken from a run without the profiler.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pytest_gpusync.elapsed.paired import wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpusync.model.measurement import Kind

SYNC_CALLS: Final[dict[str, Kind]] = {
    "cudaStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "device",
    "cudaEventSynchronize": "event",
    "cudaFree": "free",
    "cudaMemcpy": "copy",
}
"""Runtime calls that make the host wait."""

_COPY: Final = "cudaMemcpyAsync"
_MARK: Final = "cudaDeviceSynchronize"
_CLOCKS_AGREE_NS: Final = 200_000
"""Most difference of the profiler's clock from the host's between two marks."""


class TraceUnreadable(RuntimeError):
    """The profiler did not record the steps as they ran; one clause."""


class Mark(NamedTuple):
    """A device synchronize between two steps, by the host's clock in nanoseconds."""

    entered: int
    left: int


class TraceEvent(NamedTuple):
    """One activity as the profiler lists it."""

    name: str
    on_device: bool
    start: int
    """Nanoseconds."""
    end: int
    correlation: int
    """A call of the host and the work it queued have the same number."""
    resource: int
    """The stream of device work, the thread of a call."""


class DeviceWork(NamedTuple):
    """The work that one call queued."""

    name: str
    start: int
    """Nanoseconds after the start of the step, as all times here."""
    end: int
    stream: int


class Call(NamedTuple):
    """One call of the host into the driver."""

    name: str
    entered: int
    left: int
    thread: int
    work: DeviceWork | None

    @property
    def is_copy(self) -> bool:
        """Whether it is an asynchronous copy between host and device."""
        return self.name == _COPY and self.work is not None and ("HtoD" in self.work.name or "DtoH" in self.work.name)

    @property
    def blocks_host(self) -> bool:
        """Whether it copies into host memory that is not pinned: then it always waits."""
        return self.is_copy and self.work is not None and "DtoH" in self.work.name and "Pageable" in self.work.name


class TracedStep(NamedTuple):
    """The calls of one step, in order, and its length on the host."""

    calls: tuple[Call, ...]
    length: int


def trace_steps(step: Callable[[], object], count: int) -> list[TracedStep]:
    """Run `count` steps under torch.profiler, each from an idle device to an idle device.

    Raises:
        TraceUnreadable: the profiler recorded nothing, or other calls than were made.
    """
    from torch.autograd.profiler import profile

    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        # The first calls of each kind include the one-time cost of tracing them.
        _mark()
        step()
        marks = [_mark()]
        for _ in range(count):
            step()
            marks.append(_mark())
    listed: Any = profiler.kineto_results
    return split_steps([_event(event) for event in listed.events()], marks)


def busy_ms(steps: Sequence[TracedStep]) -> float | None:
    """Return the median milliseconds per step in which the device had work, on any stream."""
    found = []
    for step in steps:
        spans = sorted((call.work.start, call.work.end) for call in step.calls if call.work is not None)
        busy = until = 0
        for start, end in spans:
            busy += max(0, end - max(start, until))
            until = max(until, end)
        found.append(busy / 1e6)
    return median(found) if found else None


def _mark() -> Mark:
    """Leave a device synchronize in the trace, and return when it was called."""
    entered = time.time_ns()
    wait_until_idle()
    return Mark(entered, time.time_ns())


def _event(event: Any) -> TraceEvent:
    on_device = "CUDA" in str(event.device_type())
    start = event.start_ns()
    end = start + event.duration_ns()
    resource = event.device_resource_id() if on_device else event.start_thread_id()
    return TraceEvent(event.name(), on_device, start, end, event.correlation_id(), resource)


def split_steps(events: Sequence[TraceEvent], marks: Sequence[Mark]) -> list[TracedStep]:
    """Return the steps between the marks.

    Args:
        events: what the profiler listed.
        marks: the device synchronizes between steps, on a clock that may be off by a constant.

    Raises:
        TraceUnreadable: the marks are not among the events.
    """
    calls = sorted((event for event in events if not event.on_device), key=lambda event: event.start)
    work = {event.correlation: event for event in events if event.on_device}
    found = _find_marks([event for event in calls if event.name == _MARK], marks)
    starts = [event.start for event in calls]
    steps = []
    for before, after in pairwise(found):
        begin, end = before.end, after.start
        inside = calls[bisect_left(starts, begin) : bisect_left(starts, end)]
        steps.append(
            TracedStep(tuple(_call(event, work.get(event.correlation), begin) for event in inside), end - begin)
        )
    return steps


def _find_marks(candidates: Sequence[TraceEvent], marks: Sequence[Mark]) -> list[TraceEvent]:
    """Return the synchronizes that are the marks: of all that lie as far apart, those that lie so most exactly, and
    take as long. A step may itself synchronize right after each mark.
    """
    best: tuple[int, list[TraceEvent]] | None = None
    starts = [event.start for event in candidates]
    for first in candidates:
        matched = _match(candidates, starts, marks, first.start - marks[0].entered)
        if matched is not None and (best is None or matched[0] < best[0]):
            best = matched
    if best is None:
        raise TraceUnreadable(
            f"torch.profiler listed {len(candidates)} device synchronizes, and not those between the steps"
        )
    return best[1]


def _match(
    candidates: Sequence[TraceEvent], starts: Sequence[int], marks: Sequence[Mark], offset: int
) -> tuple[int, list[TraceEvent]] | None:
    """Return the synchronizes nearest to the marks, if the profiler's clock is ahead by `offset`, after the sum of
    their distances; None if one is too far away, or two marks have the same.
    """
    total, found = 0, set()
    for entered, left in marks:
        begin = bisect_left(starts, entered + offset - _CLOCKS_AGREE_NS)
        end = bisect_left(starts, entered + offset + _CLOCKS_AGREE_NS)
        near = [
            (abs(event.start - offset - entered) + abs(event.end - offset - left), index)
            for index, event in enumerate(candidates[begin:end], begin)
        ]
        distance, index = min(near, default=(_CLOCKS_AGREE_NS, 0))
        if distance >= _CLOCKS_AGREE_NS:
            return None
        total += distance
        found.add(index)
    return (total, [candidates[index] for index in sorted(found)]) if len(found) == len(marks) else None


def _call(event: TraceEvent, work: TraceEvent | None, begin: int) -> Call:
    queued = None if work is None else DeviceWork(work.name, work.start - begin, work.end - begin, work.resource)
    return Call(event.name, event.start - begin, event.end - begin, event.resource, queued)
