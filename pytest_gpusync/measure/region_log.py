"""What a region keeps while it is open, and the measurement made of it.

Recording runs inside the user's steps, so it only appends to lists. Syncs are assigned to steps when a measurement is
made, because a recorder may deliver a sync after the step that made it has ended.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.measure import device_choice, step_boundaries
from pytest_gpusync.model.measurement import Measurement, RegionTimes, Sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_gpusync.measure.memory_sampler import MemorySampler
    from pytest_gpusync.model.measurement import (
        Direction,
        Disturbance,
        Environment,
        Kind,
        MemorySample,
        Race,
        Site,
        StepTime,
    )

DEFAULT_WARMUP: Final = 1
"""Steps left out of budgets in a region that has steps, unless told otherwise."""


class LoggedSync(NamedTuple):
    """A sync as it is kept while the region is open: its step is known only when a measurement is made."""

    kind: Kind
    site: Site
    direction: Direction | None
    nbytes: int | None
    blocked_ns: int | None
    phase: str | None
    owner: int
    thread: str
    """Name of the owner. It is looked up now, because a thread may be gone when the region closes."""
    device: int | None
    allowed: str | None
    began_ns: int | None
    sequence: int | None
    """As :attr:`RawSync.sequence`: for a sync delivered late, its number decides its step."""
    stream: int | None


class StepEnd(NamedTuple):
    """Where a step ends."""

    delivered: int
    """Syncs delivered so far."""
    buffered: int
    """Calls that the recorder had buffered so far, and may deliver later."""


class OptimizerCall(NamedTuple):
    """Where an ``optimizer.step()`` returned."""

    delivered: int
    buffered: int
    optimizer: int
    """Identity of the optimizer."""
    time_ns: int


class RegionLog:
    """The data of one region. The recording appends to it; :class:`~pytest_gpusync.measure.region.Region` reads it."""

    def __init__(
        self, name: str, warmup: int | None, sampler: MemorySampler | None, *, all_threads: bool, races: bool = True
    ) -> None:
        self.name = name
        self.warmup = warmup
        self.sampler = sampler
        self.syncs: list[LoggedSync] = []
        self.opened_ns = time.perf_counter_ns()
        self.optimizer_calls: list[tuple[int, int, int, int]] = []
        """The fields of an :class:`OptimizerCall`, for each call: a plain tuple is made faster."""
        self.optimizer_samples: list[MemorySample] = []
        """Memory at each ``optimizer.step()``, as long as these calls end steps."""
        self.explicit_ends: list[StepEnd] | None = None
        """Where ``mark_step()`` ended steps; None until it is called."""
        self.explicit_times: list[int] = []
        self.explicit_samples: list[MemorySample] = []
        self.step_source = "optimizer.step()"
        self.timing: tuple[StepTime, ...] | None = None
        self.disturbance: Disturbance | None = None
        self.problem: str | None = None
        """The first reason why the measurement cannot be trusted; None while there is none."""
        self.result: Measurement | None = None
        """The final measurement; None while the region is open."""
        self.wants_races = races
        self._races: dict[Race, int] = {}
        """How often each race happened."""
        self._thread = threading.get_ident()
        self._all_threads = all_threads

    def optimizer_stepped(self, optimizer: int, buffered: int, now: int) -> None:
        """Keep a call of ``optimizer.step()`` that returned at `now`, with so many calls buffered by the recorder."""
        # This runs in every step, with cold caches: one object fewer saves a microsecond.
        self.optimizer_calls.append((len(self.syncs), buffered, optimizer, now))
        if self.sampler is not None and self.explicit_ends is None:
            self.sampler.take(self.optimizer_samples)

    def raced(self, race: Race) -> None:
        """Keep a race; the same two lines are one race that happened several times."""
        if self.wants_races:
            self._races[race] = self._races.get(race, 0) + 1

    def fail(self, problem: str) -> None:
        """Keep the first reason why this measurement cannot be trusted."""
        if self.problem is None:
            self.problem = problem

    def close(self, environment: Environment, *, reads_clock: bool, finds_races: bool) -> None:
        """Make the final measurement."""
        if self.sampler is not None:
            self.sampler.close()
        self.result = self.measurement(
            environment, reads_clock=reads_clock, finds_races=finds_races, complete=self.problem is None
        )

    def measurement(
        self, environment: Environment, *, reads_clock: bool, finds_races: bool, complete: bool
    ) -> Measurement:
        """Return what was measured so far.

        Args:
            environment: where it was measured.
            reads_clock: the recorder reads a clock, so the times of the host mean something.
            finds_races: the recorder looks for races.
            complete: the region has ended and nothing is missing.
        """
        if self.explicit_ends is not None:
            ends, source = self.explicit_ends, self.step_source
        else:
            calls = [OptimizerCall(*self.optimizer_calls[index]) for index in self._boundary_calls()]
            ends, source = [StepEnd(call.delivered, call.buffered) for call in calls], self.step_source
            if len(ends) < 2:
                # One optimizer.step() does not repeat: the region itself is the step.
                ends, source = [], "whole region"
        syncs = self._in_steps(ends)
        if not ends:
            warmup = 0
        else:
            warmup = DEFAULT_WARMUP if self.warmup is None else self.warmup
        problem = self.problem
        if problem is None and ends and warmup >= len(ends):
            problem = f"no step was measured: {len(ends)} ran, and warm-up takes {warmup}"
        return Measurement(
            name=self.name,
            environment=environment,
            all_syncs=tuple(syncs),
            steps=len(ends) or 1,
            warmup=warmup,
            step_source=source,
            complete=complete,
            problem=problem,
            device_used=device_choice.cuda_is_initialized() or bool(self.syncs),
            memory=self._memory(len(ends)),
            grown=None if self.sampler is None else self.sampler.grown,
            timing=self.timing,
            disturbance=self.disturbance,
            times=self._times(len(ends)) if reads_clock else None,
            races=tuple(replace(race, times=times) for race, times in self._races.items())
            if finds_races and self.wants_races
            else None,
        )

    def _in_steps(self, ends: Sequence[StepEnd]) -> list[Sync]:
        """Return the syncs, each with its step, ordered by when they began where that is known."""
        syncs: list[Sync] = []
        delivered, buffered = [end.delivered for end in ends], [end.buffered for end in ends]
        any_late = False
        for position, logged in enumerate(list(self.syncs)):
            if logged.sequence is None:
                step = bisect_right(delivered, position)
            else:
                step = bisect_right(buffered, logged.sequence)
                any_late = True
            syncs.append(self._sync(logged, None if ends and step == len(ends) else step))
        if any_late and all(sync.began_ns is not None for sync in syncs):
            syncs.sort(key=lambda sync: sync.began_ns or 0)
        return syncs

    def _times(self, steps: int) -> RegionTimes:
        closed = time.perf_counter_ns() - self.opened_ns
        if not steps:
            return RegionTimes((closed,), closed)
        if self.explicit_ends is not None:
            step_ends = self.explicit_times
        else:
            step_ends = [OptimizerCall(*self.optimizer_calls[index]).time_ns for index in self._boundary_calls()]
        return RegionTimes(tuple(end - self.opened_ns for end in step_ends), closed)

    def _boundary_calls(self) -> list[int]:
        """Return the indices of the calls of ``optimizer.step()`` that ended a step."""
        return step_boundaries.boundaries([(index, call[2]) for index, call in enumerate(self.optimizer_calls)])

    def _memory(self, steps: int) -> tuple[MemorySample, ...] | None:
        """Return the samples at the ends of steps; None for a region without steps, which shows no growth."""
        if self.sampler is None or not steps:
            return None
        if self.explicit_ends is not None:
            return tuple(self.explicit_samples)
        return tuple(self.optimizer_samples[index] for index in self._boundary_calls())

    def _sync(self, logged: LoggedSync, step: int | None) -> Sync:
        return Sync(
            kind=logged.kind,
            site=logged.site,
            step=step,
            direction=logged.direction,
            nbytes=logged.nbytes,
            blocked_ns=logged.blocked_ns,
            phase=logged.phase,
            thread=logged.thread,
            device=logged.device,
            allowed=logged.allowed,
            background=logged.owner != self._thread and not self._all_threads,
            began_ns=None if logged.began_ns is None else logged.began_ns - self.opened_ns,
            stream=logged.stream,
        )
