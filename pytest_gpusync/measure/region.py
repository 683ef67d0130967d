"""Open a region, get a measurement. Regions nest: each sync is attributed once and added to every open region."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_gpusync.machine import devices
from pytest_gpusync.machine.deferred_signals import finish, with_signals_deferred
from pytest_gpusync.measure import child_process, child_reports, device_choice, recording, scopes
from pytest_gpusync.measure.memory_sampler import MemorySampler
from pytest_gpusync.measure.region_log import DEFAULT_WARMUP, RegionLog, StepEnd
from pytest_gpusync.measure.step_at import chosen, follower_of
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.model.site_counts import device_counts, site_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_gpusync.measure.device_choice import DeviceChoice
    from pytest_gpusync.measure.step_on import StepEndFollower, StepOn
    from pytest_gpusync.model.measurement import Disturbance, EventKind, Measurement, Race, SiteCount, StepTime
    from pytest_gpusync.source.line_executions import LineExecutions

text_renderer: Callable[[Measurement], str] | None = None
"""Returns a measurement as text for ``print()``. Set by ``pytest_gpusync``; None: ``repr()`` is shown."""
notebook_renderer: Callable[[Measurement], str | None] | None = None
"""Returns the HTML of a measurement for a notebook. Set by ``pytest_gpusync``; None: notebooks show ``repr()``."""


class Region:
    """A part of a program that is being measured, or was."""

    def __init__(self, log: RegionLog) -> None:
        self.name = log.name
        self._log = log

    def mark_step(self, source: str = "mark_step()") -> None:
        """End a step here. From the first call on, ``optimizer.step()`` no longer ends the steps of this region."""
        log = self._log
        buffered = recording.current.mark()
        if log.explicit_ends is None:
            log.explicit_ends = []
            log.step_source = source
        log.explicit_ends.append(StepEnd(len(log.syncs), buffered))
        log.explicit_times.append(time.perf_counter_ns())
        if log.sampler is not None:
            log.sampler.take(log.explicit_samples)
        if log.on_step is not None:
            log.on_step(None)

    @property
    def on_step(self) -> Callable[[int | None], None] | None:
        """Called after each call of an optimizer that may end a step, with its number, and after each ``mark_step()``,
        with None. It may raise an exception, which is then raised in the program.
        """
        return self._log.on_step

    @on_step.setter
    def on_step(self, function: Callable[[int | None], None] | None) -> None:
        self._log.on_step = function

    @property
    def saw_device(self) -> bool:
        """True once CUDA is initialized in this process or a sync was seen. It reads no recorder."""
        return devices.cuda_is_initialized() or bool(self._log.syncs)

    def step_on(self, step_on: StepOn) -> None:
        """Say what ends the steps of this region; call it before the first step.

        Args:
            step_on: an optimizer, if several are called in a step; a class of optimizers or its name; or a function
                that makes one step, or its name, such as ``"train.train_step"``.

        Raises:
            ValueError: it is none of these.
        """
        self.end_steps_by(follower_of(step_on))

    def step_at(self, function: str) -> None:
        """End a step of this region whenever a function returns, or a generator yields; call it before the first step.

        Args:
            function: the name of the function, such as ``"Engine.step"``, with or without its module.

        Raises:
            ValueError: it is no name, or calls cannot be seen.
        """
        self.end_steps_by(follower_of(chosen(None, function)))

    def end_steps_by(self, follower: StepEndFollower) -> None:
        """Let `follower` end the steps of this region."""
        self._log.follow(follower, lambda: self.mark_step(follower.name))

    def record_allocations_from(self, step: int) -> None:
        """If memory grows, record which lines allocate, but not before the end of step `step`."""
        if self._log.sampler is not None:
            self._log.sampler.allocations.not_before = step

    def set_step_times(self, times: Sequence[StepTime] | None, disturbance: Disturbance | None = None) -> None:
        """Keep how long each step took and what NVML saw meanwhile; None if steps could not be timed."""
        self._log.timing = None if times is None else tuple(times)
        self._log.disturbance = disturbance

    def warm_up(self, count: int) -> None:
        """Leave the first `count` steps out of budgets."""
        if count < 0:
            raise ValueError(f"warm_up() takes a number of steps of at least 0, not {count}")
        self._log.warmup = count

    def count_executions(self, executions: LineExecutions) -> None:
        """Let `executions` count how often the lines that wait from now on are executed."""
        self._log.executions = executions

    def result(self) -> Measurement:
        """Return what was measured: final once the region is closed, before that what was seen so far."""
        if self._log.result is not None:
            return self._log.result
        recording.current.flush()
        current = recording.current
        return self._log.measurement(
            current.environment(),
            reads_clock=current.reads_clock,
            finds_races=current.finds_races,
            complete=False,
        )

    def children(self) -> list[Measurement]:
        """Return what was measured of each process that the program has started and that used the device, for a region
        that was opened with ``children=True``, while it is open or just after it.
        """
        log = self._log
        return child_reports.reports.measured(
            child_reports.Window(
                name=log.name,
                environment=self.result().environment,
                opened_ns=log.opened_ns,
                closed_ns=time.perf_counter_ns() if log.closed_ns is None else log.closed_ns,
                step_ends=log.step_ends(),
                step_source=log.step_source,
                warmup=DEFAULT_WARMUP if log.warmup is None else log.warmup,
                checks_races=self.result().races is not None,
            )
        )

    @property
    def steps_ended(self) -> int:
        """Steps that have ended so far and count as such, warm-up included: 0 before the second ``optimizer.step()``,
        since one call does not repeat.
        """
        return self._log.steps_ended()

    @property
    def opened_ns(self) -> int:
        """When the region opened, by the clock of ``time.perf_counter_ns()``: its times count from here."""
        return self._log.opened_ns

    @property
    def syncs(self) -> int:
        """Syncs of the region so far, including warm-up, without allowed ones and those of background threads.

        Raises:
            MeasurementError: the region was not measured; not measured is not zero.
        """
        measurement = self.result()
        if measurement.problem is not None:
            raise MeasurementError(measurement.problem)
        return sum(1 for sync in measurement.all_syncs if sync.allowed is None and not sync.background)

    @property
    def sites(self) -> list[SiteCount]:
        """The lines that synced, most syncs first."""
        return site_counts(self.result())

    @property
    def races(self) -> tuple[Race, ...]:
        """The races seen so far: pairs of accesses that nothing orders.

        Raises:
            MeasurementError: races were not checked, as on a real GPU; not checked is not none.
        """
        races = self.result().races
        if races is None:
            raise MeasurementError("races were not checked: they are found on the simulated device only")
        return races

    @property
    def graph_breaks(self) -> int | None:
        """How often ``torch.compile`` broke a graph in the region, warm-up included; None if that was not seen, because
        its compiler is not loaded, or on the simulated device. See ``result().compilation`` for their lines.
        """
        return self._compiler_events("graph_break")

    @property
    def recompilations(self) -> int | None:
        """How often ``torch.compile`` compiled a function again because a guard had failed; None as above."""
        return self._compiler_events("recompilation")

    def _compiler_events(self, kind: EventKind) -> int | None:
        events = self.result().compilation
        return None if events is None else sum(1 for event in events if event.kind == kind)

    @property
    def syncs_by_device(self) -> dict[int | None, int]:
        """The same syncs as :attr:`syncs` by the ordinal of the device waited for, such as ``{0: 1000, 1: 1000}``.

        None is the key of syncs whose device the recorder does not know. Devices without syncs have no key.

        Raises:
            MeasurementError: the region was not measured.
        """
        measurement = self.result()
        if measurement.problem is not None:
            raise MeasurementError(measurement.problem)
        return {count.device: count.syncs for count in device_counts(measurement)}

    @property
    def steps(self) -> int:
        """Steps seen so far, including warm-up; 1 for a region without steps."""
        return self.result().steps

    def __repr__(self) -> str:
        state = "open" if self._log.result is None else "closed"
        if self._log.result is None:
            recording.current.flush()  # a recorder may have buffered syncs
        return f"<Region {self.name!r} {state}: {len(self._log.syncs)} syncs seen>"

    def __str__(self) -> str:
        if text_renderer is None:
            return repr(self)
        measurement = self.result()
        if self._log.result is None:  # what was seen so far
            measurement = replace(measurement, complete=True)
        return text_renderer(measurement)

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows of the region."""
        return None if notebook_renderer is None else notebook_renderer(self.result())


