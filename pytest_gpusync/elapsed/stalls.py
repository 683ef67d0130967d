"""What each wait of a step costs: how long the device is idle because of it, and what the step would gain without it.

Both are told from a replay. Steps run in blocks, in turn without any instrument, for their true time, and with their
waits recorded, for the times of the host. Then a block runs under torch.profiler, for the device's work. The replay
puts the host's times and the device's work together again; that it takes as long as the steps did is what its word on a
step without a wait rests on. By how much it does not is added to the interval of every gain.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.elapsed.paired import no_garbage_collection, settle
from pytest_gpusync.elapsed.profiler_trace import TraceUnreadable, trace_steps
from pytest_gpusync.elapsed.queue_replay import (
    CannotReplay,
    SeenWait,
    check,
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
"""Blocks of either kind, unless told otherwise."""

TOLERANCE: Final = 0.04
"""Width of a gain's interval, as a part of the step, up to which it is told."""

_BLOCK_MS: Final = 60.0
_LEAST_STEPS: Final = 4
_MOST_STEPS: Final = 60
_REPLAYED_STEPS: Final = 40
"""Steps in one replay: what beginning and ending cost is small against so many."""

_READINGS: Final = 9
_SETTLING: Final = 2
"""Steps before a block: the first ones of a region meet a driver that CUPTI was attached to just now."""


_FITTED: Final = 8
"""Rounds that the gap between pieces of work is fitted to."""

_CALL_NS: Final = 10_000
"""Most host time that a call takes which has nothing to wait for."""

_REASON: Final = "gpu_elapsed.stalls runs the step"


class CannotTell(ValueError):
    """The stalls of these steps cannot be told; one line."""


@dataclass(frozen=True, slots=True)
class Stall:
    """The waits of one line, per step."""

    site: Site
    syncs: float
    blocked_ms: float
    """Host time in the waits."""
    idle_ms: float
    """Device time with nothing to do after them."""
    gain_ms: float
    """By how much shorter a step would be without them."""
    low_ms: float
    high_ms: float
    """The gain lies between these with the stated confidence; minus and plus infinity where nothing can be claimed."""
    outcome: Outcome

    def __str__(self) -> str:
        where = f"{self.site.path}:{self.site.line}"
        rate = f"{self.syncs:g} {'sync' if self.syncs == 1 else 'syncs'} per step"
        text = (
            f"{where}: {rate}, the device idle for {self.idle_ms:.3g} ms after them; without "
            f"{self.gain_ms:.3g} ms less ({self.low_ms:.3g} to {self.high_ms:.3g} ms)"
        )
        return text if self.outcome == "measured" else f"too noisy to tell: {text}"


@dataclass(frozen=True, slots=True, repr=False)
class Stalls:
    """Where a step leaves the device idle."""

    step_ms: float
    """Time of a step, in the median, measured without any instrument."""
    replayed_ms: float
    """What the replay makes of it."""
    busy_ms: float
    """Device time of its work."""
    sites: tuple[Stall, ...]
    """The lines that wait, those with most to gain first."""
    rounds: int
    steps: int
    """Steps in each block."""
    confidence: float
    note: str | None = None
    """What NVML saw of throttling and other processes; None if nothing."""

    @property
    def idle_ms(self) -> float:
        """Time of a step in which the device has nothing to do, whatever the reason."""
        return max(0.0, self.step_ms - self.busy_ms)

    def __repr__(self) -> str:
        head = (
            f"a step takes {self.step_ms:.4g} ms, {self.busy_ms:.4g} ms of it work of the device "
            f"({self.rounds} rounds of {self.steps} steps; {self.replayed_ms:.4g} ms replayed)"
        )
        lines = [head + (f"; {self.note}" if self.note else ""), *(f"  {stall}" for stall in self.sites)]
        return "\n".join(lines)


class Block(NamedTuple):
    """Steps that ran with their waits recorded."""

    steps: tuple[tuple[int, tuple[Sync, ...]], ...]
    """Host time of each in nanoseconds, and its syncs, in the order of their beginning, times after the step began."""
    length: int
    """Nanoseconds from an idle device to an idle device."""


