"""Open a region, get a measurement. Regions nest: each sync is attributed once and added to every open region."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pytest_gpusync.measure import recording
from pytest_gpusync.measure.memory_sampler import MemorySampler
from pytest_gpusync.measure.region_log import DEFAULT_WARMUP, RegionLog, StepEnd
from pytest_gpusync.model.measurement import MeasurementError
from pytest_gpusync.model.site_counts import site_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_gpusync.measure.device_choice import DeviceChoice
    from pytest_gpusync.model.measurement import Disturbance, Measurement, Race, SiteCount, StepTime

notebook_renderer: Callable[[Measurement], str] | None = None
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
    def steps(self) -> int:
        """Steps seen so far, including warm-up; 1 for a region without steps."""
        return self.result().steps

    def __repr__(self) -> str:
        state = "open" if self._log.result is None else "closed"
        if self._log.result is None:
            recording.current.flush()  # a recorder may have buffered syncs
        return f"<Region {self.name!r} {state}: {len(self._log.syncs)} syncs seen>"

    def _repr_html_(self) -> str | None:
        """Return what a notebook shows of the region."""
        return None if notebook_renderer is None else notebook_renderer(self.result())


@contextmanager
def record(
    name: str = "region",
    *,
    warmup: int | None = None,
    recorder: str = "auto",
    device: DeviceChoice = "auto",
    memory: bool = False,
    process_memory: bool = False,
    all_threads: bool = False,
    races: bool = True,
) -> Iterator[Region]:
    """Measure the syncs of a ``with`` block.

    Args:
        name: the region's name in reports.
        warmup: steps to leave out of budgets; 1 by default, 0 for a region without steps.
        recorder: "auto", or one of :data:`pytest_gpusync.recorders.NAMES`.
        device: "auto" is the simulated device if it is on, else the GPU.
        memory: read the memory counters at the end of each step, to estimate growth.
        process_memory: also query the driver for the memory of the process, which takes some tenths of a millisecond.
        all_threads: count the syncs of all threads. By default only the thread that opens the region and autograd's
            threads working for it count; syncs of other threads are reported as background.
        races: look for races, on the simulated device.

    Yields:
        The open region; its ``syncs``, ``sites`` and ``result()`` are final after the block.

    Raises:
        MeasurementError: nothing can be measured here.
    """
    sampler = MemorySampler(DEFAULT_WARMUP if warmup is None else warmup, process_memory) if memory else None
    log = RegionLog(name, warmup, sampler, all_threads=all_threads, races=races)
    recording.current.open(log, recorder, device)
    try:
        yield Region(log)
    finally:
        recording.current.close(log)
