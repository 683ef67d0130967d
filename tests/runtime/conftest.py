"""A recorder that sees what the test tells it to, in place of one that needs a device."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest

from pytest_gpusync.machine import devices
from pytest_gpusync.measure import recording
from pytest_gpusync.model.measurement import RawSync
from pytest_gpusync.recorders.base import Recorder, RecorderUnavailable


class ScriptedRecorder(Recorder):
    """Emits one sync per call of :meth:`sync`, charged to the caller's line."""

    name: ClassVar[str] = "scripted"
    coverage: ClassVar[str] = "driver"
    blind_spots: ClassVar[str] = ""

    def __init__(self) -> None:
        self.sink = None
        self.running = 0
        self.unavailable: str | None = None
        self.blind = False
        self.planted = 0
        self.held: list[RawSync] = []
        self.late: list[RawSync] = []
        self.calls = SimpleNamespace(value=0)
        self.idle = False
        """True if the device is given no work but that of syncs."""
        self.watcher = None

    def start(self, sink):
        if self.unavailable:
            raise RecorderUnavailable(self.unavailable)
        self.sink = sink
        self.running += 1

    def watch_device_work(self, watcher):
        self.watcher = watcher
        if not self.idle:
            watcher(threading.get_ident())

    def stop(self):
        self.sink = None
        self.running -= 1

    def flush(self):
        while self.late:
            self.sink(self.late.pop(0))
        while self.held:
            self.sink(self.held.pop(0))

    def plant(self):
        self.planted += 1
        if not self.blind:
            self.sync()

    def sync(self, kind="stream", frame=None, thread=None, **details):
        """Make one sync, as a library call made from the caller's line would."""
        if self.sink is not None:
            frame = frame or sys._getframe(1)
            self.sink(RawSync(kind, frame, thread or threading.get_ident(), **details))

    def mark(self):
        while self.held:
            self.sink(self.held.pop(0))
        return self.calls.value

    def note(self, kind="stream", **details):
        """Make one sync that is delivered only when the recorder is flushed, which the end of a step does not do."""
        self.late.append(RawSync(kind, sys._getframe(1), threading.get_ident(), sequence=self.calls.value, **details))
        self.calls.value += 1

    def hold(self, kind="event"):
        """Make one sync that is delivered only when the recorder is flushed."""
        self.held.append(RawSync(kind, sys._getframe(1), threading.get_ident()))


@pytest.fixture
def scripted(monkeypatch):
    """A process with a GPU whose only recorder is a ScriptedRecorder, and CUDA initialised."""
    recorder = ScriptedRecorder()
    monkeypatch.setattr(recording, "candidates", lambda simulated, wanted: ("scripted",))
    monkeypatch.setattr(recording, "create", lambda name: recorder)
    monkeypatch.setattr(devices, "cuda_is_initialized", lambda: True)
    monkeypatch.setattr(recording, "_simulation_is_on", lambda: False)
    monkeypatch.setattr(devices, "detect", lambda: devices.Device("cuda", "Test GPU", "1.0"))
    monkeypatch.setattr(recording, "current", recording.Recording())
    return recorder
