"""Overlap, the parts of a step, and steps in flight on a real GPU, against work whose length is known."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from pytest_gpusync import limit_in_flight, record  # noqa: E402
from pytest_gpusync.elapsed.decomposition import StepSynchronizes, decompose  # noqa: E402
from pytest_gpusync.elapsed.overlap import measure_overlap  # noqa: E402
from pytest_gpusync.model.budgets import BudgetExceeded  # noqa: E402

OPTIONS = {"rounds": 100, "warmup": 3, "calls": None, "tolerance": 0.1}


def undisturbed(found):
    if found.note and ("throttled" in found.note or "kept the GPU busy" in found.note):
        pytest.skip(f"the GPU was disturbed: {found.note}")
    return found


@pytest.fixture
def two_streams(busy):
    """Return two pieces of work of 2 and 1 ms, and both of them: side by side on two streams, or in turn on one."""
    side = torch.cuda.Stream()
    longer, shorter = busy(2.0), busy(1.0)

    def together():
        side.wait_stream(torch.cuda.current_stream())
        longer()
        with torch.cuda.stream(side):
            shorter()
        torch.cuda.current_stream().wait_stream(side)

    def in_turn():
        longer()
        shorter()

    return longer, shorter, together, in_turn


def test_work_on_two_streams_overlaps(two_streams):
    longer, shorter, together, _ = two_streams
    found = undisturbed(measure_overlap(longer, shorter, together, **OPTIONS))
    assert found.low > 0.85, repr(found)
    assert found.outcome == "measured", repr(found)


def test_work_on_one_stream_does_not(two_streams):
    longer, shorter, _, in_turn = two_streams
    found = undisturbed(measure_overlap(longer, shorter, in_turn, **OPTIONS))
    assert abs(found.value) < 0.05, repr(found)


def test_a_step_is_taken_apart(busy):
    work, value = busy(2.0), torch.ones(1, device="cuda")
    parts = undisturbed(decompose(work, value.item, steps=20, warmup=3))
    assert parts.device_ms == pytest.approx(2.0, rel=0.1), repr(parts)
    assert parts.dispatch_ms < 0.2, repr(parts)
    assert parts.read_ms < 0.2, repr(parts)


@pytest.mark.parametrize("milliseconds", [2.0, 0.05])
def test_both_ways_to_run_the_steps_take_what_the_parts_predict(busy, milliseconds):
    work, value = busy(milliseconds), torch.ones(1, device="cuda")
    parts = undisturbed(decompose(work, value.item, steps=100, warmup=3))
    assert parts.end_ms == pytest.approx(parts.end_predicted_ms, rel=0.1), repr(parts)
    # A read behind work that is under way costs less than dispatch, work and read one after the other: both add up to
    # no more than predicted.
    assert parts.end_ms <= parts.each_ms <= 1.1 * parts.each_predicted_ms, repr(parts)


def test_a_step_that_waits_cannot_be_taken_apart(busy):
    work, value = busy(1.0), torch.ones(1, device="cuda")

    def step():
        work()
        value.item()

    with pytest.raises(StepSynchronizes, match="read its result in read"):
        decompose(step, value.item, steps=5, warmup=1)


def test_the_waits_of_measuring_are_not_counted(busy):
    value = torch.ones(1, device="cuda")
    with record() as region:
        decompose(busy(0.5), value.item, steps=5, warmup=1)
        measure_overlap(busy(0.5), busy(0.5), busy(0.5), **OPTIONS)
    assert region.syncs == 0


def test_steps_pile_up_when_nothing_holds_the_host_back(gpu_train, busy):
    run = gpu_train(busy(5.0), steps=20)
    assert run.max_in_flight >= 15
    with pytest.raises(BudgetExceeded, match=r"\d+ steps were in flight, budget 2 \(most of 17 steps after warm-up\)"):
        run.assert_max_in_flight(max=2)


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_a_ring_bounds_the_steps_in_flight(gpu_train, busy, limit):
    run = gpu_train(busy(5.0), steps=20, in_flight=limit)
    assert run.max_in_flight == limit
    run.assert_syncs(exact=0)


def test_a_training_loop_is_bounded_by_its_own_ring(gpu_train, busy):
    work = busy(5.0)
    begun = []

    def loop():
        for _ in limit_in_flight(range(10), max=2):
            begun.append(torch.cuda.Event())
            work()
            begun[-1].record()
            assert sum(not event.query() for event in begun) <= 2

    with record() as region:
        loop()
    assert region.syncs == 0  # they are allowed
    assert {sync.kind for sync in region.result().all_syncs} == {"event"}


def test_a_step_that_reads_its_result_is_alone_in_flight(gpu_train, busy):
    work, value = busy(5.0), torch.ones(1, device="cuda")

    def step():
        work()
        value.item()

    gpu_train(step, steps=12).assert_max_in_flight(max=1)
