"""Times steps of gpu_train: their issue on the host's clock, their completion on the device's.

Events are recorded around each step and read after the last one has completed, so timing adds no sync to a step. They
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
from pytest_gpusync.machine.nvml import DisturbanceMonitor, monitor_current_gpu
from pytest_gpusync.measure.recording import uncounted
from pytest_gpusync.model.estimates import median_estimate
from pytest_gpusync.model.measurement import StepTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.measure.region import Region
    from pytest_gpusync.model.estimates import Estimate


class _TimedStep(NamedTuple):
    """A step whose events have not been read yet."""

    issue: int
    returned: int
    start: Any
    end: Any
    in_flight: int | None


class StepClock:
    """Times steps, each between :meth:`begin` and :meth:`end`."""

    def __init__(self) -> None:
        self._steps: list[_TimedStep] = []
        self._start: Any = None
        self._began_ns = 0
        self._make_event: Callable[[], Any] | None = None
        """None until there is a device to time."""
        self._in_flight: deque[Any] = deque()
        """Ends of steps that the device was not known to have reached."""

    def begin(self) -> None:
        """Start a step."""
        self._start = self._event()
        self._began_ns = time.perf_counter_ns()

    def end(self) -> None:
        """End a step: it has returned to the host."""
        returned = time.perf_counter_ns()
        end = self._event()
        in_flight = None if end is None else self._count_in_flight(end)
        self._steps.append(_TimedStep(returned - self._began_ns, returned, self._start, end, in_flight))

    def _event(self) -> Any:
        """Record an event on the current stream; None if no device can be timed. Initializes nothing."""
        if self._make_event is None:
            if not _can_time():
                return None
            torch: Any = sys.modules["torch"]
            # torch.cuda.Event is a Python class around this one; with cold caches, between steps, it takes 20 us per
            # event.
            self._make_event = partial(torch.Event, torch.device("cuda"), enable_timing=True)
        event = self._make_event()
        event.record()
        return event

    def _count_in_flight(self, end: Any) -> int:
        """Return how many steps the device has not finished, including the one that ends with `end`. Does not wait."""
        while self._in_flight and self._in_flight[0].query():
            self._in_flight.popleft()
        self._in_flight.append(end)
        return len(self._in_flight)

    def collect(self) -> list[StepTime] | None:
        """Wait once, for the last step, and return the time of each; None if no device could be timed."""
        on_device = [step for step in self._steps if step.end is not None]
        if not on_device:
            return None
        last = on_device[-1]
        # If the device finished before this wait, when it did is unknown: then it was not behind the host.
        was_behind = not last.end.query()
        with uncounted():
            last.end.synchronize()
            completed = time.perf_counter_ns() if was_behind else last.returned
        return [_step_time(step, last.end, completed) for step in self._steps]


class Timekeeper:
    """The clock of a run of steps, and a monitor of the GPU for the duration of the ``with`` block."""

    def __init__(self) -> None:
        self.clock = StepClock()
        self._watch: DisturbanceMonitor | None = None

    def __enter__(self) -> Timekeeper:
        if _can_time():
            self._watch = monitor_current_gpu()
        return self

    def __exit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.close()

    def give_times_to(self, region: Region, only_if: int | None = None) -> None:
        """Give a region the times of its steps; if `only_if` is given, only if the region has that many steps."""
        times = self.clock.collect()
        if self._watch is None and times is not None:
            self._watch = monitor_current_gpu()  # the first step initialized CUDA
        disturbance = None if self._watch is None else self._watch.close()
        self._watch = None
        if only_if is None or region.steps == only_if:
            region.set_step_times(times, disturbance)


def measure_dispatch(step: Callable[[], object], *, steps: int, warmup: int) -> Estimate:
    """Time steps on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.dispatch_ratio`."""
    from pytest_gpusync.elapsed.paired import no_garbage_collection, wait_until_idle

    clock = StepClock()
    with uncounted(), no_garbage_collection():
        for _ in range(warmup):
            step()
        wait_until_idle()
        for _ in range(steps):
            clock.begin()
            step()
            clock.end()
        times = clock.collect() or []
    return median_estimate([time.issue / time.complete for time in times if time.complete])


def _can_time() -> bool:
    """Return whether there is a device to time; initializes nothing."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized() and not simulation_is_on()


def _step_time(step: _TimedStep, last: Any, completed: int) -> StepTime:
    """Return the time of a step, given that the event `last` completed at `completed` on the host's clock."""
    if step.start is None or step.end is None:
        return StepTime(step.issue, None, None, step.in_flight)
    complete = round(step.start.elapsed_time(step.end) * 1e6)
    done = completed - round(step.end.elapsed_time(last) * 1e6)
    return StepTime(step.issue, complete, max(0, done - step.returned), step.in_flight)
