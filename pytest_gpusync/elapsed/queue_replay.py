"""Steps replayed as two queues, the host's calls and the device's work, with and without the waits of one line.

A step is a list of :class:`Op`: what the host spends before each call, what the call queues, and whether it waits. The
host goes through them one after the other; the device does what it was given in order; a wait takes the host to the
moment when the device has nothing left. What the device's work took comes from a trace, what the host took from steps
that ran without one.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.elapsed.profiler_trace import WAITS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_gpusync.elapsed.profiler_trace import TracedStep
    from pytest_gpusync.model.measurement import Kind

_QUEUED_NS: Final = 5_000
"""Work that was asked for this long before the device came to it was waiting there: what lies between it and the work
before is the device's own gap. Work that came later than that found the device idle."""

_TRACE_SHARE: Final = 0.8
"""Most of the time between two calls that tracing may have added."""

_FIT_ROUNDS: Final = 14


class CannotReplay(ValueError):
    """The steps are of a kind that two queues do not describe; one clause."""


class Wait(NamedTuple):
    """A call that waits for the device, with the copy it completes."""

    site: int
    """Which line made it, as an index."""
    copy: int
    """Device time of its copy; 0 if it has none."""
    reads: bool
    """Whether its copy is to the host, and goes with it; one to the device is needed all the same."""
    call: int
    """Host time of the call where there is nothing to wait for."""
    around: int = 0
    """Host time before the call that goes with it: what reading a value takes besides."""


class Op(NamedTuple):
    """One call of the host. All times are in nanoseconds."""

    host: float
    """What the host spends between the call before and this one, neither's waiting counted."""
    work: int
    """Device time of what it queues; 0 if that is nothing."""
    wait: Wait | None = None


class Delays(NamedTuple):
    """What lies between host and device."""

    launch: float
    """From the entry of a call to the start of its work on an idle device."""
    gap: float
    """Between one piece of work and the next that is queued behind it."""
    back: float
    """From the end of the last work to the return of the wait for it."""


class Replayed(NamedTuple):
    """What a replay of steps took."""

    length: float
    busy: float
    """Device time of the work."""
    idle: dict[int, float]
    """For each line, how long the device had nothing to do after its waits, until it had work waiting again."""


class SeenWait(NamedTuple):
    """A wait of a step that ran without a trace, in nanoseconds after the step began."""

    kind: Kind
    entered: int
    left: int
    site: int
    reads: bool
    copies: bool
    call: int
    """Host time of such a call where there is nothing to wait for."""
    around: int = 0
    """Host time before the call that goes with it."""


class _FoundWait(NamedTuple):
    """A wait in a trace: where its first call is, and what comes behind its last."""

    kind: Kind
    first: int
    behind: int


def replay(steps: Iterable[Sequence[Op]], delays: Delays, without: Collection[int] = ()) -> Replayed:
    """Run steps one behind the other, from an idle device until it is idle again.

    Args:
        steps: the calls of each.
        delays: what lies between host and device.
        without: lines at which the host does not wait: what they read is not read, what they copy to the device is
            copied without them.
    """
    host = free = busy = 0.0
    idle: dict[int, float] = {}
    drained: int | None = None
    """The line after whose wait the device has had no work waiting."""
    for step in steps:
        for before, work, wait in step:
            left_out = wait is not None and wait.site in without
            if wait is not None:
                work = 0 if left_out and wait.reads else wait.copy
                before = max(0.0, before - wait.around) if left_out else before
            host += before
            if work:
                start = max(free, host + delays.launch)
                if drained is not None:
                    idle[drained] = idle.get(drained, 0.0) + start - free
                    # From here on the host is ahead: what it waited for is made up for.
                    drained = drained if start > free else None
                free = start + work + delays.gap
                busy += work
            if wait is not None and not left_out:
                host = max(host + wait.call, free + delays.back)
                drained = wait.site
    return Replayed(max(host, free), busy, idle)


