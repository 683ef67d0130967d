"""A thousand increments with a barrier after each, compared with one at the end.

The first takes n (t1 + t2 + t3), the second t1 + n t2 + t3, where t1 is the host's dispatch, t2 the device's work and
t3 the read of the result. Without barriers in between, dispatch and read overlap the device's work; the longer one
determines the time.
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


def test_a_thousand_barriers_or_one(increment, planted, gpu_sync):
    step, read = increment
    with gpu_sync.budget(exact=INCREMENTS):
        for _ in range(INCREMENTS):
            step()
            read()
    with gpu_sync.budget(exact=1):
        for _ in range(INCREMENTS):
            step()
            if planted:
                read()
        read()


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
