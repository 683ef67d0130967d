"""Memory at the ends of steps: which steps, and what is read."""

from __future__ import annotations

import mmap
import os
import sys
from types import SimpleNamespace

import pytest

from pytest_gpusync.machine.driver_memory import DriverMemory
from pytest_gpusync.measure.allocations import AllocationTracker
from pytest_gpusync.measure.memory_sampler import MemoryCounters
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.measurement import MemorySample

PAGE = 4096
OWN = os.getpid()


class Torch:
    """Stands in for torch: as many GPUs as there are statistics, of which some have a context."""

    def __init__(self, *gpus, refusal=None, contexts=None):
        self.gpus, self.refusal = gpus, refusal
        self.contexts = list(range(len(gpus))) if contexts is None else contexts
        self.asked = []
        self.cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: len(gpus))
        self._C = SimpleNamespace(
            _cuda_memoryStats=self.statistics, _cuda_hasPrimaryContext=lambda index: index in self.contexts
        )

    def statistics(self, device):
        self.asked.append(device)
        if self.refusal is not None:
            raise self.refusal
        return self.gpus[device]


def gpu(allocated, reserved, **more):
    return {
        "allocated_bytes": {"all": {"current": allocated}},
        "reserved_bytes": {"all": {"current": reserved}},
        **more,
    }


@pytest.fixture
def counters():
    counters = MemoryCounters()
    yield counters
    counters.close()


@pytest.fixture
def cuda(monkeypatch):
    """Put a torch in place that has these GPUs."""
    monkeypatch.setattr(MemoryCounters, "_resident", lambda _: PAGE)

    def cuda(*gpus, **more):
        torch = Torch(*gpus, **more)
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    return cuda


def test_memory_is_that_of_all_gpus(cuda, counters):
    cuda(gpu(10, 20, num_device_alloc=3), gpu(1, 2, num_device_alloc=4))
    assert counters.read() == MemorySample(11, 22, PAGE, 7)


def test_frees_are_counted_as_mallocs_are(cuda, counters):
    cuda(gpu(10, 20, num_device_alloc=3, num_device_free=2), gpu(1, 2, num_device_alloc=4, num_device_free=1))
    assert counters.read().device_frees == 3


def test_a_gpu_is_asked_from_when_it_is_used(cuda, counters):
    torch = cuda(gpu(10, 20), gpu(1, 2), gpu(100, 200), contexts=[0])
    assert counters.read().allocated == 10
    torch.contexts.append(2)
    assert counters.read().allocated == 110
    assert torch.asked == [0, 0, 2]


def test_an_allocator_that_counts_no_mallocs_has_none(cuda, counters):
    cuda(gpu(10, 20))
    assert counters.read() == MemorySample(10, 20, PAGE, None)


def test_an_allocator_without_statistics_leaves_the_host(cuda, counters):
    cuda(gpu(10, 20), refusal=RuntimeError("no statistics"))
    assert counters.read() == MemorySample(None, None, PAGE, None)


def test_a_process_without_torch_has_host_memory_alone(monkeypatch, counters):
    monkeypatch.setitem(sys.modules, "torch", None)
    sampled = counters.read()
    assert (sampled.allocated, sampled.reserved, sampled.device_mallocs) == (None, None, None)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the resident set is read from /proc")
def test_the_resident_set_grows_with_what_is_touched(counters):
    before = counters.read().host
    with mmap.mmap(-1, 64 << 20) as kept:  # pages that the process has not had before, whatever it has freed
        for start in range(0, len(kept), mmap.PAGESIZE):
            kept[start] = 1
        assert counters.read().host - before > 32 << 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="open files are listed in /proc")
def test_a_region_that_samples_memory_leaves_no_file_open(scripted):
    before = os.listdir("/proc/self/fd")
    with record(memory=True) as region:
        for _ in range(3):
            region.mark_step()
    assert region.result().memory[0].host > 0
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def counted(scripted, monkeypatch):
    """Each sample is numbered in the order it was taken."""
    taken = []

    def read(*_):
        taken.append(MemorySample(len(taken), None, None, None))
        return taken[-1]

    monkeypatch.setattr(MemoryCounters, "read", read)
    return taken


def allocated(region):
    return [sample.allocated for sample in region.result().memory]


def test_memory_is_sampled_at_each_marked_step(counted):
    with record(memory=True) as region:
        for _ in range(3):
            region.mark_step()
    assert allocated(region) == [0, 1, 2]


def test_memory_is_sampled_where_an_optimizer_ends_a_step(counted):
    with record(memory=True) as region:
        for optimizer in (1, 2, 1, 2, 1, 2):
            region._log.optimizer_stepped(object(), optimizer, 0, 0, (0, ""))
    assert allocated(region) == [1, 3, 5]


