"""A thousand increments with a barrier after each, compared with one at the end.

The first takes n (t1 + t2 + t3), the second t1 + n t2 + t3, where t1 is the host's dispatch, t2 the device's work and
t3 the read of the result. Without barriers in between, dispatch and read overlap the device's work; the longer one
determines the time.

The second formula needs 1000 t2 > 999 t1: when the device starts the first increment, the host still has 999 to
dispatch, and the device must not run out of work before. Otherwise the step is dispatch-bound: the device waits for the
host, and the time is n t1 + t2 + t3.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

INCREMENTS = 1000


@pytest.fixture
def increment(simulated):
    """Return the step, and the function that reads its result."""
    value = torch.zeros(1 << (4 if simulated else 22), device="cuda")
    return lambda: value.add_(1.0), lambda: value[0].item()


def test_a_thousand_barriers_or_one(increment, planted, gpu_sync, report_result):
    step, read = increment
    with gpu_sync.budget(exact=INCREMENTS) as each:
        for _ in range(INCREMENTS):
            step()
            read()
    with gpu_sync.budget(exact=1) as at_the_end:
        for _ in range(INCREMENTS):
            step()
            if planted:
                read()
        read()
    report_result(f"{each.syncs} syncs with a read after each increment, {at_the_end.syncs} with one at the end")


def test_the_parts_predict_both_ways(increment, planted, gpu_elapsed, report_result):
    step, read = increment

    def step_that_reads():
        step()
        read()

    parts = gpu_elapsed.decompose(step_that_reads if planted else step, read, steps=INCREMENTS)
    report_result(parts)
    assert parts.each_ms > 1.2 * parts.end_ms
    assert parts.end_ms == pytest.approx(parts.end_predicted_ms, rel=0.25)


def test_the_barriers_cost_time(increment, planted, gpu_elapsed, report_result):
    step, read = increment

    def in_each():
        for _ in range(100):
            step()
            read()

    def at_the_end():
        for _ in range(100):
            step()
            if planted:
                read()
        read()

    ratio = gpu_elapsed.ratio(in_each, at_the_end, rounds=12, tolerance=0.1)
    report_result(ratio)
    assert ratio.low > 1.5


# Bytes of a float32 vector: an increment takes the device much longer than its dispatch, or much less time.
DEVICE_BOUND, DISPATCH_BOUND = 1 << 26, 1 << 10


@pytest.mark.parametrize(("t1", "t2"), [(6, 7), (6, 60), (6, 2), (6, 6)], ids=lambda us: f"{us}us")
def test_the_longer_of_dispatch_and_work_sets_the_pace_of_two_queues(t1, t2, planted, report_result):
    """The formulas, in a model without a GPU: host and device are two queues, and all times are given."""
    from pytest_gpusync.elapsed.queue_replay import Delays, Op, Wait, replay

    t3 = 10
    read = Op(0, 0, Wait(site=0, copy=0, reads=True, call=t3))
    increments = [Op(t1, t2), *([read] if planted else [])] * INCREMENTS
    total = replay([[*increments, read]], Delays(launch=0, gap=0, wakeup=t3)).length
    report_result(f"t1 = {t1} us, t2 = {t2} us: {total / 1e3:.3f} ms")
    device_bound, dispatch_bound = t1 + INCREMENTS * t2 + t3, INCREMENTS * t1 + t2 + t3
    assert total == max(device_bound, dispatch_bound)
    # Below it, the first formula is shorter than the dispatch alone.
    assert (INCREMENTS * t2 > (INCREMENTS - 1) * t1) == (device_bound > INCREMENTS * t1 + t3)


@pytest.mark.gpu_only
@pytest.mark.parametrize("bound", ["device", "dispatch"])
def test_the_longer_of_dispatch_and_work_determines_the_time(bound, planted, gpu_elapsed, report_result):
    # The hazard: the formula of one side, for a step of the other.
    nbytes = DEVICE_BOUND if (bound == "device") != planted else DISPATCH_BOUND
    value = torch.zeros(nbytes // 4, device="cuda")
    parts = gpu_elapsed.decompose(lambda: value.add_(1.0), lambda: value[0].item(), steps=INCREMENTS)
    t1, t2, t3 = parts.dispatch_ms, parts.device_ms, parts.read_ms
    report_result(
        f"t1 = {t1 * 1e3:.1f} us, t2 = {t2 * 1e3:.1f} us: {parts.end_ms:.2f} ms; "
        f"t1 + n t2 + t3 = {t1 + INCREMENTS * t2 + t3:.2f} ms, n t1 + t2 + t3 = {INCREMENTS * t1 + t2 + t3:.2f} ms"
    )
    if bound == "device":
        assert INCREMENTS * t2 > (INCREMENTS - 1) * t1
        assert parts.end_ms == pytest.approx(t1 + INCREMENTS * t2 + t3, rel=0.25)
    else:
        assert INCREMENTS * t2 < (INCREMENTS - 1) * t1
        assert parts.end_ms > 1.5 * (t1 + INCREMENTS * t2 + t3)
        assert parts.end_ms == pytest.approx(INCREMENTS * t1 + t2 + t3, rel=0.4)
