"""What NVML is asked while a GPU is timed, with an NVML that is made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pytest_gpusync.machine.nvml import DisturbanceMonitor


class Error(Exception):
    pass


class Nvml:
    """Stands in for the module pynvml."""

    def __init__(self, reasons=0, processes=1, at_work=(1,), missing=()):
        self.reasons, self.processes, self.at_work, self.missing = reasons, processes, at_work, missing
        self.open = 0

    def __getattribute__(self, name):
        if name.startswith("nvml") and name in object.__getattribute__(self, "missing"):
            raise Error("Not Supported")
        return object.__getattribute__(self, name)

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert uuid == "GPU-1"
        return "handle"

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in range(self.processes)]

    def nvmlDeviceGetProcessUtilization(self, handle, since):
        return [SimpleNamespace(pid=pid, smUtil=50, timeStamp=since + 1) for pid in self.at_work]


@pytest.fixture
def seen(monkeypatch):
    """What a watch over a GPU says, and the NVML it asked."""

    def seen(**state):
        nvml = Nvml(**state)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        watch = DisturbanceMonitor("GPU-1")
        watch.sample()
        disturbance = watch.close()
        assert nvml.open == 0
        return disturbance

    return seen


@pytest.mark.parametrize(
    ("state", "note", "spoils"),
    [
        pytest.param({}, None, False, id="alone and at full speed"),
        pytest.param({"reasons": 0x1}, None, False, id="idle clocks"),
        pytest.param({"reasons": 0x4}, "the GPU was at its power limit", False, id="power limit"),
        pytest.param({"reasons": 0x40}, "the GPU was throttled (hardware thermal slowdown)", True, id="thermal"),
        pytest.param({"processes": 2}, "another process held the GPU, idle", False, id="idle process"),
        pytest.param({"processes": 3}, "2 other processes held the GPU, idle", False, id="idle processes"),
        pytest.param({"processes": 2, "at_work": (1, 2)}, "another process kept the GPU busy", True, id="busy process"),
        pytest.param({"processes": 0, "at_work": ()}, None, False, id="no process is listed in a container"),
        pytest.param(
            {"reasons": 0x40, "missing": ("nvmlDeviceGetCurrentClocksEventReasons",)},
            "the GPU was throttled (hardware thermal slowdown)",
            True,
            id="an older NVML",
        ),
        pytest.param({"missing": ("nvmlDeviceGetProcessUtilization",)}, None, False, id="no utilization"),
        pytest.param(
            {"missing": ("nvmlDeviceGetHandleByUUID",)},
            "throttling and other processes were not checked (NVML: Not Supported)",
            False,
            id="no such GPU",
        ),
    ],
)
def test_what_goes_on_on_the_gpu_is_noted(seen, state, note, spoils):
    assert seen(**state) == (note, spoils)


def test_without_nvml_it_is_said_that_nothing_was_looked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert DisturbanceMonitor("GPU-1").close().note.startswith("throttling and other processes were not checked")
