"""What the waits of a step cost, from a machine that is made up: its host and device are known to the nanosecond."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from pytest_gpusync.elapsed.profiler_trace import Call, DeviceWork, TracedStep
from pytest_gpusync.elapsed.stalls import Block, Observations, StallsUnavailable, estimate_stalls
from pytest_gpusync.model.measurement import Disturbance, Site, Sync

US = 1000
READ, LOOK = Site("train.py", 9, "step"), Site("train.py", 5, "step")
QUIET = Disturbance(None, invalidates=False)
STEPS = 10


class Machine:
    """Runs steps: launches that take the host and the device so long, and waits."""

    def __init__(self, slower=1.0, per_call=0):
        self.host = self.free = 0
        self.slower, self.per_call = slower, per_call
        self.calls, self.syncs = [], []

    def spend(self, microseconds):
        self.host += round(microseconds * US * self.slower)

    def launch(self, host, device):
        self.spend(host)
        entered = self.host
        self.host += self.per_call
        start = max(self.free, entered + 5 * US)
        self.free = start + device * US
        self.calls.append(Call("cudaLaunchKernel", entered, self.host, 1, DeviceWork("kernel", start, self.free, 7)))

    def read(self, host, site):
        self.spend(host)
        entered = self.host
        start = max(self.free, entered + 5 * US)
        self.free = start + 2 * US
        work = DeviceWork("Memcpy DtoH (Device -> Pinned)", start, self.free, 7)
        self.calls.append(Call("cudaMemcpyAsync", entered, entered + US, 1, work))
        self.host = max(entered + 2 * US, self.free + 3 * US)
        self.calls.append(Call("cudaStreamSynchronize", entered + US, self.host, 1, None))
        self.syncs.append(Sync("stream", site, None, "D2H", 4, self.host - entered, began_ns=entered))

    def drain(self):
        self.host = max(self.host, self.free)


def device_bound(machine, left_out=()):
    """1000 us of work in 10 launches of 5 us, a read in the middle, 200 us on the host, work again, a read."""
    for _ in range(10):
        machine.launch(5, 100)
    if LOOK not in left_out:
        machine.read(5, LOOK)
    machine.spend(200)
    for _ in range(10):
        machine.launch(5, 100)
    if READ not in left_out:
        machine.read(5, READ)


def host_bound(machine, left_out=()):
    """A host that takes 50 us for each 10 us of work, and reads at the end."""
    for _ in range(20):
        machine.launch(50, 10)
    if READ not in left_out:
        machine.read(5, READ)


def length(step, left_out=()):
    machine = Machine()
    for _ in range(STEPS):
        step(machine, left_out)
    machine.drain()
    return machine.host


def seen_of(step, noise=(0,) * 16, tracing=4 * US):
    """Measure a step as stalls does; each block is disturbed by so many nanoseconds."""
    blocks, uninstrumented = [], []
    for more in noise:
        machine = Machine()
        steps = []
        for _ in range(STEPS):
            begun, machine.syncs = machine.host, []
            step(machine)
            inside = tuple(replace(sync, began_ns=sync.began_ns - begun) for sync in machine.syncs)
            steps.append((machine.host - begun, inside))
        machine.drain()
        blocks.append(Block(tuple(steps), machine.host))
        uninstrumented.append(length(step) + more)
    traced = []
    for _ in range(STEPS):
        machine = Machine(per_call=tracing)
        step(machine)
        traced.append(TracedStep(tuple(machine.calls), machine.host))
    return Observations(uninstrumented, blocks, traced, STEPS, read=0)


@pytest.mark.parametrize("step", [device_bound, host_bound])
@pytest.mark.parametrize("tracing", [0, 4 * US])
def test_the_gain_is_what_a_step_without_the_wait_is_shorter_by(step, tracing):
    found = estimate_stalls(seen_of(step, tracing=tracing), QUIET)
    for stall in found.sites:
        truth = (length(step) - length(step, {stall.site})) / STEPS / 1e6
        assert stall.gain_ms == pytest.approx(truth, abs=0.01 * found.step_ms), stall
        assert stall.outcome == "measured"


def test_the_device_is_idle_for_what_the_host_spends_after_the_wait():
    found = estimate_stalls(seen_of(device_bound), QUIET)
    idle = {stall.site: stall.idle_ms for stall in found.sites}
    # 200 us and a launch after the first, a launch after the second, and what lies between host and device.
    assert idle[LOOK] == pytest.approx(0.213, abs=0.01)
    assert idle[READ] == pytest.approx(0.013, abs=0.01)
    assert [stall.site for stall in found.sites] == [LOOK, READ]


def test_a_device_that_waits_for_the_host_anyway_gains_next_to_nothing():
    [stall] = estimate_stalls(seen_of(host_bound), QUIET).sites
    assert stall.idle_ms > 0.5
    assert stall.gain_ms < 0.03


def test_the_parts_of_the_step_are_told():
    found = estimate_stalls(seen_of(device_bound), QUIET)
    assert found.step_ms == pytest.approx(length(device_bound) / STEPS / 1e6)
    assert found.busy_ms == pytest.approx(2.0, rel=0.01)
    assert found.replayed_ms == pytest.approx(found.step_ms, rel=0.01)
    assert (found.rounds, found.steps) == (16, STEPS)
    first, row, _ = repr(found).splitlines()
    assert first.startswith("a step takes 2.2")
    assert row.startswith("  train.py:5: 1 sync per step, device idle for 0.2")


def test_by_how_much_the_replay_misses_the_step_is_in_the_interval():
    # Twice as long as the recorded steps: nothing that is known of them explains it.
    seen = seen_of(host_bound, noise=(length(host_bound),) * 16)
    [stall] = estimate_stalls(seen, QUIET).sites
    assert stall.outcome == "too noisy to tell"
    assert stall.high_ms - stall.low_ms > 1.0
    assert str(stall).startswith("too noisy to tell: train.py:9")


def test_a_disturbed_gpu_claims_nothing():
    found = estimate_stalls(seen_of(device_bound), Disturbance("the GPU was throttled", invalidates=True))
    assert {(stall.low_ms, stall.high_ms, stall.outcome) for stall in found.sites} == {(-inf, inf, "too noisy to tell")}
    assert "; the GPU was throttled" in repr(found)


def test_what_counting_cost_is_no_part_of_the_step():
    seen = seen_of(device_bound)
    slower = [
        Block(tuple((length + 100 * US, syncs) for length, syncs in block.steps), block.length + STEPS * 100 * US)
        for block in seen.blocks
    ]
    found = estimate_stalls(seen._replace(blocks=slower), QUIET)
    assert found.replayed_ms == pytest.approx(found.step_ms, rel=0.03)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param(lambda sync: replace(sync, kind="event"), "train.py:5 waits for an event", id="an event"),
        pytest.param(lambda sync: replace(sync, kind="device"), "wait differently from one another", id="another kind"),
    ],
)
def test_steps_that_two_queues_do_not_describe_are_refused(change, complaint):
    seen = seen_of(device_bound)
    blocks = [
        Block(tuple((took, tuple(map(change, syncs))) for took, syncs in block.steps), block.length)
        for block in seen.blocks
    ]
    with pytest.raises(StallsUnavailable, match=complaint):
        estimate_stalls(seen._replace(blocks=blocks), QUIET)


def test_steps_without_syncs_are_refused():
    seen = seen_of(device_bound)
    blocks = [Block(tuple((took, ()) for took, _ in block.steps), block.length) for block in seen.blocks]
    with pytest.raises(StallsUnavailable, match="no sync"):
        estimate_stalls(seen._replace(blocks=blocks), QUIET)