class record(AbstractContextManager[Region]):  # noqa: N801 (used like a function)
    """Measure the syncs of a ``with`` block.

    ``torch.compile`` traces through the block, also with ``fullgraph=True``, and then nothing is measured: open the
    region around the call of the compiled function.

    Args:
        name: the region's name in reports.
        warmup: steps to leave out of budgets; 1 by default, 0 for a region without steps.
        recorder: "auto", or one of :data:`pytest_gpusync.recorders.NAMES`.
        device: "auto" is the simulated device if it is on, else the GPU.
        memory: read the memory counters at the end of each step, to estimate growth.
        process_memory: also query the driver for the memory of the process, which takes some tenths of a millisecond.
        all_threads: count the syncs of all threads. By default those of the thread that opens the region count, of
            threads that call ``optimizer.step()``, of work that the region hands to a thread pool, and of autograd's
            threads working for these; syncs of other threads are reported as background. A region that a task of an
            event loop opens covers that task and those that it starts.
        races: look for races, on the simulated device.
        children: ask the processes that the program starts meanwhile for what they do on the device; see
            :meth:`Region.children`.
        step_on: what ends a step; see :meth:`Region.step_on`.
        step_at: the name of the function that makes a step; see :meth:`Region.step_at`.

    The value of the ``with`` statement is the open :class:`Region`; its ``syncs``, ``sites`` and ``result()`` are final
    after the block. Everything is restored, also if a signal handler raises while the block is left.

    Raises:
        MeasurementError: nothing can be measured here.
    """

    def __init__(
        self,
        name: str = "region",
        *,
        warmup: int | None = None,
        recorder: str = "auto",
        device: DeviceChoice = "auto",
        memory: bool = False,
        process_memory: bool = False,
        all_threads: bool = False,
        races: bool = True,
        children: bool = False,
        step_on: StepOn = None,
        step_at: str | None = None,
    ) -> None:
        self._name = name
        self._warmup = warmup
        self._recorder = recorder
        self._device = device
        self._memory = memory
        self._process_memory = process_memory
        self._all_threads = all_threads
        self._races = races
        self._children = children
        self._step_on = chosen(step_on, step_at)
        self._log: RegionLog | None = None
        self._asks_children = False

    def __enter__(self) -> Region:
        if scopes.traced_by_compiler():
            return _TRACED
        follower = None if self._step_on is None else follower_of(self._step_on)
        warmup = self._warmup
        sampler = (
            MemorySampler(DEFAULT_WARMUP if warmup is None else warmup, self._process_memory) if self._memory else None
        )
        log = RegionLog(self._name, warmup, sampler, all_threads=self._all_threads, races=self._races)
        log.frame = sys._getframe(1)
        region = Region(log)
        try:
            with_signals_deferred(lambda: self._open(log))
            if follower is not None:
                region.end_steps_by(follower)
        except BaseException:
            self._log = None
            finish(lambda: self._abandon(log))
            raise
        return region

    def _open(self, log: RegionLog) -> None:
        self._log = log
        recording.current.open(log, self._recorder, self._device)
        if self._children:
            child_reports.reports.open(child_process.report_to)
            self._asks_children = True

    def _abandon(self, log: RegionLog) -> None:
        self._stop_asking()
        recording.current.forget(log)

    def __exit__(self, *exc: object) -> None:
        if self._log is not None:  # else traced by torch.compile
            finish(self._close)

    def _close(self) -> None:
        """Close the region; an interrupted call can be repeated."""
        self._stop_asking()
        if self._log is not None:
            recording.current.close(self._log)
            self._log = None

    def _stop_asking(self) -> None:
        if self._asks_children:
            self._asks_children = False
            child_reports.reports.close()

    def __del__(self) -> None:
        # A signal handler that raises as __exit__() begins leaves the region open, and torch changed.
        log: RegionLog | None = getattr(self, "_log", None)
        if log is not None and not sys.is_finalizing():
            log.fail("the region was dropped before it was closed: keep record() in a with statement")
            finish(self._close)


def _traced_region() -> Region:
    """Return the region of a block that torch.compile traced: its figures raise a MeasurementError."""
    log = RegionLog("region", None, None, all_threads=False)
    log.fail("torch.compile traced the region, so it was not measured: open it around the call")
    log.close(device_choice.unknown_environment(), reads_clock=False, finds_races=False)
    return Region(log)


_TRACED: Final = _traced_region()
