"""Budgets of memory growth and dispatch ratio: what they measure, decide and say. Measurements are made up."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from measurements import H200, SIMULATED, stepped, sync, whole

from pytest_gpusync.model.budgets import (
    DispatchBudget,
    FlightBudget,
    GrowthBudget,
    LatencyBudget,
    judge_dispatch,
    judge_growth,
    judge_in_flight,
    judge_latency,
)
from pytest_gpusync.model.measurement import Disturbance, GrownLine, MemorySample, StepTime
from pytest_gpusync.model.memory_growth import device_mallocs_per_step, peak_over_baseline
from pytest_gpusync.model.step_times import dispatch_ratio
from pytest_gpusync.reporting.run_file import region_document
from pytest_gpusync.reporting.terminal import render_verdict

KIB, MIB, MS = 1024, 1024**2, 1_000_000


def grown(allocated, *, warmup=3, environment=SIMULATED, **more):
    """A region with these bytes allocated at the ends of its steps."""
    samples = tuple(MemorySample(nbytes, nbytes, 2 * nbytes, index) for index, nbytes in enumerate(allocated))
    return stepped([0] * len(allocated), warmup=warmup, memory=samples, environment=environment, **more)


def timed(steps, *, warmup=3, environment=H200, syncs=0, ahead=0.0, **more):
    """A region whose steps took these (issue, complete) milliseconds."""
    timing = tuple(StepTime(round(i * MS), round(c * MS), round(ahead * c * MS)) for i, c in steps)
    return stepped([syncs] * len(timing), warmup=warmup, timing=timing, environment=environment, **more)


def flown(counts, *, warmup=3, environment=H200):
    """A region whose steps had so many in flight when they returned."""
    timing = tuple(StepTime(MS, MS, MS, count) for count in counts)
    return stepped([0] * len(timing), warmup=warmup, timing=timing, environment=environment)


def leak(per_step, steps=20, base=100 * MIB):
    return [base + per_step * step for step in range(steps)]


@pytest.mark.parametrize(("limit", "outcome"), [(1, "failed"), (2, "failed"), (3, "passed"), (4, "passed")])
def test_steps_in_flight_are_held_to_the_limit(limit, outcome):
    assert judge_in_flight(flown([9, 9, 9, 1, 3, 2]), FlightBudget(limit)).outcome == outcome


def test_steps_in_flight_are_told_with_budget_and_steps():
    verdict = judge_in_flight(flown([1] * 5 + [3]), FlightBudget(2))
    assert verdict.sentence == "3 steps were in flight, budget 2 (most of 3 steps after warm-up)"


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        (stepped([0] * 5, environment=SIMULATED), "time is not simulated: times need a real GPU"),
        (stepped([0] * 5, environment=H200), "the steps of this region were not timed on a device"),
        (flown([1] * 4 + [None]), "CUDA was initialized inside a step after warm-up"),
    ],
)
def test_steps_in_flight_that_were_not_counted_keep_no_budget(measurement, reason):
    verdict = judge_in_flight(measurement, FlightBudget(2))
    assert (verdict.outcome, verdict.sentence) == ("not_measured", f"Not measured: {reason}")


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_that_is_no_number_of_steps_is_refused(limit):
    with pytest.raises(ValueError, match="an integer of at least 1"):
        FlightBudget(limit)


@pytest.mark.parametrize(
    ("limit", "outcome"), [(3 * MIB - 1, "failed"), (3 * MIB, "passed"), (3 * MIB + 1, "passed"), (0, "failed")]
)
def test_growth_is_held_to_the_limit(limit, outcome):
    assert judge_growth(grown(leak(3 * MIB)), GrowthBudget(limit)).outcome == outcome


def test_growth_is_told_with_unit_budget_steps_and_interval():
    verdict = judge_growth(grown(leak(3 * MIB)), GrowthBudget.parse("1 MiB"))
    assert verdict.sentence == (
        "Allocated memory grew 3.0 MiB per step, budget 1 MiB "
        "(slope over 17 steps after warm-up, 99 % interval 3.0 to 3.0 MiB)"
    )


def test_the_interval_shows_the_noise():
    rng = random.Random(1)
    noisy = [nbytes + rng.randrange(MIB) for nbytes in leak(3 * MIB)]
    verdict = judge_growth(grown(noisy), GrowthBudget.parse("1 MiB"))
    assert verdict.outcome == "failed"
    assert verdict.estimate.low < 3 * MIB < verdict.estimate.high


def test_a_limit_within_the_interval_is_undecided():
    rng = random.Random(1)
    noisy = [nbytes + rng.randrange(40 * MIB) for nbytes in leak(MIB)]
    verdict = judge_growth(grown(noisy), GrowthBudget.parse("1 MiB"))
    assert verdict.outcome == "undecided"
    assert verdict.sentence.startswith("Too noisy to tell: allocated memory grew ")


def test_growth_in_warm_up_is_left_out():
    assert judge_growth(grown([0, 50 * MIB, 90 * MIB] + [100 * MIB] * 17), GrowthBudget(0)).outcome == "passed"


def test_one_late_allocation_is_no_growth():
    late = [100 * MIB] * 12 + [164 * MIB] * 8
    assert judge_growth(grown(late), GrowthBudget(0)).outcome != "failed"


def test_memory_that_shrinks_keeps_a_budget_of_nothing():
    assert judge_growth(grown(leak(-MIB)), GrowthBudget(0)).outcome == "passed"


@pytest.mark.parametrize(("of", "grew"), [("allocated", "3.0"), ("reserved", "3.0"), ("host", "6.0")])
def test_each_kind_of_memory_has_its_growth(of, grew):
    verdict = judge_growth(grown(leak(3 * MIB)), GrowthBudget.parse("1 MiB", of))
    assert verdict.sentence.startswith(f"{of.capitalize()} memory grew {grew} MiB per step")


@pytest.mark.parametrize(
    ("measurement", "of", "reason"),
    [
        pytest.param(whole(), "allocated", "memory growth needs steps, and none was seen", id="no steps"),
        pytest.param(
            grown(leak(MIB, steps=10)),
            "allocated",
            "memory growth needs 8 steps after warm-up, and 7 ran",
            id="too few",
        ),
        pytest.param(stepped([0] * 20), "allocated", "memory was not sampled in this region", id="not sampled"),
        pytest.param(
            stepped([0] * 20, memory=(MemorySample(None, None, 5, None),) * 20, device_used=False),
            "allocated",
            "nothing ran on the device",
            id="no GPU work",
        ),
        pytest.param(
            stepped([0] * 20, memory=(MemorySample(5, 5, None, None),) * 20, environment=H200),
            "host",
            "host memory is not counted here",
            id="no resident set",
        ),
    ],
)
def test_growth_that_was_not_measured_says_why(measurement, of, reason):
    verdict = judge_growth(measurement, GrowthBudget(MIB, of))
    assert (verdict.outcome, verdict.estimate) == ("not_measured", None)
    assert verdict.sentence.startswith(f"Not measured: {reason}")


def test_device_mallocs_are_those_of_the_measured_steps():
    counts = [0, 50, 60, 60, 61, 61, 64]
    samples = tuple(MemorySample(0, 0, 0, count) for count in counts)
    found = device_mallocs_per_step(stepped([0] * 7, warmup=3, memory=samples))
    assert (found.median, found.max) == (0.5, 3)


def test_device_mallocs_that_are_not_counted_are_none():
    assert device_mallocs_per_step(stepped([0] * 5, memory=(MemorySample(1, 1, 1, None),) * 5)) is None


@pytest.mark.parametrize(("limit", "outcome"), [(0.19, "failed"), (0.2, "passed"), (0.5, "passed")])
def test_the_dispatch_ratio_is_held_to_the_limit(limit, outcome):
    assert judge_dispatch(timed([(2, 10)] * 20), DispatchBudget(limit)).outcome == outcome


def test_the_dispatch_ratio_is_told_with_budget_steps_and_interval():
    verdict = judge_dispatch(timed([(9, 10)] * 20, syncs=1), DispatchBudget(0.5))
    assert verdict.sentence == (
        "Time to issue was 0.90 of time to complete, budget 0.5 "
        "(median of 17 steps after warm-up, 99 % interval 0.90 to 0.90)"
    )


def test_a_dispatch_ratio_that_straddles_the_limit_is_undecided():
    verdict = judge_dispatch(timed([(4, 10), (6, 10)] * 10, syncs=1), DispatchBudget(0.5))
    assert verdict.outcome == "undecided"


@pytest.mark.parametrize(("limit", "outcome"), [(11.9, "failed"), (12, "passed"), (12.1, "passed")])
def test_a_latency_is_the_time_to_issue_and_what_the_device_needs_afterwards(limit, outcome):
    run = timed([(900, 10)] * 3 + [(9, 10)] * 17, ahead=0.3)
    verdict = judge_latency(run, LatencyBudget(limit))
    assert verdict.outcome == outcome
    assert verdict.sentence == (
        f"A step took 12 ms, budget {limit:g} ms (median of 17 steps after warm-up, 99 % interval 12 to 12 ms)"
    )


@pytest.mark.parametrize("limit", [0, -1, True, "5 ms", float("inf")])
def test_a_latency_is_a_number_of_milliseconds(limit):
    with pytest.raises(ValueError, match="max of a latency must be a number of milliseconds above 0"):
        LatencyBudget(limit)


def test_a_latency_that_varies_around_the_budget_is_undecided_and_few_steps_are_not_enough():
    assert judge_latency(timed([(4, 10), (6, 10)] * 10), LatencyBudget(5)).outcome == "undecided"
    assert judge_latency(timed([(4, 10)] * 5), LatencyBudget(5)).outcome == "not_measured"


def test_slow_steps_of_warm_up_are_left_out_of_the_dispatch_ratio():
    assert dispatch_ratio(timed([(900, 10)] * 3 + [(2, 10)] * 17)).value == 0.2


def test_without_a_sync_a_full_queue_is_not_taken_for_slow_dispatch():
    verdict = judge_dispatch(timed([(10, 10)] * 20, ahead=0.8), DispatchBudget(0.5))
    assert verdict.outcome == "undecided"
    assert "launches may have waited for room in the driver's queue" in verdict.sentence


@pytest.mark.parametrize(
    "measurement",
    [
        pytest.param(timed([(10, 10)] * 20, ahead=0.8, syncs=1), id="steps that sync"),
        pytest.param(timed([(10, 10)] * 20, ahead=0.01), id="a device that waits for the host"),
    ],
)
def test_slow_dispatch_is_not_excused_by_the_queue(measurement):
    assert judge_dispatch(measurement, DispatchBudget(0.5)).outcome == "failed"


def test_syncs_of_warm_up_do_not_count_against_a_full_queue():
    extra = (sync(0), sync(2))
    assert judge_dispatch(timed([(9, 10)] * 20, ahead=0.8, extra=extra), DispatchBudget(0.5)).outcome == "undecided"


@pytest.mark.parametrize(
    ("measurement", "reason"),
    [
        pytest.param(stepped([0] * 20, environment=SIMULATED), "time is not simulated", id="simulated"),
        pytest.param(timed([(2, 10)] * 10), "the dispatch ratio needs 8 steps after warm-up, and 7 ran", id="too few"),
        pytest.param(stepped([0] * 20, environment=H200), "the steps of this region were not timed", id="untimed"),
        pytest.param(
            stepped([0] * 20, environment=H200, timing=(StepTime(5, None, None),) * 20),
            "CUDA was initialized inside a step",
            id="late CUDA",
        ),
    ],
)
def test_a_dispatch_ratio_that_was_not_measured_says_why(measurement, reason):
    verdict = judge_dispatch(measurement, DispatchBudget(0.5))
    assert verdict.outcome == "not_measured"
    assert verdict.sentence.startswith(f"Not measured: {reason}")


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), True, "0.5", None])
def test_a_dispatch_limit_that_is_no_ratio_is_refused(limit):
    with pytest.raises(ValueError, match="max of a dispatch ratio must be a number above 0"):
        DispatchBudget(limit)


def test_a_kind_of_memory_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="of must be 'allocated' or 'reserved' or 'process' or 'host', not 'gpu'"):
        GrowthBudget(0, "gpu")


def test_the_run_file_has_bytes_and_their_growth():
    memory = region_document(grown(leak(3 * MIB)))["memory"]
    allocated = memory["allocated"]
    assert (allocated["first"], allocated["last"]) == (109 * MIB, 157 * MIB)
    assert allocated["growth"] == {"value": 3 * MIB, "low": 3 * MIB, "high": 3 * MIB, "confidence": 0.99}
    assert memory["device_mallocs_per_step"] == {"median": 1, "max": 1}


def test_the_run_file_has_times_in_milliseconds():
    timing = region_document(timed([(2, 10)] * 19 + [(4, 30)]))["timing"]
    assert (timing["issue_ms"], timing["complete_ms"]) == ({"median": 2, "max": 4}, {"median": 10, "max": 30})


def test_an_interval_without_bounds_is_null_in_the_run_file():
    assert region_document(timed([(2, 10)] * 5))["timing"]["dispatch_ratio"] == {
        "value": 0.2,
        "low": None,
        "high": None,
        "confidence": 0.99,
    }


@pytest.mark.parametrize("outcome", ["undecided", "not_measured"])
def test_a_region_is_not_passed_if_a_verdict_is_open(outcome):
    region = grown([0] * 10 + [64 * MIB] * 10) if outcome == "undecided" else grown(leak(0, steps=6))
    verdicts = [judge_growth(region, GrowthBudget(KIB))]
    document = region_document(region, verdicts)
    assert document["outcome"] == outcome
    assert (document["problem"] is None) == (outcome == "undecided")


def test_the_peak_is_over_the_end_of_warm_up():
    samples = tuple(MemorySample(nbytes, None, None, None) for nbytes in (900, 100, 300, 250))
    measurement = stepped([0] * 4, warmup=2, memory=samples)
    assert peak_over_baseline(measurement, "allocated") == 200
    assert peak_over_baseline(measurement, "reserved") is None


def test_a_disturbed_gpu_decides_no_dispatch_ratio():
    times = tuple(StepTime(9, 10, 1) for _ in range(20))
    quiet = stepped([0] * 20, environment=H200, timing=times)
    spoilt = replace(quiet, disturbance=Disturbance("another process kept the GPU busy", invalidates=True))
    assert judge_dispatch(quiet, DispatchBudget(0.5)).outcome == "failed"
    verdict = judge_dispatch(spoilt, DispatchBudget(0.5))
    assert verdict.outcome == "undecided"
    assert verdict.sentence.startswith("Undecided: another process kept the GPU busy. Time to issue was 0.90")


def test_the_memory_of_the_process_has_to_be_asked_for():
    samples = (MemorySample(5, 5, 5, 0),) * 20
    verdict = judge_growth(stepped([0] * 20, memory=samples, environment=H200), GrowthBudget(0, "process"))
    assert verdict.outcome == "not_measured"
    assert "gpu_train(..., process=True) queries the driver" in verdict.sentence


def test_a_broken_budget_of_memory_names_the_lines_that_allocated():
    samples = tuple(MemorySample(step << 20, 0, 0, 0) for step in range(20))
    allocated = (GrownLine("train.py", 7, "step", 1 << 20), GrownLine("net.py", 21, "forward", 512.0))
    measurement = stepped([0] * 20, memory=samples, environment=H200, grown=allocated)
    text = render_verdict(judge_growth(measurement, GrowthBudget(0)), measurement)
    assert text[1:4] == [
        "  allocated by:",
        "  train.py:7  step  1 MiB per step",
        "  net.py:21   forward  512 B per step",
    ]
    kept = render_verdict(judge_growth(measurement, GrowthBudget(2 << 20)), measurement)
    assert "  allocated by:" not in kept
