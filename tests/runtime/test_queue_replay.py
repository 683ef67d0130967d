"""Steps replayed as two queues, from traces that are made up."""

from __future__ import annotations

import pytest

from pytest_gpusync.elapsed.profiler_trace import (
    Call,
    DeviceWork,
    Mark,
    TracedStep,
    TraceEvent,
    TraceUnreadable,
    split_steps,
)
from pytest_gpusync.elapsed.queue_replay import (
    CannotReplay,
    Delays,
    ObservedWait,
    Op,
    Wait,
    check_single_stream,
    delays_of,
    fit_gap,
    operations,
    replay,
    waits_of,
)

NONE = Delays(launch=0, gap=0, wakeup=0)
READ = Wait(site=0, copy=0, reads=True, call=0)


def test_a_device_that_is_the_slower_sets_the_pace():
    found = replay([[Op(10, 100)] * 5], NONE)
    assert (found.length, found.busy) == (10 + 500, 500)


def test_a_host_that_is_the_slower_sets_the_pace():
    assert replay([[Op(100, 10)] * 5], NONE).length == 510


def test_a_wait_keeps_host_and_device_from_working_at_the_same_time():
    step = [Op(10, 100), Op(0, 0, READ), Op(30, 0)]
    assert replay([step] * 3, NONE).length == 3 * 140
    assert replay([step] * 3, NONE, {0}).length == 10 + 3 * 100


def test_the_device_is_idle_after_a_wait_until_it_has_work_waiting():
    step = [Op(0, 100), Op(0, 0, READ), Op(40, 10), Op(5, 10), Op(20, 10), Op(0, 10), Op(100, 0)]
    # 40 until the next work, none before the one that was there in time.
    assert replay([step], NONE).idle == {0: 40.0}


def test_a_step_that_the_host_holds_up_gains_no_more_than_the_call():
    step = [Op(100, 10), Op(0, 0, Wait(0, copy=0, reads=True, call=7, overhead=3)), Op(100, 10), Op(3, 0)]
    whole, without = (replay([step] * 10, NONE, left_out).length for left_out in ((), {0}))
    assert whole - without == pytest.approx(10 * (7 + 3), abs=10)


def test_a_read_that_is_left_out_takes_its_copy_along_and_a_copy_in_stays():
    def busy(reads):
        return replay([[Op(0, 10), Op(0, 0, Wait(0, copy=4, reads=reads, call=1))]], NONE, {0}).busy

    assert (busy(True), busy(False)) == (10, 14)


def test_launches_gaps_and_returns_take_their_time():
    step = [Op(0, 100), Op(0, 100), Op(0, 0, READ)]
    assert replay([step], Delays(launch=5, gap=1, wakeup=3)).length == 5 + 101 + 101 + 3


def test_the_gap_is_fitted_to_what_steps_took():
    blocks = [[[Op(0, 100)] * 50]] * 3
    fitted = fit_gap(blocks, Delays(launch=5, gap=2.0, wakeup=3), 5 + 50 * 101.5)
    assert fitted.gap == pytest.approx(1.5, abs=0.01)


def work(start, end, name="kernel", stream=7):
    return DeviceWork(name, start, end, stream)


COPY = Call("cudaMemcpyAsync", 200, 210, 1, work(290, 300, "Memcpy DtoH (Device -> Pinned)"))
STEP = TracedStep(
    (
        Call("cudaLaunchKernel", 10, 20, 1, work(25, 285)),
        COPY,
        Call("cudaStreamSynchronize", 211, 310, 1, None),
        Call("cudaLaunchKernel", 400, 410, 1, work(412, 500)),
        Call("cudaLaunchKernel", 420, 430, 1, work(501, 600)),
    ),
    1000,
)
SEEN = ObservedWait("stream", entered=150, left=305, site=0, reads=True, copies=True, call=5)


def test_a_copy_and_the_synchronize_after_it_are_one_wait():
    assert waits_of(STEP) == ("stream",)


def test_a_synchronize_of_another_thread_does_not_complete_a_copy():
    calls = (COPY, Call("cudaStreamSynchronize", 211, 310, 2, None))
    [wait] = operations(TracedStep(calls, 400), [SEEN], 400, 0)[1:2]
    assert wait.wait is not None
    assert wait.wait.copy == 0


def test_a_pageable_copy_to_the_host_waits_by_itself():
    copy = COPY._replace(work=work(290, 300, "Memcpy DtoH (Device -> Pageable)"))
    assert waits_of(TracedStep((copy, STEP.calls[3]), 1000)) == ("pageable",)
    assert waits_of(TracedStep((STEP.calls[3], copy), 1000)) == ("pageable",)


