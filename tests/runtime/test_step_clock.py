"""Times of steps, from a host's and a device's clock that the test moves."""

from __future__ import annotations

import sys

import pytest

from pytest_gpusync.elapsed import paired, step_clock
from pytest_gpusync.elapsed.step_clock import StepClock, Timekeeper, measure_dispatch
from pytest_gpusync.measure.recording import uncounted
from pytest_gpusync.measure.region import record
from pytest_gpusync.model.measurement import Disturbance, StepTime
from pytest_gpusync.model.step_times import times

MS = 1_000_000


class Machine:
    """A host, and a device that does what is queued when it is done with what was queued before."""

    def __init__(self):
        self.now = 0
        self.free_at = 0
        self.waits = 0
        self.has_device = True

    def issue(self, host_ms, device_ms):
        """Take the host this long to issue work that takes the device that long."""
        self.free_at = max(self.now, self.free_at) + round(device_ms * MS)
        self.now += round(host_ms * MS)

    def wait(self):
        self.now = max(self.now, self.free_at)

    def event(self):
        return Event(self) if self.has_device else None


class Event:
    def __init__(self, machine):
        self.machine = machine
        self.reached = max(machine.now, machine.free_at)

    def query(self):
        return self.machine.now >= self.reached

    def synchronize(self):
        self.machine.waits += 1
        self.machine.now = max(self.machine.now, self.reached)

    def elapsed_time(self, other):
        return (other.reached - self.reached) / MS


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(StepClock, "_event", lambda _: machine.event())
    monkeypatch.setattr(step_clock.time, "perf_counter_ns", lambda: machine.now)
    return machine


def timed(step, steps=4):
    """Run `step` under a clock; milliseconds of issue, completion and lead."""
    watch = StepClock()
    for _ in range(steps):
        watch.begin()
        step()
        watch.end()
    return [tuple(part / MS for part in found[:3]) for found in watch.collect()]


def in_flight(step, steps):
    watch = StepClock()
    for _ in range(steps):
        watch.begin()
        step()
        watch.end()
    return [found.in_flight for found in watch.collect()]


def test_a_host_that_runs_ahead_leaves_the_device_behind(machine):
    found = timed(lambda: machine.issue(2, 10))
    assert found == [(2, 10, 8), (2, 10, 16), (2, 10, 24), (2, 10, 32)]


def test_a_step_that_waits_takes_as_long_to_issue_as_to_complete(machine):
    def step():
        machine.issue(2, 10)
        machine.wait()

    assert timed(step) == [(10, 10, 0)] * 4


def test_steps_pile_up_in_front_of_a_device_that_is_slower_than_the_host(machine):
    # 10 ms of work every 2 ms: when the host has issued the sixth step the device has just done the first.
    assert in_flight(lambda: machine.issue(2, 10), steps=6) == [1, 2, 3, 4, 4, 5]


def test_a_step_that_waits_is_alone_in_flight(machine):
    def step():
        machine.issue(2, 10)
        machine.wait()

    assert in_flight(step, steps=4) == [1, 1, 1, 1]


def test_a_slow_host_keeps_the_device_waiting(machine):
    assert timed(lambda: machine.issue(10, 2)) == [(10, 10, 0)] * 4


def test_time_between_steps_is_not_theirs(machine):
    watch = StepClock()
    for _ in range(3):
        machine.now += 50 * MS
        watch.begin()
        machine.issue(2, 10)
        watch.end()
    assert [(step.issue, step.complete) for step in watch.collect()] == [(2 * MS, 10 * MS)] * 3


def test_time_after_the_last_step_is_no_lead(machine):
    watch = StepClock()
    for _ in range(3):
        watch.begin()
        machine.issue(10, 2)
        watch.end()
    machine.now += 50 * MS
    assert [step.ahead for step in watch.collect()] == [0, 0, 0]


def test_the_device_is_waited_for_once_at_the_end(machine):
    timed(lambda: machine.issue(2, 10), steps=50)
    assert machine.waits == 1


def test_a_step_before_cuda_was_initialised_has_no_time_on_the_device(machine):
    watch = StepClock()
    machine.has_device = False
    for _ in range(2):
        watch.begin()
        machine.has_device = True
        machine.issue(2, 10)
        watch.end()
    assert watch.collect() == [StepTime(2 * MS, None, None, 1), StepTime(2 * MS, 10 * MS, 16 * MS, 2)]


def test_without_a_device_nothing_is_timed(machine):
    machine.has_device = False
    watch = StepClock()
    watch.begin()
    watch.end()
    assert watch.collect() is None


def test_a_clock_does_not_import_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert StepClock()._event() is None


def test_the_wait_at_the_end_is_not_counted(scripted, machine, monkeypatch):
    def synchronize(event):
        scripted.sync("event")
        scripted.hold()

    monkeypatch.setattr(Event, "synchronize", synchronize)
    with record() as region:
        watch = StepClock()
        watch.begin()
        scripted.sync()
        watch.end()
        region.set_step_times(watch.collect())
        scripted.sync()
    assert [sync.kind for sync in region.result().all_syncs] == ["stream", "stream"]


def test_syncs_before_a_measurement_is_set_aside_are_counted(scripted):
    with record() as region:
        scripted.hold("event")
        with uncounted():
            pass
    assert region.syncs == 1


def test_times_leave_warm_up_out(scripted):
    with record(warmup=1) as region:
        region.set_step_times([StepTime(step, 10 + step, step) for step in range(3)])
        for _ in range(3):
            region.mark_step()
    assert times(region.result()) == ([1, 2], [11, 12], [1, 2])


class DisturbanceMonitor:
    """Stands in for a watch over a GPU; counts how often it is closed."""

    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1
        return Disturbance("another process kept the GPU busy", invalidates=True)


@pytest.fixture
def watch(monkeypatch):
    watch = DisturbanceMonitor()
    monkeypatch.setattr(step_clock, "monitor_current_gpu", lambda: watch)
    monkeypatch.setattr(step_clock, "_can_time", lambda: True)
    return watch


def test_a_run_of_steps_is_told_what_was_seen_of_the_gpu(machine, watch, scripted):
    with record(warmup=1) as region, Timekeeper() as timekeeper:
        for _ in range(3):
            timekeeper.clock.begin()
            machine.issue(1, 5)
            timekeeper.clock.end()
            region.mark_step()
        timekeeper.give_times_to(region)
    measurement = region.result()
    assert [step.complete for step in measurement.timing] == [5 * MS] * 3
    assert measurement.disturbance.invalidates
    assert watch.closed == 1


def test_steps_that_do_not_match_their_times_are_not_timed(machine, watch, scripted):
    with record(warmup=1) as region, Timekeeper() as timekeeper:
        for _ in range(3):
            timekeeper.clock.begin()
            timekeeper.clock.end()
            region.mark_step()
        timekeeper.give_times_to(region, only_if=6)
    assert region.result().timing is None
    assert watch.closed == 1


def test_a_run_that_fails_lets_go_of_the_watch(watch):
    with pytest.raises(KeyError), Timekeeper():
        raise KeyError
    assert watch.closed == 1


def test_the_dispatch_ratio_of_a_function_is_that_of_its_steps(machine, monkeypatch):
    monkeypatch.setattr(paired, "wait_until_idle", machine.wait)
    found = measure_dispatch(lambda: machine.issue(1, 5), steps=20, warmup=1)
    # Each is issued in 1 ms, and done 5 ms after the one before it.
    assert found.samples == 20
    assert found.value == pytest.approx(0.2)
