"""The parts of a step: host dispatch t1, device work t2, read-back t3, and the cost of a barrier in each of n steps.

With a barrier in each step nothing overlaps: n (t1 + t2 + t3). With one barrier at the end, the device works while the
host dispatches: t1 + n t2 + t3 if the device is slower, n t1 + t2 + t3 if the host is. Both are predicted from the
parts and measured, so a step that does not fit this model shows it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from pytest_gpusync.elapsed.paired import no_garbage_collection, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Callable

_ROUNDS: Final = 9
"""Measurements of each part; the median counts."""
_MAX_CALLS: Final = 64
"""Most calls queued behind a kernel that keeps the device busy: the driver's queue holds about a thousand launches."""
_MAX_LATE: Final = 4
_QUEUED_MS: Final = 4.0
"""Host time that a sample of queued calls may take."""


class StepSynchronizes(ValueError):
    """A step that should only be dispatched makes the host wait; one line."""


@dataclass(frozen=True, slots=True, repr=False)
class Decomposition:
    """The parts of a step, in milliseconds, and two ways to run `steps` of them."""

    steps: int
    dispatch_ms: float
    """t1: host time to issue a step."""
    device_ms: float
    """t2: device time of its work, with the host out of the way."""
    read_ms: float
    """t3: host time to read the result once the device is done."""
    each_ms: float
    """Measured: every step is read before the next is issued."""
    end_ms: float
    """Measured: all steps are issued, and the last is read."""
    note: str | None = None
    """What NVML saw of throttling and other processes; None if nothing."""

    @property
    def each_predicted_ms(self) -> float:
        """n (t1 + t2 + t3)."""
        return self.steps * (self.dispatch_ms + self.device_ms + self.read_ms)

    @property
    def end_predicted_ms(self) -> float:
        """t1 + n t2 + t3; if issuing takes longer than the work, n t1 + t2 + t3."""
        slower, quicker = max(self.dispatch_ms, self.device_ms), min(self.dispatch_ms, self.device_ms)
        return self.steps * slower + quicker + self.read_ms

    def __repr__(self) -> str:
        text = (
            f"dispatch {self.dispatch_ms:.4g} ms, device {self.device_ms:.4g} ms, read {self.read_ms:.4g} ms; "
            f"{self.steps} steps with a read in each: {self.each_ms:.4g} ms ({self.each_predicted_ms:.4g} predicted), "
            f"with one at the end: {self.end_ms:.4g} ms ({self.end_predicted_ms:.4g} predicted)"
        )
        return f"{text}; {self.note}" if self.note else text


def decompose(step: Callable[[], object], read: Callable[[], object], *, steps: int, warmup: int) -> Decomposition:
    """Measure the parts of a step on the current GPU; see :meth:`pytest_gpusync.plugin.fixtures.GpuElapsed.decompose`.

    Raises:
        StepSynchronizes: `step` makes the host wait, so it cannot be separated from its read-back.
    """
    from pytest_gpusync.machine.nvml import monitor_current_gpu
    from pytest_gpusync.measure.recording import uncounted

    with no_garbage_collection(), uncounted():
        for _ in range(max(warmup, 1)):
            step()
            read()
        wait_until_idle()
        watch = monitor_current_gpu()
        try:
            t1, t2 = _dispatch_and_device_ms(step)
            t3 = median(_read_ms(step, read) for _ in range(_ROUNDS))
            each, end = [], []
            for _ in range(_ROUNDS):
                each.append(_total_ms(step, read, steps, each_is_read=True))
                end.append(_total_ms(step, read, steps, each_is_read=False))
                watch.sample()
        finally:
            disturbance = watch.close()
    parts = Decomposition(steps, t1, t2, t3, median(each), median(end))
    return replace(parts, note=disturbance.note)


def _dispatch_and_device_ms(step: Callable[[], object]) -> tuple[float, float]:
    """Return the host's and the device's milliseconds for one step, each measured without the other in its way.

    The steps are issued behind a kernel that keeps the device busy until all of them are queued: the host waits for
    nothing, and the device has all its work queued.
    """
    import torch

    begun = time.perf_counter()
    step()
    once = max((time.perf_counter() - begun) * 1e3, 1e-3)
    wait_until_idle()
    calls = max(1, min(_MAX_CALLS, int(_QUEUED_MS / once)))
    cycles_per_ms = _cycles_per_ms()
    busy_ms = 2.0 + 3 * calls * once
    dispatch: list[float] = []
    device: list[float] = []
    too_late = 0
    while len(dispatch) < _ROUNDS:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(busy_ms * cycles_per_ms))
        start.record()
        begun = time.perf_counter()
        for _ in range(calls):
            step()
        issued = (time.perf_counter() - begun) * 1e3
        still_busy = not start.query()
        end.record()
        wait_until_idle()
        if still_busy:
            dispatch.append(issued / calls)
            device.append(start.elapsed_time(end) / calls)
            continue
        # A host that was only delayed is in time when the device is kept busy for longer; one that waits never is.
        too_late += 1
        busy_ms *= 2
        if too_late == _MAX_LATE:
            raise StepSynchronizes("step() makes the host wait for the GPU; read its result in read()")
    return median(dispatch), median(device)


def _cycles_per_ms() -> float:
    """Return the cycles for which ``torch.cuda._sleep`` keeps the current GPU busy for one millisecond."""
    import torch

    tries: list[float] = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(2_000_000)
        end.record()
        wait_until_idle()
        tries.append(2_000_000 / max(start.elapsed_time(end), 1e-3))
    return median(tries)


def _read_ms(step: Callable[[], object], read: Callable[[], object]) -> float:
    """Return the milliseconds that reading takes once the device has finished the step."""
    step()
    wait_until_idle()
    begun = time.perf_counter()
    read()
    return (time.perf_counter() - begun) * 1e3


def _total_ms(step: Callable[[], object], read: Callable[[], object], steps: int, *, each_is_read: bool) -> float:
    """Return the milliseconds from an idle device to the last value read."""
    wait_until_idle()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
        if each_is_read:
            read()
    if not each_is_read:
        read()
    return (time.perf_counter() - begun) * 1e3