class Seen(NamedTuple):
    """What was measured of the steps."""

    bare: list[int]
    """Nanoseconds of each block without an instrument, from an idle device to an idle device."""
    blocks: list[Block]
    """Those with the waits recorded, one beside each of the others."""
    traced: list[TracedStep]
    number: int
    """Steps in each block."""
    read: int
    """Nanoseconds that the host takes to read a value that is there."""


def measure_stalls(step: Callable[[], object], *, rounds: int, warmup: int, steps: int | None) -> Stalls:
    """Take the waits of a step apart on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.stalls`.

    Raises:
        CannotTell: the steps are of a kind for which this cannot be told.
    """
    from pytest_gpusync.machine.nvml import watch_current
    from pytest_gpusync.measure.recording import allow

    with allow(_REASON), no_garbage_collection():
        for _ in range(max(warmup, 1)):
            step()
        number = steps if steps is not None else _steps_of(step)
        watch = watch_current()
        bare: list[int] = []
        blocks: list[Block] = []
        try:
            for turn in range(rounds):
                watch.look()
                for kind in ("bare", "recorded") if turn % 2 else ("recorded", "bare"):
                    if kind == "bare":
                        bare.append(_timed(step, number))
                    else:
                        blocks.append(_recorded(step, number))
            read = _time_to_read(step)
            traced = trace_steps(step, number)
        except TraceUnreadable as error:
            raise CannotTell(str(error)) from None
        finally:
            disturbance = watch.close()
    return conclude(Seen(bare, blocks, traced, number, read), disturbance)


def conclude(seen: Seen, disturbance: Disturbance) -> Stalls:
    """Return what blocks and trace tell.

    Raises:
        CannotTell: the steps wait differently from one another, or in a way that two queues do not describe.
    """
    sites = _sites(seen.blocks)
    rounds, bare = _replayable(seen, sites)
    fitted = fit_gap(rounds[:_FITTED], delays_of(seen.traced), median(bare[:_FITTED]))
    step_ns = median(seen.bare) / seen.number
    off = abs(median(replay(ops, fitted).length - alone for ops, alone in zip(rounds, bare, strict=True)) / seen.number)
    repeats = ceil(_REPLAYED_STEPS / seen.number)
    each = seen.number * repeats
    whole = [replay(ops * repeats, fitted) for ops in rounds]
    found = []
    for site, index in sites.items():
        without = [replay(ops * repeats, fitted, {index}) for ops in rounds]
        gain = median_estimate([(a.length - b.length) / each for a, b in zip(whole, without, strict=True)])
        low, high = (gain.low - off, gain.high + off) if not disturbance.spoils else (-inf, inf)
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


def _replayable(seen: Seen, sites: dict[Site, int]) -> tuple[list[list[list[Op]]], list[int]]:
    """Return the blocks as the calls of their steps, and beside each what a block without an instrument took."""
    if not sites:
        raise CannotTell("the steps make no sync")
    try:
        check(seen.traced)
    except CannotReplay as error:
        raise CannotTell(str(error)) from None
    like: dict[tuple[Kind, ...], list[TracedStep]] = {}
    for step in seen.traced:
        like.setdefault(waits_of(step), []).append(step)
    calls = _calls(seen.blocks)
    cost = _cost_of_counting(seen)
    rounds: list[list[list[Op]]] = []
    bare: list[int] = []
    for block, alone in zip(seen.blocks, seen.bare, strict=True):
        ops = []
        for turn, (length, syncs) in enumerate(block.steps):
            templates = like.get(tuple(sync.kind for sync in syncs))
            if templates is None:
                break
            waits = [_seen_wait(sync, sites, calls, seen.read) for sync in syncs]
            ops.append(operations(templates[turn % len(templates)], waits, length, cost))
        else:
            rounds.append(ops)
            bare.append(alone)
    if 2 * len(rounds) < len(seen.blocks):
        raise CannotTell("the steps wait differently from one another")
    return rounds, bare