def test_the_times_of_the_host_are_those_without_the_trace():
    ops = operations(STEP, [SEEN], length=805, cost=0)
    assert [op.work for op in ops] == [260, 0, 88, 99, 0]
    assert ops[1].wait == Wait(0, copy=10, reads=True, call=5)
    # 150 before the wait instead of 200, 500 behind it instead of 690.
    assert ops[0].host + ops[1].host == pytest.approx(150)
    assert sum(op.host for op in ops[2:]) == pytest.approx(500)


def test_what_counting_cost_is_taken_off_behind_the_wait():
    ops = operations(STEP, [SEEN], length=805, cost=20)
    assert sum(op.host for op in ops[2:]) == pytest.approx(480)


def test_what_a_trace_adds_is_taken_off_each_call_alike():
    calls = tuple(Call("cudaLaunchKernel", at, at + 1, 1, work(at, at + 1)) for at in (10, 20, 120))
    ops = operations(TracedStep(calls, 120), [], length=102, cost=0)
    # 18 too much over 10, 10, 100 and 0.
    assert [op.host for op in ops] == pytest.approx([4, 4, 94, 0])


def test_a_stretch_that_took_longer_than_in_the_trace_is_stretched():
    calls = tuple(Call("cudaLaunchKernel", at, at + 1, 1, work(at, at + 1)) for at in (10, 40))
    ops = operations(TracedStep(calls, 50), [], length=100, cost=0)
    assert [op.host for op in ops] == pytest.approx([20, 60, 20])


def test_a_copy_that_the_program_queued_itself_stays_where_it_is():
    ops = operations(STEP, [SEEN._replace(copies=False, reads=False)], length=805, cost=0)
    assert [op.work for op in ops] == [260, 10, 0, 88, 99, 0]
    assert ops[2].wait == Wait(0, copy=0, reads=False, call=5)


def test_delays_are_read_off_a_trace():
    calls = (
        Call("cudaLaunchKernel", 100_000, 0, 1, work(110_000, 200_000)),
        Call("cudaLaunchKernel", 101_000, 0, 1, work(201_500, 300_000)),
        Call("cudaStreamSynchronize", 102_000, 304_000, 1, None),
    )
    assert delays_of([TracedStep(calls, 400_000)]) == Delays(launch=10_000, gap=1_500, wakeup=4_000)


def test_work_on_several_streams_is_refused():
    calls = (*STEP.calls, Call("cudaLaunchKernel", 440, 450, 1, work(500, 600, stream=13)))
    check_single_stream([STEP])
    with pytest.raises(CannotReplay, match="2 streams"):
        check_single_stream([TracedStep(calls, 1000)])
    with pytest.raises(CannotReplay, match="no work"):
        check_single_stream([TracedStep((), 1000)])


def events(*parts):
    return [TraceEvent(name, on_device, start, end, number, 1) for name, on_device, start, end, number in parts]


MARK = "cudaDeviceSynchronize"


def test_a_trace_is_split_at_the_marks():
    listed = events(
        (MARK, False, 1_000_000, 1_001_000, 1),
        ("cudaLaunchKernel", False, 1_002_000, 1_003_000, 2),
        ("kernel", True, 1_004_000, 1_009_000, 2),
        (MARK, False, 3_000_000, 3_001_000, 3),
        (MARK, False, 5_000_000, 5_001_000, 4),
        (MARK, False, 9_000_000, 9_001_000, 5),
    )
    # By another clock, and with a synchronize of the step's own.
    first, second = split_steps(listed, [Mark(50, 1_050), Mark(2_000_050, 2_001_050), Mark(8_000_050, 8_001_050)])
    assert [call.name for call in first.calls] == ["cudaLaunchKernel"]
    assert first.calls[0].work == DeviceWork("kernel", 3_000, 8_000, 1)
    assert first.length == 1_999_000
    assert [call.name for call in second.calls] == [MARK]


def test_a_synchronize_next_to_each_mark_is_not_taken_for_it():
    listed = events(
        (MARK, False, 990_000, 992_000, 1),
        (MARK, False, 1_000_000, 1_002_000, 2),
        ("cudaLaunchKernel", False, 1_004_000, 1_005_000, 3),
        (MARK, False, 1_010_000, 2_900_000, 4),
        (MARK, False, 4_991_000, 4_994_000, 5),
        (MARK, False, 5_000_000, 5_002_000, 6),
    )
    (step,) = split_steps(listed, [Mark(1_000_000, 1_002_000), Mark(5_000_000, 5_002_000)])
    assert [call.name for call in step.calls] == ["cudaLaunchKernel", MARK, MARK]


def test_a_trace_without_the_marks_is_refused():
    with pytest.raises(TraceUnreadable, match="1 device synchronizes"):
        split_steps(events((MARK, False, 1_000_000, 1_001_000, 1)), [Mark(50, 1_050), Mark(2_000_050, 2_001_050)])
