"""What a region keeps while it is open, and the measurement made of it.

Recording runs inside the user's steps, so it only appends. Syncs are assigned to steps when a measurement is
made, because a recorder may deliver a sync after the step that made it has ended.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from pytest_gpusync.machine import devices
from pytest_gpusync.measure import step_boundaries
from pytest_gpusync.measure.rows import Rows
from pytest_gpusync.measure.scopes import Scope
from pytest_gpusync.measure.sync_log import SyncLog
from pytest_gpusync.model.measurement import Measurement, MemorySample, RegionTimes, Sync
from pytest_gpusync.recorders import compiler_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from pytest_gpusync.measure.memory_sampler import MemorySampler
    from pytest_gpusync.measure.step_on import StepEndFollower
    from pytest_gpusync.measure.sync_log import SyncMoment, SyncOrigin
    from pytest_gpusync.model.measurement import (
        CompilerEvent,
        Disturbance,
        Environment,
        Race,
        StepTime,
    )
    from pytest_gpusync.source.line_executions import LineExecutions

DEFAULT_WARMUP: Final = 1
"""Steps left out of budgets in a region that has steps, unless told otherwise."""


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
    """Number of the optimizer."""
    time_ns: int


class RegionLog:
    """The data of one region. The recording appends to it; :class:`~pytest_gpusync.measure.region.Region` reads it."""

    def __init__(
        self, name: str, warmup: int | None, sampler: MemorySampler | None, *, all_threads: bool, races: bool = True
    ) -> None:
        self.name = name
        self.warmup = warmup
        self.sampler = sampler
        self.syncs = SyncLog()
        self.opened_ns = time.perf_counter_ns()
        self.closed_ns: int | None = None
        self.optimizer_calls = Rows(OptimizerCall)
        self.optimizer_samples = Rows(MemorySample)
        """Memory at each ``optimizer.step()``, as long as these calls end steps."""
        self.explicit_ends: list[StepEnd] | None = None
        """Where ``mark_step()`` ended steps; None until it is called."""
        self.explicit_times: list[int] = []
        self.explicit_samples = Rows(MemorySample)
        self.step_source = "optimizer.step()"
        self.on_step: Callable[[int | None], None] | None = None
        """As :attr:`Region.on_step <pytest_gpusync.measure.region.Region.on_step>`."""
        self.follower: StepEndFollower | None = None
        """What ends steps, if the caller says so."""
        self.executions: LineExecutions | None = None
        """Counts the executions of lines that waited, if the caller asks for it."""
        self.timing: tuple[StepTime, ...] | None = None
        self.disturbance: Disturbance | None = None
        self.problem: str | None = None
        """The first reason why the measurement cannot be trusted; None while there is none."""
        self.result: Measurement | None = None
        """The final measurement; None while the region is open."""
        self.wants_races = races
        self._races: dict[Race, int] = {}
        """How often each race happened."""
        self._compiled: list[tuple[int, CompilerEvent]] = []
        """The graph breaks and recompilations, each with the time by the clock of ``time.perf_counter_ns()``."""
        self.scope = Scope(is_region=True)
        self.frame: FrameType | None = None
        """The frame that opens the region, until it is open."""
        self._stepping: set[tuple[int, str]] = set()
        """Threads that called ``optimizer.step()``, with their names: an identity is used again once a thread ended."""
        self._worked: set[tuple[int, str]] = set()
        """Threads that gave the device work, with their names."""
        self._worked_in_scope = False
        self._all_threads = all_threads

    def is_stepped_by(self, thread: int, held: tuple[Scope, ...]) -> bool:
        """Return whether an ``optimizer.step()`` of `thread`, in a context that holds `held`, ends a step here."""
        if self.scope in held:
            return True
        if thread == self.scope.thread:
            return not self.scope.in_task
        return not any(scope.is_region for scope in held)

    def device_worked(self, thread: int, name: str, held: tuple[Scope, ...]) -> None:
        """Keep that `thread` gave the device work."""
        self._worked.add((thread, name))
        self._worked_in_scope |= self._owns(thread, name, held)

    @property
    def has_worked(self) -> bool:
        """True once a thread of the region has given the device work."""
        return self._worked_in_scope or any(self._owns(*thread, ()) for thread in self._worked)

    def _owns(self, thread: int, name: str, held: tuple[Scope, ...]) -> bool:
        """Return whether what `thread` of that name does, in a context that holds `held`, belongs to the region."""
        if self._all_threads or self.scope in held:
            return True
        if thread == self.scope.thread:
            return not self.scope.in_task
        return (thread, name) in self._stepping

    def follow(self, follower: StepEndFollower, mark_step: Callable[[], None]) -> None:
        """Let `follower` decide from now on what ends a step; where a function does, it calls `mark_step`."""
        self.stop_following()
        self.follower, self.step_source = follower, follower.name
        self.optimizer_calls.clear()
        self.optimizer_samples.clear()
        follower.start(mark_step, self._function_entered)

    def _function_entered(self) -> None:
        """Count the syncs of the calling thread, which has called the function that ends steps."""
        thread = threading.current_thread()
        self._stepping.add((threading.get_ident(), thread.name))

    def stop_following(self) -> None:
        """Restore the function that ends steps, if one does."""
        if self.follower is not None:
            self.follower.stop()

    def optimizer_stepped(
        self, optimizer: object, number: int, buffered: int, now: int, thread: tuple[int, str]
    ) -> None:
        """Keep a call of ``optimizer.step()`` that returned at `now`, with so many calls buffered by the recorder.

        Args:
            optimizer: the optimizer.
            number: identifies it.
            buffered: calls that the recorder had buffered.
            now: when the call returned.
            thread: the thread that made it, and its name.
        """
        self._stepping.add(thread)
        if not self._may_end_step(optimizer):
            return
        self.optimizer_calls.append(OptimizerCall(len(self.syncs), buffered, number, now))
        if self.sampler is not None and self.explicit_ends is None:
            self.sampler.take(self.optimizer_samples)

    def takes_steps_of(self, optimizer: object, thread: int, held: tuple[Scope, ...]) -> bool:
        """Return whether an ``optimizer.step()`` of `thread`, in a context that holds `held`, may end a step here."""
        return self.explicit_ends is None and self.is_stepped_by(thread, held) and self._may_end_step(optimizer)

    def _may_end_step(self, optimizer: object) -> bool:
        if self.follower is None:
            return True
        ends_step = self.follower.ends_step
        return ends_step is not None and ends_step(optimizer)

    def raced(self, race: Race) -> None:
        """Keep a race; the same two lines are one race that happened several times."""
        if self.wants_races:
            self._races[race] = self._races.get(race, 0) + 1

    def compiled(self, event: CompilerEvent, thread: int, name: str, held: tuple[Scope, ...]) -> None:
        """Keep a graph break or recompilation of ``torch.compile`` on `thread`."""
        if self._owns(thread, name, held):
            self._compiled.append((time.perf_counter_ns(), event))

    def steps_ended(self) -> int:
        """Return how many steps have ended that count as such."""
        return len(self._boundary_calls() if self.explicit_ends is None else self.explicit_ends)

    def step_ends(self) -> list[int]:
        """Return when the steps ended, by the clock of ``time.perf_counter_ns()``; empty for a region without steps."""
        if self.explicit_ends is not None:
            return self.explicit_times
        calls = list(self.optimizer_calls)
        return [calls[index].time_ns for index in self._boundary_calls()]

    def fail(self, problem: str) -> None:
        """Keep the first reason why this measurement cannot be trusted."""
        if self.problem is None:
            self.problem = problem

    def close(self, environment: Environment, *, reads_clock: bool, finds_races: bool) -> None:
        """Make the final measurement."""
        self.stop_following()
        if self.sampler is not None:
            self.sampler.close()
        self.closed_ns = time.perf_counter_ns()
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
        warmup = DEFAULT_WARMUP if self.warmup is None else self.warmup
        counts: Sequence[bool]
        if self.explicit_ends is not None:
            ends: Sequence[StepEnd] = self.explicit_ends
            times: Sequence[int] = self.explicit_times
            counts = [True] * len(ends)
        else:
            found = self._optimizer_steps()
            every = list(self.optimizer_calls)
            calls = [every[index] for index, _ in found]
            ends = [StepEnd(call.delivered, call.buffered) for call in calls]
            times = [call.time_ns for call in calls]
            counts = step_boundaries.within_trainings([starts for _, starts in found], warmup)
        number = sum(counts)
        syncs = self._in_steps(ends, counts)
        problem = self.problem
        if problem is None and self.follower is not None and not number:
            problem = f"no step ended: {self.follower.why_no_step}"
        if problem is None and ends and warmup >= number:
            problem = f"no step was measured: {number} ran, and warm-up takes {warmup}"
        return Measurement(
            name=self.name,
            environment=environment,
            all_syncs=tuple(syncs),
            steps=number or 1,
            warmup=warmup if ends else 0,
            step_source=self.step_source if ends else "whole region",
            complete=complete,
            problem=problem,
            device_used=self.has_worked or any(not sync.background for sync in syncs),
            unused=None if self.has_worked else self._why_unused(syncs),
            memory=self._memory(number),
            grown=None if self.sampler is None else self.sampler.grown,
            timing=self.timing,
            disturbance=self.disturbance,
            times=self._times(number) if reads_clock else None,
            races=tuple(replace(race, times=times) for race, times in self._races.items())
            if finds_races and self.wants_races
            else None,
            executions=None if self.executions is None else self.executions.counts(),
            compilation=self._compilation(times, counts),
        )

    def _in_steps(self, ends: Sequence[StepEnd], counts: Sequence[bool]) -> list[Sync]:
        """Return the syncs, each with its step, ordered by when they began where that is known.

        Args:
            ends: where the steps end.
            counts: for each of them whether it is a step; syncs in the others belong to none.
        """
        numbers = _step_numbers(counts)
        syncs: list[Sync] = []
        delivered, buffered = [end.delivered for end in ends], [end.buffered for end in ends]
        any_late = False
        for position, (origin, moment) in enumerate(self.syncs):
            if self._is_of_another_region(origin):
                continue
            if moment.sequence is None:
                step = bisect_right(delivered, position)
            else:
                step = bisect_right(buffered, moment.sequence)
                any_late = True
            syncs.append(self._sync(origin, moment, numbers[step]))
        if any_late and all(sync.began_ns is not None for sync in syncs):
            syncs.sort(key=lambda sync: sync.began_ns or 0)
        return syncs

    def _compilation(self, ends: Sequence[int], counts: Sequence[bool]) -> tuple[CompilerEvent, ...] | None:
        """Return the graph breaks and recompilations, each with its step; None if they were not seen."""
        if not compiler_events.is_attached() or compiler_events.problem() or devices.simulation_is_on():
            return None
        numbers = _step_numbers(counts)
        return tuple(replace(event, step=numbers[bisect_right(ends, time_ns)]) for time_ns, event in self._compiled)

    def _times(self, steps: int) -> RegionTimes:
        closed = time.perf_counter_ns() - self.opened_ns
        if not steps:
            return RegionTimes((closed,), closed)
        return RegionTimes(tuple(end - self.opened_ns for end in self.step_ends()), closed)

    def _optimizer_steps(self) -> list[tuple[int, bool]]:
        """Return the indices of the calls of ``optimizer.step()`` that ended a step, and whether that step began
        another training; empty if the region itself is the step, since one call does not repeat.
        """
        found = step_boundaries.steps([(index, call.optimizer) for index, call in enumerate(self.optimizer_calls)])
        return found if len(found) > 1 or self.follower is not None else []

    def _boundary_calls(self) -> list[int]:
        """Return the indices of the calls of ``optimizer.step()`` that ended a step that counts as one."""
        found = self._optimizer_steps()
        warmup = DEFAULT_WARMUP if self.warmup is None else self.warmup
        counts = step_boundaries.within_trainings([starts for _, starts in found], warmup)
        return [index for (index, _), counted in zip(found, counts, strict=True) if counted]

    def _memory(self, steps: int) -> tuple[MemorySample, ...] | None:
        """Return the samples at the ends of steps; None for a region without steps, which shows no growth."""
        if self.sampler is None or not steps:
            return None
        if self.explicit_ends is not None:
            return tuple(self.explicit_samples)
        samples = list(self.optimizer_samples)
        return tuple(samples[index] for index in self._boundary_calls())

    def _is_of_another_region(self, origin: SyncOrigin) -> bool:
        """Return whether a sync was made in the region of another task, which counts it."""
        scope = self.scope
        if not scope.in_task or scope in origin.held or self._all_threads:
            return False
        return any(other.is_region and other.in_task for other in origin.held)

    def _why_unused(self, syncs: Sequence[Sync]) -> str | None:
        """Return which threads used the device if the region's own did not, as a clause."""
        others = sorted({*(name for _, name in self._worked), *(sync.thread for sync in syncs)})
        if not others:
            return None
        return f"the device was used only by other threads ({', '.join(others)}), whose syncs are not counted"

    def _sync(self, origin: SyncOrigin, moment: SyncMoment, step: int | None) -> Sync:
        owned = self._owns(origin.owner, origin.thread, origin.held)
        return Sync(
            kind=origin.kind,
            site=origin.site,
            step=step,
            direction=origin.direction,
            nbytes=origin.nbytes,
            blocked_ns=moment.blocked_ns,
            phase=origin.phase,
            thread=origin.thread if owned or origin.owner != self.scope.thread else f"{origin.thread}, another task",
            device=origin.device,
            allowed=origin.allowed,
            background=not owned,
            began_ns=None if moment.began_ns is None else moment.began_ns - self.opened_ns,
            stream=origin.stream,
        )


def _step_numbers(counts: Sequence[bool]) -> list[int | None]:
    """Return the index of the step that each end belongs to, None if it is not counted, and last that of what follows.

    Without any end, the region is one step.
    """
    ranks = accumulate(counts, initial=0)
    numbers: list[int | None] = [rank if counted else None for rank, counted in zip(ranks, counts, strict=False)]
    return [*numbers, None if counts else 0]
