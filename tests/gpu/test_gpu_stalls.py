"""What each wait of a step costs, on steps whose parts have known lengths; and what a run of steps tells besides."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")

from pytest_gpusync.elapsed.profiler_trace import busy_ms, trace_steps  # noqa: E402
from pytest_gpusync.elapsed.stalls import StallsUnavailable, measure_stalls  # noqa: E402
from pytest_gpusync.model.budgets import BudgetExceeded  # noqa: E402

OPTIONS = {"rounds": 12, "warmup": 3, "steps": None}


def spin(milliseconds):
    """Keep the host busy."""
    until = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < until:
        pass


def undisturbed(found):
    if any(stall.low_ms == float("-inf") for stall in found.sites):
        pytest.skip(f"the GPU was disturbed: {found.note}")
    return found


def test_a_wait_that_keeps_host_and_device_apart_costs_what_they_could_do_at_once(busy):
    work, value = busy(3.0), torch.ones(1, device="cuda")

    def step():
        work()
        value.item()
        spin(1.0)

    found = undisturbed(measure_stalls(step, **OPTIONS))
    [stall] = found.sites
    assert found.step_ms == pytest.approx(4.0, rel=0.1), repr(found)
    assert stall.idle_ms == pytest.approx(1.0, rel=0.15), repr(found)
    assert stall.gain_ms == pytest.approx(1.0, rel=0.15), repr(found)
    assert found.busy_ms == pytest.approx(3.0, rel=0.05), repr(found)


def test_a_wait_costs_a_step_that_the_host_holds_up_next_to_nothing(busy):
    work, value = busy(0.3), torch.ones(1, device="cuda")

    def step():
        work()
        spin(2.0)
        value.item()

    [stall] = undisturbed(measure_stalls(step, **OPTIONS)).sites
    assert stall.gain_ms < 0.1
    assert stall.syncs == 1


def test_each_line_has_its_own_part(busy):
    work, value = busy(1.5), torch.ones(1, device="cuda")

    def step():
        work()
        torch.cuda.synchronize()
        spin(0.4)
        work()
        value.item()
        spin(0.8)

    found = undisturbed(measure_stalls(step, **OPTIONS))
    assert [stall.site.line - step.__code__.co_firstlineno for stall in found.sites] == [5, 2]
    assert [stall.idle_ms for stall in found.sites] == pytest.approx([0.8, 0.4], rel=0.2), repr(found)


def test_a_step_that_never_waits_is_refused(busy):
    with pytest.raises(StallsUnavailable, match="no sync"):
        measure_stalls(busy(1.0), **OPTIONS)


def test_the_fixture_gives_the_stalls_and_counts_none_of_their_waits(gpu_elapsed, gpu_sync, busy):
    work, value = busy(1.0), torch.ones(1, device="cuda")

    def step():
        work()
        value.item()

    with gpu_sync.budget(max=0):
        found = gpu_elapsed.stalls(step, rounds=12)
    assert len(found.sites) == 1


def test_the_dispatch_ratio_of_a_step(gpu_elapsed, busy):
    assert gpu_elapsed.dispatch_ratio(busy(3.0)).high < 0.5


def test_a_trace_tells_the_time_of_the_work(busy):
    assert busy_ms(trace_steps(busy(3.0), 4)) == pytest.approx(3.0, rel=0.05)


def test_steps_that_are_traced_tell_how_long_the_device_was_busy(gpu_train, busy):
    run = gpu_train(busy(3.0), steps=12, trace=3)
    assert run.busy_ms == pytest.approx(3.0, rel=0.05)
    assert run.per_step[-1].complete_ms == pytest.approx(3.0, rel=0.2)


def test_the_lines_that_allocated_what_grew_are_named(gpu_train):
    kept = []

    def step():
        kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
        return torch.ones(1 << 20, device="cuda") * 2

    run = gpu_train(step, steps=20)
    [line] = run.grown
    assert (line.line - step.__code__.co_firstlineno, line.bytes_per_step) == (1, 1 << 20)
    with pytest.raises(BudgetExceeded, match=r"allocated by:\n  \S+test_gpu_stalls.py:\d+  kept.append"):
        run.assert_memory_growth(max=0)


def test_the_driver_sees_memory_that_torch_does_not_give_back(gpu_train):
    kept = []
    torch.cuda.empty_cache()  # what other tests left there would be taken before the driver is asked for more
    run = gpu_train(
        lambda: kept.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda")), steps=14, process=True
    )
    if run.per_step[0].process is None:
        pytest.skip("the driver does not tell this process's memory from others'")
    assert run.memory_growth("process").value == pytest.approx(32 << 20, rel=0.1)


def test_a_whole_training_is_timed_step_by_step(gpu_train, busy):
    work = busy(3.0)

    def training():
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(20):
            work()
            weight.sum().backward()
            optimizer.step()

    run = gpu_train.whole(training)
    assert run.steps == 20
    assert run.dispatch_ratio.high < 0.9
    assert sorted(figures.complete_ms for figures in run.per_step)[8] == pytest.approx(3.0, rel=0.2)
