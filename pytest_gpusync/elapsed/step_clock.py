"""Times steps of gpu_train: their issue by the host's clock, their completion by the device's.

Events are recorded around each step and read when the last one has completed, so timing adds no sync to a step. They
are recorded on the stream that is current between steps: work on other streams counts from where that stream waits for
it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpusync.machine.devices import simulation_is_on
from pytest_gpusync.machine.nvml import Watch, watch_current
from pytest_gpusync.measure.recording import uncounted
from pytest_gpusync.model.estimates import median_estimate
from pytest_gpusync.model.measurement import StepTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.model.estimates import Estimate


class _Mark(NamedTuple):
    """One step while its events are out."""

    issue: int
    returned: int
    start: Any
    end: Any
    in_flight: int | None


class StepClock:
    """Times steps, each between :meth:`begin` and :meth:`end`."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []
        self._start: Any = None
        self._begun = 0
        self._make_event: Callable[[], Any] | None = None
        """None until there is a device to time."""
        self._in_flight: deque[Any] = deque()
        """Ends of steps that the device was not known to have come to."""

    def begin(self) -> None:
        """A step begins."""
        self._start = self._event()
        self._begun = time.perf_counter_ns()

    def end(self) -> None:
        """The step has returned to the host."""
        returned = time.perf_counter_ns()
        end = self._event()
        in_flight = None if end is None else self._count_in_flight(end)
        self._marks.append(_Mark(returned - self._begun, returned, self._start, end, in_flight))

    def _event(self) -> Any:
        """Record an event on the current stream; None where no device can be timed. Initialises nothing."""
        if self._make_event is None:
            if not _is_timed():
                return None
            torch: Any = sys.modules["torch"]
            # torch.cuda.Event does in Python what this does natively: cold, between steps, that is 20 us an event.
            self._make_event = partial(torch.Event, torch.device("cuda"), enable_timing=True)
        event = self._make_event()
        event.record()
        return event

    def _count_in_flight(self, end: Any) -> int:
        """Return how many steps the device has not done, the one that ends with `end` included. Waits for nothing."""
        while self._in_flight and self._in_flight[0].query():
            self._in_flight.popleft()
        self._in_flight.append(end)
        return len(self._in_flight)

    def collect(self) -> list[StepTime] | None:
        """Wait for the last step, once, and return the time of each; None if no device could be timed."""
        on_device = [mark for mark in self._marks if mark.end is not None]
        if not on_device:
            return None
        last = on_device[-1]
        # When the device has done before it is waited for is not known: then it was not behind.
        was_behind = not last.end.query()
        with uncounted():
            last.end.synchronize()
            completed = time.perf_counter_ns() if was_behind else last.returned
        return [_step_time(mark, last.end, completed) for mark in self._marks]


class Timekeeper:
    """The clock of a run of steps, and a watch over the GPU for as long as the ``with`` block lasts."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self._watch: Watch | None = None

    def __enter__(self) -> Timekeeper:
        if _is_timed():
            self._watch = watch_current()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()

    def tell(self, region: Region, only_if: int | None = None) -> None:
        """Give a region the times of its steps; if `only_if`, only where it has as many steps as that."""
        times = self.clock.collect()
        if self._watch is None and times is not None:
            self._watch = watch_current()  # CUDA was initialised by the first step
        disturbance = None if self._watch is None else self._watch.close()
        self._watch = None
        if only_if is None or region.steps == only_if:
            region.time_steps(times, disturbance)


def measure_dispatch(step: Callable[[], object], *, steps: int, warmup: int) -> Estimate:
    """Time steps on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.dispatch_ratio`."""
    from pytest_gpusync.elapsed.paired import no_garbage_collection, settle

    clock = StepClock()
    with uncounted(), no_garbage_collection():
        for _ in range(warmup):
            step()
        settle()
        for _ in range(steps):
            clock.begin()
            step()
            clock.end()
        times = clock.collect() or []
    return median_estimate([time.issue / time.complete for time in times if time.complete])


def _is_timed() -> bool:
    """Tell whether there is a device to time; initialises nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and not simulation_is_on()


def _step_time(mark: _Mark, last: Any, completed: int) -> StepTime:
    """Return the time of a step, given that the event `last` completed at `completed` on the host's clock."""
    if mark.start is None or mark.end is None:
        return StepTime(mark.issue, None, None, mark.in_flight)
    complete = round(mark.start.elapsed_time(mark.end) * 1e6)
    done = completed - round(mark.end.elapsed_time(last) * 1e6)
    return StepTime(mark.issue, complete, max(0, done - mark.returned), mark.in_flight)