def _cost_of_counting(seen: Seen) -> float:
    """Return the host time that recording adds to each wait, in the median of the pairs of blocks."""
    waits = sum(len(syncs) for block in seen.blocks for _, syncs in block.steps) / len(seen.blocks)
    added = median(block.length - alone for block, alone in zip(seen.blocks, seen.bare, strict=True))
    return max(0.0, added / max(1.0, waits))


def _time_to_read(step: Callable[[], object]) -> int:
    """Return the host time of reading a value that is there, in nanoseconds, out of steps as it is read in them."""
    import torch

    value = torch.zeros((), device="cuda")
    took = []
    for _ in range(_READINGS):
        step()
        settle()
        begun = time.perf_counter_ns()
        value.item()
        took.append(time.perf_counter_ns() - begun)
    return int(median(took))


def _steps_of(step: Callable[[], object]) -> int:
    """Return how many steps make a block."""
    took = _timed(step, 2) / 2e6
    return max(_LEAST_STEPS, min(_MOST_STEPS, ceil(_BLOCK_MS / max(took, 1e-3))))


def _timed(step: Callable[[], object], number: int) -> int:
    """Return the nanoseconds of a block."""
    for _ in range(_SETTLING):
        step()
    settle()
    begun = time.perf_counter_ns()
    for _ in range(number):
        step()
    settle()
    return time.perf_counter_ns() - begun


def _recorded(step: Callable[[], object], number: int) -> Block:
    """Run a block with its waits recorded."""
    from pytest_gpusync.measure.region import record
    from pytest_gpusync.model.measurement import MeasurementError

    ends: list[int] = []
    try:
        with record("stalls", recorder="cupti") as region:
            for _ in range(_SETTLING):
                step()
            settle()
            begun = time.perf_counter_ns()
            for _ in range(number):
                step()
                ends.append(time.perf_counter_ns())
            settle()
            closed = time.perf_counter_ns()
    except MeasurementError as error:
        raise CannotTell(str(error)) from None
    return _block(region.result(), begun - region.opened_ns, [end - region.opened_ns for end in ends], closed - begun)


def _block(measurement: Measurement, begun: int, ends: Sequence[int], length: int) -> Block:
    if measurement.problem is not None:
        raise CannotTell(measurement.problem)
    syncs = [sync for sync in measurement.all_syncs if sync.began_ns is not None and sync.blocked_ns is not None]
    if len(syncs) < len(measurement.all_syncs) or any(sync.background for sync in syncs):
        raise CannotTell("another thread waits for the device beside the steps")
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


def _sites(blocks: Sequence[Block]) -> dict[Site, int]:
    """Number the lines that wait."""
    sites: dict[Site, int] = {}
    for block in blocks:
        for _, syncs in block.steps:
            for sync in syncs:
                if sync.kind == "event":
                    where = f"{sync.site.path}:{sync.site.line}"
                    raise CannotTell(f"{where} waits for an event, and behind which work that stands is unknown")
                sites.setdefault(sync.site, len(sites))
    return sites


def _calls(blocks: Sequence[Block]) -> dict[Site, int]:
    """Return for each line what its call costs the host where there is nothing to wait for, as far as it was seen."""
    calls: dict[Site, int] = {}
    for block in blocks:
        for _, syncs in block.steps:
            for sync in syncs:
                calls[sync.site] = min(calls.get(sync.site, _CALL_NS), sync.blocked_ns or 0)
    return calls


def _seen_wait(sync: Sync, sites: dict[Site, int], calls: dict[Site, int], read: int) -> SeenWait:
    entered, reads = sync.began_ns or 0, sync.direction == "D2H"
    return SeenWait(
        kind=sync.kind,
        entered=entered,
        left=entered + (sync.blocked_ns or 0),
        site=sites[sync.site],
        reads=reads,
        copies=sync.direction is not None,
        call=calls[sync.site],
        around=max(0, read - calls[sync.site]) if reads else 0,
    )
