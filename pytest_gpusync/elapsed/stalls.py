"""What each wait of a step costs: how long the device is idle because of it, and what the step would gain without it.

Both come from a replay. Blocks of steps run alternately without instrumentation, for their true time, and with their
waits recorded, for the host's times. Then one block runs under torch.profiler, for the device's work. The replay
combines the host's times with the device's work. Its predictions are as good as its reproduction of the measured time,
so the difference between the two is added to the interval of every gain.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.elapsed.paired import no_garbage_collection, wait_until_idle
from pytest_gpusync.elapsed.profiler_trace import TraceUnreadable, trace_steps
from pytest_gpusync.elapsed.queue_replay import (
    CannotReplay,
    ObservedWait,
    check_single_stream,
    delays_of,
    fit_gap,
    operations,
    replay,
    waits_of,
)
from pytest_gpusync.model.estimates import CONFIDENCE, median_estimate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpusync.elapsed.paired import Outcome
    from pytest_gpusync.elapsed.profiler_trace import TracedStep
    from pytest_gpusync.elapsed.queue_replay import Op
    from pytest_gpusync.model.measurement import Disturbance, Kind, Measurement, Site, Sync

ROUNDS: Final = 16
"""Default number of blocks of either kind."""

TOLERANCE: Final = 0.04
"""Largest width of a gain's interval, as a share of the step, for which the gain counts as measured."""

_BLOCK_MS: Final = 60.0
_MIN_STEPS: Final = 4
_MAX_STEPS: Final = 60
_REPLAYED_STEPS: Final = 40
"""Steps in one replay, so many that the cost of its start and end is small."""

_READINGS: Final = 9
_LEAD_IN_STEPS: Final = 2
"""Steps before a block: the first steps of a region meet a driver to which CUPTI was just attached."""


_FIT_BLOCKS: Final = 8
"""Rounds used to fit the gap between pieces of work."""

_CALL_NS: Final = 10_000
"""Most host time of a call that has nothing to wait for."""

_REASON: Final = "gpu_elapsed.stalls runs the step"


class StallsUnavailable(ValueError):
    """The stalls of these steps cannot be determined; one line."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The waits of one line, per step."""

    site: Site
    syncs: float
    blocked_ms: float
    """Host time in the waits."""
    idle_ms: float
    """Device idle time after them."""
    gain_ms: float
    """How much shorter a step would be without them."""
    low_ms: float
    high_ms: float
    """The gain lies between these with the stated confidence; minus and plus infinity if the GPU was disturbed."""
    outcome: Outcome

    def __str__(self) -> str:
        where = f"{self.site.path}:{self.site.line}"
        rate = f"{self.syncs:g} {'sync' if self.syncs == 1 else 'syncs'} per step"
        text = (
            f"{where}: {rate}, device idle for {self.idle_ms:.3g} ms after them; a step would gain "
            f"{self.gain_ms:.3g} ms without them ({self.low_ms:.3g} to {self.high_ms:.3g} ms)"
        )
        return text if self.outcome == "measured" else f"too noisy to tell: {text}"


@dataclass(frozen=True, slots=True, repr=False)
class Stalls:
    """Where a step leaves the device idle."""

    step_ms: float
    """Median time of a step without instrumentation."""
    replayed_ms: float
    """The same time in the replay."""
    busy_ms: float
    """Device time of its work."""
    sites: tuple[Stall, ...]
    """The lines that wait, those with the largest gain first."""
    rounds: int
    steps: int
    """Steps in each block."""
    confidence: float
    note: str | None = None
    """What NVML saw of throttling and other processes; None if nothing."""

    @property
    def idle_ms(self) -> float:
        """Time of a step in which the device is idle, for any reason."""
        return max(0.0, self.step_ms - self.busy_ms)

    def __repr__(self) -> str:
        head = (
            f"a step takes {self.step_ms:.4g} ms, of which the device works {self.busy_ms:.4g} ms "
            f"({self.rounds} rounds of {self.steps} steps; {self.replayed_ms:.4g} ms replayed)"
        )
        lines = [head + (f"; {self.note}" if self.note else ""), *(f"  {stall}" for stall in self.sites)]
        return "\n".join(lines)


class Block(NamedTuple):
    """Steps that ran with their waits recorded."""

    steps: tuple[tuple[int, tuple[Sync, ...]], ...]
    """Host time of each step in nanoseconds, and its syncs ordered by start, with times after the step began."""
    length: int
    """Nanoseconds from an idle device to an idle device."""


class Observations(NamedTuple):
    """What was measured of the steps."""

    uninstrumented: list[int]
    """Nanoseconds of each block without instrumentation, from an idle device to an idle device."""
    blocks: list[Block]
    """Blocks with the waits recorded, one for each of the others."""
    traced: list[TracedStep]
    number: int
    """Steps in each block."""
    read: int
    """Nanoseconds that the host takes to read a value that is ready."""


