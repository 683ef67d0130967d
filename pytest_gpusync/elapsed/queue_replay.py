"""Replays steps as two queues, the host's calls and the device's work, with and without the waits of one line.

A step is a list of :class:`Op`: the host time before each call, the work it queues, and whether it waits. The host
executes them in order; the device executes its work in order; a wait advances the host to the moment when the device
has nothing left. Device times come from a trace, host times from steps that ran without one.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.elapsed.profiler_trace import SYNC_CALLS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpusync.elapsed.profiler_trace import TracedStep
    from pytest_gpusync.model.measurement import Kind

_QUEUED_NS: Final = 5_000
"""If work was requested this long before the device started it, it was waiting in the queue, and the time since the
previous work is a gap of the device. Work requested later found the device idle."""

_TRACE_SHARE: Final = 0.8
"""Largest share of the time between two calls that tracing may have added."""

_FIT_ROUNDS: Final = 14


class CannotReplay(ValueError):
    """Two queues do not describe these steps; one clause."""


class Wait(NamedTuple):
    """A call that waits for the device, with the copy it completes."""

    site: int
    """Index of the line that made it."""
    copy: int
    """Device time of its copy; 0 if it has none."""
    reads: bool
    """Whether its copy is to the host, and is not needed without the wait; a copy to the device is needed anyway."""
    call: int
    """Host time of the call if there is nothing to wait for."""
    overhead: int = 0
    """Host time before the call that belongs to it: what reading a value takes in addition."""


class Op(NamedTuple):
    """One call of the host. All times are in nanoseconds."""

    host: float
    """Host time between the previous call and this one, without waiting in either."""
    work: int
    """Device time of the work it queues; 0 if none."""
    wait: Wait | None = None


class Delays(NamedTuple):
    """Delays between host and device."""

    launch: float
    """From the start of a call to the start of its work on an idle device."""
    gap: float
    """Between one piece of work and the next one queued behind it."""
    wakeup: float
    """From the end of the last work to the return of the wait for it."""


class Replayed(NamedTuple):
    """The result of a replay."""

    length: float
    busy: float
    """Device time of the work."""
    idle: dict[int, float]
    """For each line, how long the device was idle after its waits until work was queued again."""


class ObservedWait(NamedTuple):
    """A wait in a step that ran without a trace, in nanoseconds after the step began."""

    kind: Kind
    entered: int
    left: int
    site: int
    reads: bool
    copies: bool
    call: int
    """Host time of such a call if there is nothing to wait for."""
    overhead: int = 0
    """Host time before the call that belongs to it."""


class TracedWait(NamedTuple):
    """A wait in a trace: the positions of its first call, and after its last one."""

    kind: Kind
    first: int
    end: int


def replay(steps: Iterable[Sequence[Op]], delays: Delays, without: Collection[int] = ()) -> Replayed:
    """Replay steps in a row, from an idle device until it is idle again.

    Args:
        steps: the calls of each step.
        delays: delays between host and device.
        without: lines whose waits are left out: what they read is not read, what they copy to the device is copied
            without waiting.
    """
    host = free = busy = 0.0
    idle: dict[int, float] = {}
    drained: int | None = None
    """The line after whose wait the device has had no work queued."""
    for step in steps:
        for before, work, wait in step:
            left_out = wait is not None and wait.site in without
            if wait is not None:
                work = 0 if left_out and wait.reads else wait.copy
                before = max(0.0, before - wait.overhead) if left_out else before
            host += before
            if work:
                start = max(free, host + delays.launch)
                if drained is not None:
                    idle[drained] = idle.get(drained, 0.0) + start - free
                    # From here on the host is ahead: it has made up for the wait.
                    drained = drained if start > free else None
                free = start + work + delays.gap
                busy += work
            if wait is not None and not left_out:
                host = max(host + wait.call, free + delays.wakeup)
                drained = wait.site
    return Replayed(max(host, free), busy, idle)


def fit_gap(blocks: Sequence[Sequence[Sequence[Op]]], delays: Delays, length: float) -> Delays:
    """Return the delays with the gap for which blocks of steps take `length`, as closely as possible.

    A trace changes the gaps between pieces of work. Gaps up to twice the traced one are tried.

    Args:
        blocks: steps that run in a row, from an idle device to an idle device.
        delays: those of the trace.
        length: the time of a block, in nanoseconds.
    """
    low, high = 0.0, 2 * delays.gap
    for _ in range(_FIT_ROUNDS):
        middle = (low + high) / 2
        tried = delays._replace(gap=middle)
        if median(replay(block, tried).length for block in blocks) < length:
            low = middle
        else:
            high = middle
    return delays._replace(gap=(low + high) / 2)


def delays_of(steps: Sequence[TracedStep]) -> Delays:
    """Return the median delays of a trace."""
    launches: list[float] = []
    gaps: list[float] = []
    wakeups: list[float] = []
    for step in steps:
        free = 0
        for call in step.calls:
            if call.work is not None:
                if free and call.entered < free - _QUEUED_NS:
                    gaps.append(max(0, call.work.start - free))
                elif call.entered > free + _QUEUED_NS:
                    launches.append(call.work.start - call.entered)
                free = max(free, call.work.end)
            elif call.name in SYNC_CALLS and call.entered < free < call.left:
                wakeups.append(call.left - free)
    return Delays(*(median(found) if found else 0.0 for found in (launches, gaps, wakeups)))


def check_single_stream(steps: Sequence[TracedStep]) -> None:
    """Refuse steps whose work runs on several streams: a trace does not show which work waits for which.

    Raises:
        CannotReplay: the steps have no work, or use several streams.
    """
    by_stream: dict[int, int] = {}
    for step in steps:
        for call in step.calls:
            if call.work is not None:
                taken = call.work.end - call.work.start
                by_stream[call.work.stream] = by_stream.get(call.work.stream, 0) + taken
    if not by_stream:
        raise CannotReplay("the steps queued no work on the device")
    main = max(by_stream.values())
    if sum(by_stream.values()) > 1.02 * main:
        raise CannotReplay(f"their work runs on {len(by_stream)} streams at the same time")


def waits_of(step: TracedStep) -> tuple[Kind, ...]:
    """Return the kinds of the waits of a traced step, in order."""
    return tuple(wait.kind for wait in _find_waits(step))


def operations(step: TracedStep, seen: Sequence[ObservedWait], length: int, cost: float) -> list[Op]:
    """Return a step with the device times of the trace and the host times of a run without it.

    Args:
        step: a traced step with the same waits, in the same order, as the observed one.
        seen: the observed waits.
        length: host time of the observed step.
        cost: host time that counting added after each wait.
    """
    ops: list[Op] = []
    calls = step.calls
    position = traced_at = seen_at = 0
    found = _find_waits(step)
    for number, wait in enumerate((*seen, None)):
        if wait is None:
            first, traced_end, seen_end = len(calls), step.length, length
        else:
            first = found[number].first
            traced_end, seen_end = calls[first].entered, wait.entered
        stretch = calls[position:first]
        entries = [max(traced_at, min(call.entered, traced_end)) for call in stretch]
        traced = [after - before for before, after in pairwise([traced_at, *entries, traced_end])]
        untraced = _remove_trace_overhead(traced, max(0.0, seen_end - seen_at - (cost if number else 0.0)))
        spent = 0.0
        for call, took in zip(stretch, untraced, strict=False):
            spent += took
            if call.work is not None:
                ops.append(Op(spent, call.work.end - call.work.start))
                spent = 0.0
        spent += untraced[-1]
        if wait is None:
            ops.append(Op(spent, 0))
            break
        work = calls[first].work
        taken = 0 if work is None else work.end - work.start
        if not wait.copies and taken:
            # The copy before it belongs to the program and waits for nothing.
            ops.append(Op(spent, taken))
            spent = 0.0
        ops.append(Op(spent, 0, Wait(wait.site, taken if wait.copies else 0, wait.reads, wait.call, wait.overhead)))
        position = found[number].end
        traced_at, seen_at = calls[position - 1].left, wait.left
    return ops


def _remove_trace_overhead(traced: Sequence[int], length: float) -> list[float]:
    """Return the times between the calls of a stretch as they were in a stretch of `length` without the trace.

    A trace adds about the same time to every call, so the same amount is subtracted from each, as far as possible. A
    stretch that took longer without the trace is scaled evenly.
    """
    excess = sum(traced) - length
    if excess <= 0:
        factor = length / max(1, sum(traced))
        return [time * factor for time in traced]
    most = [time * _TRACE_SHARE for time in traced]
    if sum(most) <= excess:
        factor = length / max(1, sum(traced))
        return [time * factor for time in traced]
    # Find the level at which the amounts above it, cut to the level, and those below it add up to the excess.
    ordered, below = sorted(most), 0.0
    level = 0.0
    for number, limit in enumerate(ordered):
        level = (excess - below) / (len(ordered) - number)
        if level <= limit:
            break
        below += limit
    return [time - min(level, limit) for time, limit in zip(traced, most, strict=True)]


def _find_waits(step: TracedStep) -> list[TracedWait]:
    """Return the waits of a traced step, in order.

    A copy and the next synchronize of the same thread are one wait. A pageable copy without a synchronize waits itself.
    """
    found: list[TracedWait] = []
    copies: dict[int, int] = {}
    """For each thread, the position of its last call if that was a copy."""
    for position, call in enumerate(step.calls):
        copy = copies.pop(call.thread, None)
        kind = SYNC_CALLS.get(call.name)
        if copy is not None and kind == "stream":
            found.append(TracedWait(kind, copy, position + 1))
            continue
        if copy is not None and step.calls[copy].blocks_host:
            found.append(TracedWait("pageable", copy, copy + 1))
        if kind is not None:
            found.append(TracedWait(kind, position, position + 1))
        elif call.is_copy:
            copies[call.thread] = position
    for copy in copies.values():
        if step.calls[copy].blocks_host:
            found.append(TracedWait("pageable", copy, copy + 1))
    return sorted(found, key=lambda wait: wait.first)