def test_an_optimizer_is_not_sampled_where_steps_are_marked(counted):
    with record(memory=True) as region:
        for _ in range(3):
            region.mark_step()
            region._log.optimizer_stepped(object(), 1, 0, 0, (0, ""))
    assert (allocated(region), len(counted)) == ([0, 1, 2], 3)


def test_a_region_that_was_not_asked_samples_nothing(counted):
    with record() as region:
        region.mark_step()
    assert (region.result().memory, counted) == (None, [])


def test_a_region_without_steps_has_no_memory_to_compare(counted):
    with record(memory=True) as region:
        pass
    assert region.result().memory is None


class Driver:
    """Stands in for the module pynvml: processes by id with what they hold, on each of two GPUs."""

    def __init__(self, *processes, used=1000):
        self.processes, self.used, self.open = processes, used, 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=self.used)


@pytest.mark.parametrize(
    ("processes", "told"),
    [
        pytest.param([(OWN, 300), (77, 5)], 600, id="found by its id"),
        pytest.param([(77, None)], 2000, id="the only one, under another id"),
        pytest.param([], 2000, id="none is listed, as in a container"),
        pytest.param([(77, 5), (78, 6)], None, id="one of several, unknown which"),
        pytest.param([(OWN, None), (78, 6)], None, id="what it holds is not told"),
    ],
)
def test_the_driver_tells_what_the_process_holds(monkeypatch, processes, told):
    nvml = Driver(*processes)
    properties = lambda index: SimpleNamespace(uuid=index)  # noqa: E731
    cuda = SimpleNamespace(device_count=lambda: 2, get_device_properties=properties)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    driver = DriverMemory()
    assert driver.bytes() == told
    driver.close()
    assert nvml.open == 0


def test_without_a_driver_nothing_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert DriverMemory().bytes() is None


class History:
    """Stands in for torch and its memory history: blocks as a snapshot lists them, with frames where they were kept."""

    def __init__(self, snapshots, is_on=False):
        self.snapshots, self.calls = iter(snapshots), []
        history = SimpleNamespace(
            _record_memory_history=lambda **options: self.calls.append(options), _snapshot=lambda: next(self.snapshots)
        )
        self.cuda = SimpleNamespace(is_initialized=lambda: True, memory=history)
        self._C = SimpleNamespace(_cuda_isHistoryEnabled=lambda: is_on)


def snapshot(*blocks):
    listed = [
        {
            "state": state,
            "size": size,
            "frames": [{"filename": name, "line": line, "name": "f"} for name, line in frames],
        }
        for state, size, frames in blocks
    ]
    return {"segments": [{"blocks": listed}, {"blocks": [{"state": "active_allocated", "size": 9}]}]}


def rising(steps):
    return [MemorySample(step << 20, 0, 0, 0) for step in range(steps)]


LIBRARY = "/usr/lib/python3/dist-packages/library/tensor.py"
HERE = __file__


def followed(allocations, steps):
    """Let `allocations` look at the end of each step; what it makes of them."""
    for step in range(1, steps + 1):
        allocations.step_ended(rising(step))
    return allocations.close()


def test_a_line_that_has_more_at_the_end_grew(monkeypatch):
    leak, cache = [(LIBRARY, 5), (HERE, 31)], [(HERE, 40)]
    first = snapshot(("active_allocated", 100, leak), ("active_allocated", 70, cache), ("inactive", 50, leak))
    second = snapshot(("active_allocated", 200, leak), ("active_allocated", 90, cache))
    last = snapshot(("active_allocated", 300, leak), ("active_allocated", 70, cache))
    torch = History([first, second, last])
    monkeypatch.setitem(sys.modules, "torch", torch)
    # After warm-up six steps are looked at; the first sum is that of the seventh, the last that of the ninth.
    [line] = followed(AllocationTracker(warmup=2), 12)
    assert (line.line, line.function, line.bytes_per_step) == (31, "f", 100.0)
    assert line.path.endswith("test_memory.py")
    assert torch.calls == [{"enabled": "state", "context": "state", "stacks": "python"}, {"enabled": None}]


def test_nothing_is_recorded_of_memory_that_does_not_grow(monkeypatch):
    torch = History([])
    monkeypatch.setitem(sys.modules, "torch", torch)
    allocations = AllocationTracker(warmup=0)
    for step in range(1, 20):
        allocations.step_ended([MemorySample(7, 7, 7, 0)] * step)
    assert (allocations.close(), torch.calls) == (None, [])


def test_a_history_that_somebody_else_records_is_left_alone(monkeypatch):
    torch = History([], is_on=True)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert (followed(AllocationTracker(warmup=0), 20), torch.calls) == (None, [])


def test_a_history_that_began_with_the_last_step_tells_nothing_and_ends(monkeypatch):
    torch = History([])
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert followed(AllocationTracker(warmup=0, not_before=9), 9) is None
    assert torch.calls[-1] == {"enabled": None}
