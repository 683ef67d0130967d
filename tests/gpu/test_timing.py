"""Elapsed times, step times and memory on a real GPU, against work whose length is known: ``torch.cuda._sleep``.

The intervals state 99 %; the tests allow for what a shared machine adds, and skip where NVML saw it disturbed.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytest_gpusync import record  # noqa: E402
from pytest_gpusync.elapsed.paired import measure_ratio  # noqa: E402
from pytest_gpusync.elapsed.step_clock import StepClock  # noqa: E402
from pytest_gpusync.model.budgets import BudgetExceeded  # noqa: E402
from pytest_gpusync.model.memory_growth import device_mallocs_per_step, growth  # noqa: E402
from pytest_gpusync.model.step_times import dispatch_ratio, launch_queue_may_be_full, times  # noqa: E402

MS = 1_000_000


def undisturbed(ratio):
    if ratio.high == float("inf"):
        pytest.skip(f"the GPU was disturbed: {ratio.note}")
    return ratio


def trained(step, steps=20, warmup=3):
    """Run steps as gpu_train does."""
    clock = StepClock()
    with record(warmup=warmup, memory=True) as region:
        for _ in range(steps):
            clock.begin()
            step()
            clock.end()
            region.mark_step()
        region.set_step_times(clock.collect())
    return region.result()


@pytest.mark.parametrize("longer", [1.05, 1.1, 1.2, 1.5])
def test_a_ratio_is_that_of_the_work(busy, longer):
    ratio = undisturbed(measure_ratio(busy(2.0 * longer), busy(2.0)))
    assert ratio.value == pytest.approx(longer, rel=0.01), repr(ratio)
    assert ratio.low > 1.0, repr(ratio)


def test_equal_work_is_not_called_much_different(busy):
    ratio = undisturbed(measure_ratio(busy(2.0), busy(2.0)))
    assert ratio.value == pytest.approx(1.0, rel=0.01), repr(ratio)


def test_a_ratio_of_work_on_the_gpu_is_tight(busy):
    ratio = undisturbed(measure_ratio(busy(2.0), busy(2.0)))
    assert ratio.outcome == "measured", repr(ratio)
    assert 4 <= ratio.calls <= 6, repr(ratio)
    assert ratio.b_ms == pytest.approx(2.0, rel=0.2), repr(ratio)


def test_waiting_in_the_middle_of_a_step_costs_time():
    weight = torch.ones(64, 64, device="cuda")

    def step(reads):
        value = weight
        for _ in range(50):
            value = value @ weight
            if reads:
                value.sum().item()

    ratio = undisturbed(measure_ratio(lambda: step(True), lambda: step(False)))
    assert ratio.low > 1.0, repr(ratio)


def test_the_waits_of_a_ratio_are_not_counted(busy):
    with record() as region:
        measure_ratio(busy(2.0), busy(2.0), rounds=12)
    assert region.syncs == 0


def test_timing_steps_adds_no_sync(busy):
    measurement = trained(busy(1.0))
    assert measurement.problem is None
    assert measurement.all_syncs == ()


def test_a_step_takes_the_device_as_long_as_its_work(busy):
    found = times(trained(busy(5.0)))
    complete = sorted(found.complete)[len(found.complete) // 2]
    assert complete == pytest.approx(5 * MS, rel=0.1)


def test_a_host_that_runs_ahead_has_a_low_dispatch_ratio(busy):
    assert dispatch_ratio(trained(busy(5.0))).high < 0.5


def test_the_device_falls_behind_a_host_that_does_not_wait(busy):
    ahead = times(trained(busy(5.0))).ahead
    # Seventeen steps of 5 ms are issued at once: the last is done some 80 ms after the host is.
    assert ahead[-1] > 40 * MS
    assert ahead[-1] > ahead[0]


def test_a_step_that_reads_a_value_has_a_dispatch_ratio_near_one(busy):
    work, value = busy(5.0), torch.ones(1, device="cuda")

    def step():
        work()
        value.item()

    measurement = trained(step)
    assert dispatch_ratio(measurement).low > 0.8
    assert not launch_queue_may_be_full(measurement)


def test_a_full_queue_of_launches_is_told_from_slow_dispatch():
    small = torch.ones(1, device="cuda")
    long = torch.ones(1 << 26, device="cuda")

    def step():
        for _ in range(400):
            long.mul_(1.0)
            small.add_(1.0)

    # 800 launches and some 60 ms a step: the queue holds about a thousand launches, so the host is held back.
    measurement = trained(step, steps=14)
    assert measurement.all_syncs == ()
    assert launch_queue_may_be_full(measurement)


@pytest.mark.parametrize("nbytes", [1 << 10, 1 << 20, 10 << 20])
def test_a_leak_has_its_size(nbytes):
    kept = []
    measurement = trained(lambda: kept.append(torch.empty(nbytes, dtype=torch.uint8, device="cuda")), steps=30)
    estimate = growth(measurement, "allocated")
    # A block that the allocator finds in its cache may be somewhat larger than what is asked for.
    assert 0.9 * nbytes < estimate.low <= estimate.value < 1.2 * nbytes


def test_training_does_not_grow():
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(64, 512, device="cuda")

    def step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    measurement = trained(step, steps=30)
    for of in ("allocated", "reserved"):
        assert growth(measurement, of).low <= 0, of


def test_a_step_in_steady_state_calls_no_device_malloc():
    measurement = trained(lambda: torch.ones(1 << 20, device="cuda") * 2, steps=30)
    assert device_mallocs_per_step(measurement) == (0, 0)


def test_sampling_memory_adds_no_sync():
    with record(memory=True) as region:
        for _ in range(5):
            torch.ones(1000, device="cuda")
            region.mark_step()
    assert region.syncs == 0


def test_gpu_train_holds_its_run_to_all_three_budgets(gpu_train, busy):
    run = gpu_train(busy(5.0), steps=20)
    run.assert_syncs(max=0)
    run.assert_memory_growth(max=0)
    run.assert_dispatch_ratio(max=0.5)


def test_gpu_train_fails_a_step_that_waits(gpu_train, busy):
    work, value = busy(5.0), torch.ones(1, device="cuda")

    def step():
        work()
        value.item()

    with pytest.raises(BudgetExceeded, match=r"Time to issue was \S+ of time to complete, budget 0.5 "):
        gpu_train(step, steps=20).assert_dispatch_ratio(max=0.5)


def test_gpu_elapsed_gives_the_ratio(gpu_elapsed, busy):
    ratio = undisturbed(gpu_elapsed.ratio(busy(3.0), busy(2.0)))
    assert 1.4 < ratio.low <= ratio.high < 1.6, repr(ratio)