def fit_gap(blocks: Sequence[Sequence[Sequence[Op]]], delays: Delays, length: float) -> Delays:
    """Return the delays with the gap for which blocks of steps take `length`, as far as one can be found.

    A trace changes the gaps between pieces of work: any up to twice the traced one is tried.

    Args:
        blocks: steps that run one behind the other, from an idle device to an idle device.
        delays: those of the trace.
        length: what a block takes, in nanoseconds.
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
    """Return what a trace tells of the delays, each in the median."""
    launches: list[float] = []
    gaps: list[float] = []
    backs: list[float] = []
    for step in steps:
        free = 0
        for call in step.calls:
            if call.work is not None:
                if free and call.entered < free - _QUEUED_NS:
                    gaps.append(max(0, call.work.start - free))
                elif call.entered > free + _QUEUED_NS:
                    launches.append(call.work.start - call.entered)
                free = max(free, call.work.end)
            elif call.name in WAITS and call.entered < free < call.left:
                backs.append(call.left - free)
    return Delays(*(median(found) if found else 0.0 for found in (launches, gaps, backs)))


def check(steps: Sequence[TracedStep]) -> None:
    """Refuse steps whose work is on several streams: which work waits for which is not in a trace.

    Raises:
        CannotReplay: so it is.
    """
    by_stream: dict[int, int] = {}
    for step in steps:
        for call in step.calls:
            if call.work is not None:
                taken = call.work.end - call.work.start
                by_stream[call.work.stream] = by_stream.get(call.work.stream, 0) + taken
    if not by_stream:
        raise CannotReplay("the steps gave the device no work")
    main = max(by_stream.values())
    if sum(by_stream.values()) > 1.02 * main:
        raise CannotReplay(f"their work runs on {len(by_stream)} streams beside each other")


def waits_of(step: TracedStep) -> tuple[Kind, ...]:
    """Return the kinds of the waits of a traced step, in their order."""
    return tuple(wait.kind for wait in _find_waits(step))


def operations(step: TracedStep, seen: Sequence[SeenWait], length: int, cost: float) -> list[Op]:
    """Return a step with the device's work as traced and the host's times as they were without the trace.

    Args:
        step: a traced step with the same waits as the one that was seen, in the same order.
        seen: its waits.
        length: host time of the step.
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
        untraced = _without_trace(traced, max(0.0, seen_end - seen_at - (cost if number else 0.0)))
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
            # The copy before is the program's own, and waits for nothing.
            ops.append(Op(spent, taken))
            spent = 0.0
        ops.append(Op(spent, 0, Wait(wait.site, taken if wait.copies else 0, wait.reads, wait.call, wait.around)))
        position = found[number].behind
        traced_at, seen_at = calls[position - 1].left, wait.left
    return ops


def _without_trace(traced: Sequence[int], length: float) -> list[float]:
    """Return the times between the calls of a stretch as they were in a stretch of `length` without the trace.

    A trace adds about the same to every call: as much is taken off each, as far as it goes. A stretch that took longer
    than in the trace is stretched evenly.
    """
    excess = sum(traced) - length
    if excess <= 0:
        factor = length / max(1, sum(traced))
        return [time * factor for time in traced]
    most = [time * _TRACE_SHARE for time in traced]
    if sum(most) <= excess:
        factor = length / max(1, sum(traced))
        return [time * factor for time in traced]
    # The level at which what lies above it, and all of what lies below, adds up to the excess.
    ordered, below = sorted(most), 0.0
    level = 0.0
    for number, limit in enumerate(ordered):
        level = (excess - below) / (len(ordered) - number)
        if level <= limit:
            break
        below += limit
    return [time - min(level, limit) for time, limit in zip(traced, most, strict=True)]


def _find_waits(step: TracedStep) -> list[_FoundWait]:
    """Return the waits of a traced step, in their order.

    A copy and the synchronize that the same thread makes next are one wait. A pageable copy without one waits itself.
    """
    found: list[_FoundWait] = []
    copies: dict[int, int] = {}
    """For each thread, where its last call was if that was a copy."""
    for position, call in enumerate(step.calls):
        copy = copies.pop(call.thread, None)
        kind = WAITS.get(call.name)
        if copy is not None and kind == "stream":
            found.append(_FoundWait(kind, copy, position + 1))
            continue
        if copy is not None and step.calls[copy].waits_by_itself:
            found.append(_FoundWait("pageable", copy, copy + 1))
        if kind is not None:
            found.append(_FoundWait(kind, position, position + 1))
        elif call.is_copy:
            copies[call.thread] = position
    for copy in copies.values():
        if step.calls[copy].waits_by_itself:
            found.append(_FoundWait("pageable", copy, copy + 1))
    return sorted(found, key=lambda wait: wait.first)