def measure_stalls(step: Callable[[], object], *, rounds: int, warmup: int, steps: int | None) -> Stalls:
    """Measure the stalls of a step on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.stalls`.

    Raises:
        StallsUnavailable: they cannot be determined for steps of this kind.
    """
    from pytest_gpusync.machine.nvml import monitor_current_gpu
    from pytest_gpusync.measure.recording import allow

    with allow(_REASON), no_garbage_collection():
        for _ in range(max(warmup, 1)):
            step()
        number = steps if steps is not None else _steps_per_block(step)
        watch = monitor_current_gpu()
        uninstrumented: list[int] = []
        blocks: list[Block] = []
        try:
            for turn in range(rounds):
                watch.sample()
                for kind in ("bare", "recorded") if turn % 2 else ("recorded", "bare"):
                    if kind == "bare":
                        uninstrumented.append(_timed(step, number))
                    else:
                        blocks.append(_recorded(step, number))
            read = _time_to_read(step)
            traced = trace_steps(step, number)
        except TraceUnreadable as error:
            raise StallsUnavailable(str(error)) from None
        finally:
            disturbance = watch.close()
    return estimate_stalls(Observations(uninstrumented, blocks, traced, number, read), disturbance)


def estimate_stalls(seen: Observations, disturbance: Disturbance) -> Stalls:
    """Return the stalls that the blocks and the trace show.

    Raises:
        StallsUnavailable: the steps wait differently from one another, or in a way that two queues do not describe.
    """
    sites = _sites_by_index(seen.blocks)
    rounds, uninstrumented = _replayable(seen, sites)
    fitted = fit_gap(rounds[:_FIT_BLOCKS], delays_of(seen.traced), median(uninstrumented[:_FIT_BLOCKS]))
    step_ns = median(seen.uninstrumented) / seen.number
    off = abs(
        median(replay(ops, fitted).length - alone for ops, alone in zip(rounds, uninstrumented, strict=True))
        / seen.number
    )
    repeats = ceil(_REPLAYED_STEPS / seen.number)
    each = seen.number * repeats
    whole = [replay(ops * repeats, fitted) for ops in rounds]
    found = []
    for site, index in sites.items():
        without = [replay(ops * repeats, fitted, {index}) for ops in rounds]
        gain = median_estimate([(a.length - b.length) / each for a, b in zip(whole, without, strict=True)])
        low, high = (gain.low - off, gain.high + off) if not disturbance.invalidates else (-inf, inf)
        syncs = [sync for block in seen.blocks for _, all_ in block.steps for sync in all_ if sync.site == site]
        steps = len(seen.blocks) * seen.number
        found.append(
            Stall(
                site=site,
                syncs=len(syncs) / steps,
                blocked_ms=sum(sync.blocked_ns or 0 for sync in syncs) / steps / 1e6,
                idle_ms=median(one.idle.get(index, 0.0) for one in whole) / each / 1e6,
                gain_ms=gain.value / 1e6,
                low_ms=low / 1e6,
                high_ms=high / 1e6,
                outcome="measured" if high - low <= TOLERANCE * step_ns else "too noisy to tell",
            )
        )
    return Stalls(
        step_ms=step_ns / 1e6,
        replayed_ms=median(replay(ops, fitted).length for ops in rounds) / seen.number / 1e6,
        busy_ms=median(one.busy for one in whole) / each / 1e6,
        sites=tuple(sorted(found, key=lambda stall: -stall.gain_ms)),
        rounds=len(rounds),
        steps=seen.number,
        confidence=CONFIDENCE,
        note=disturbance.note,
    )


def _replayable(seen: Observations, sites: dict[Site, int]) -> tuple[list[list[list[Op]]], list[int]]:
    """Return the blocks as lists of calls, and for each the time of an uninstrumented block."""
    if not sites:
        raise StallsUnavailable("the steps make no sync")
    try:
        check_single_stream(seen.traced)
    except CannotReplay as error:
        raise StallsUnavailable(str(error)) from None
    like: dict[tuple[Kind, ...], list[TracedStep]] = {}
    for step in seen.traced:
        like.setdefault(waits_of(step), []).append(step)
    calls = _call_costs(seen.blocks)
    cost = _cost_of_counting(seen)
    rounds: list[list[list[Op]]] = []
    uninstrumented: list[int] = []
    for block, alone in zip(seen.blocks, seen.uninstrumented, strict=True):
        ops = []
        for turn, (length, syncs) in enumerate(block.steps):
            templates = like.get(tuple(sync.kind for sync in syncs))
            if templates is None:
                break
            waits = [_observed_wait(sync, sites, calls, seen.read) for sync in syncs]
            ops.append(operations(templates[turn % len(templates)], waits, length, cost))
        else:
            rounds.append(ops)
            uninstrumented.append(alone)
    if 2 * len(rounds) < len(seen.blocks):
        raise StallsUnavailable("the steps wait differently from one another")
    return rounds, uninstrumented


