"""Stops a traced program: after some seconds with the device (``--limit``), or some measured steps (``--steps``)."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pytest_gpusync.measure.region_log import DEFAULT_WARMUP
from pytest_gpusync.measure.step_boundaries import StepCounter
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from pytest_gpusync.measure.region import Region

_POLL_S: Final = 0.05
"""How often the first use of the device is looked for."""


class Stopped(SystemExit):
    """Raised in the program to stop it; not an Exception, so that the program does not catch it."""


class _Stops:
    """The two limits of one run."""

    def __init__(self, region: Region, seconds: float | None, steps: int | None) -> None:
        self._region = region
        self._seconds = seconds
        self._steps = steps
        self._counter = StepCounter()
        self._device_used = False
        self.reason: str | None = None
        """Why the program was stopped, and where; None while it need not stop."""

    @property
    def ended_early(self) -> str | None:
        """How many steps ran if the program ended before the wanted number, as a sentence; None if it did not."""
        if self._steps is None or self.reason is not None:
            return None
        measured = max(0, self._region.steps_ended - DEFAULT_WARMUP)
        return f"the program ended after {measured} of {self._steps} measured steps"

    def on_signal(self, _signal: int, frame: FrameType | None) -> None:
        """Stop the program if it is time. Runs on the main thread."""
        if self.reason is None and not self._device_used and self._seconds is not None:
            if self._region.saw_device:
                self._device_used = True
                signal.setitimer(signal.ITIMER_REAL, self._seconds)
            return
        if self.reason is None:
            self.reason = f"after {self._seconds:g} s with the device (--limit){_place(frame)}"
        raise Stopped

    def on_step(self, optimizer: int | None) -> None:
        """Stop the program if enough steps have ended. Runs on the thread that makes them."""
        if self._steps is None or self.reason is not None:
            return
        wanted = self._steps + DEFAULT_WARMUP
        # Of a training that follows another, the first step does not count; that is found out only when it is near.
        if self._counter.called(optimizer) < wanted or self._region.steps_ended < wanted:
            return
        steps = "step" if self._steps == 1 else "steps"
        self.reason = f"after {self._steps} measured {steps} (--steps){_place(sys._getframe())}"
        if threading.current_thread() is not threading.main_thread():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
            raise SystemExit  # ends this thread without a traceback
        raise Stopped


@contextmanager
def limits(region: Region | None, seconds: float | None, steps: int | None) -> Iterator[_Stops | None]:
    """Stop the program in the ``with`` block after `seconds` with the device, or after `steps` measured steps.

    Raises:
        Stopped: in the program.
    """
    if region is None or (seconds is None and steps is None):
        yield None
        return
    stops = _Stops(region, seconds, steps)
    previous = signal.signal(signal.SIGALRM, stops.on_signal)
    # System calls that the signal interrupts go on: the program must not notice that the device is looked for.
    signal.siginterrupt(signal.SIGALRM, False)
    region.on_step = stops.on_step
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, _POLL_S, _POLL_S)
    try:
        yield stops
    finally:
        region.on_step = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _place(frame: FrameType | None) -> str:
    """Return the line of the program that a frame is in, as the end of a sentence."""
    site, _ = attribution.charge(frame, threading.get_ident())
    return f", at {site.path}:{site.line}" if site.line else ""