def _cost_of_counting(seen: Observations) -> float:
    """Return the median host time that recording adds to each wait."""
    waits = sum(len(syncs) for block in seen.blocks for _, syncs in block.steps) / len(seen.blocks)
    added = median(block.length - alone for block, alone in zip(seen.blocks, seen.uninstrumented, strict=True))
    return max(0.0, added / max(1.0, waits))


def _time_to_read(step: Callable[[], object]) -> int:
    """Return the host time of reading a value that is ready, in nanoseconds, with caches as cold as in a step."""
    import torch

    value = torch.zeros((), device="cuda")
    took = []
    for _ in range(_READINGS):
        step()
        wait_until_idle()
        begun = time.perf_counter_ns()
        value.item()
        took.append(time.perf_counter_ns() - begun)
    return int(median(took))


def _steps_per_block(step: Callable[[], object]) -> int:
    """Return how many steps make a block."""
    took = _timed(step, 2) / 2e6
    return max(_MIN_STEPS, min(_MAX_STEPS, ceil(_BLOCK_MS / max(took, 1e-3))))


def _lead_in(step: Callable[[], object]) -> int:
    """Run the steps before a block, and return the time at which the device is idle after them."""
    for _ in range(_LEAD_IN_STEPS):
        step()
    wait_until_idle()
    return time.perf_counter_ns()


def _timed(step: Callable[[], object], number: int) -> int:
    """Return the nanoseconds of a block."""
    begun = _lead_in(step)
    for _ in range(number):
        step()
    wait_until_idle()
    return time.perf_counter_ns() - begun


def _recorded(step: Callable[[], object], number: int) -> Block:
    """Run a block with its waits recorded."""
    from pytest_gpusync.measure.region import record
    from pytest_gpusync.model.measurement import MeasurementError

    ends: list[int] = []
    try:
        with record("stalls", recorder="cupti") as region:
            begun = _lead_in(step)
            for _ in range(number):
                step()
                ends.append(time.perf_counter_ns())
            wait_until_idle()
            closed = time.perf_counter_ns()
    except MeasurementError as error:
        raise StallsUnavailable(str(error)) from None
    return _block(region.result(), begun - region.opened_ns, [end - region.opened_ns for end in ends], closed - begun)


def _block(measurement: Measurement, begun: int, ends: Sequence[int], length: int) -> Block:
    if measurement.problem is not None:
        raise StallsUnavailable(measurement.problem)
    syncs = [sync for sync in measurement.all_syncs if sync.began_ns is not None and sync.blocked_ns is not None]
    if len(syncs) < len(measurement.all_syncs) or any(sync.background for sync in syncs):
        raise StallsUnavailable("another thread waits for the device during the steps")
    syncs.sort(key=lambda sync: sync.began_ns or 0)
    steps: list[tuple[int, tuple[Sync, ...]]] = []
    position, start = 0, begun
    for end in ends:
        inside: list[Sync] = []
        while position < len(syncs) and (syncs[position].began_ns or 0) < end:
            sync = syncs[position]
            if (sync.began_ns or 0) >= start:
                inside.append(replace(sync, began_ns=(sync.began_ns or 0) - start))
            position += 1
        steps.append((end - start, tuple(inside)))
        start = end
    return Block(tuple(steps), length)


def _sites_by_index(blocks: Sequence[Block]) -> dict[Site, int]:
    """Number the lines that wait."""
    sites: dict[Site, int] = {}
    for block in blocks:
        for _, syncs in block.steps:
            for sync in syncs:
                if sync.kind == "event":
                    where = f"{sync.site.path}:{sync.site.line}"
                    raise StallsUnavailable(f"{where} waits for an event, and which work the event follows is unknown")
                sites.setdefault(sync.site, len(sites))
    return sites


def _call_costs(blocks: Sequence[Block]) -> dict[Site, int]:
    """Return for each line the least host time of its call, as the cost if there is nothing to wait for."""
    calls: dict[Site, int] = {}
    for block in blocks:
        for _, syncs in block.steps:
            for sync in syncs:
                calls[sync.site] = min(calls.get(sync.site, _CALL_NS), sync.blocked_ns or 0)
    return calls


def _observed_wait(sync: Sync, sites: dict[Site, int], calls: dict[Site, int], read: int) -> ObservedWait:
    entered, reads = sync.began_ns or 0, sync.direction == "D2H"
    return ObservedWait(
        kind=sync.kind,
        entered=entered,
        left=entered + (sync.blocked_ns or 0),
        site=sites[sync.site],
        reads=reads,
        copies=sync.direction is not None,
        call=calls[sync.site],
        overhead=max(0, read - calls[sync.site]) if reads else 0,
    )
