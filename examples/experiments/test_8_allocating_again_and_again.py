"""Memory that is freed in each batch must be allocated again in each batch, and the whole device waits each time.

torch caches freed memory and reuses it, so that a step in steady state calls no `cudaMalloc`. `empty_cache()` in the
loop defeats the cache: it frees, which waits, and the next batch allocates again.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def work():
    batch = torch.ones(1 << 20, device="cuda")
    return (batch * 2).relu()


def work_and_empty_cache():
    work()
    torch.cuda.empty_cache()


@pytest.fixture
def step(planted):
    """Return the step under test."""
    return work_and_empty_cache if planted else work


def test_empty_cache_causes_mallocs_and_reuse_does_not(step, gpu_train, report_result):
    emptied, reused = (gpu_train(step_function, steps=20) for step_function in (work_and_empty_cache, step))
    reused.assert_syncs(max=0)
    if reused.device_mallocs is None or emptied.device_mallocs is None:
        pytest.skip("calls of cudaMalloc are not counted here")
    with_calls, without_calls = emptied.device_mallocs, reused.device_mallocs
    report_result(f"cudaMalloc per step: {with_calls.median:g} with empty_cache(), {without_calls.median:g} without")
    assert with_calls.median >= 1
    assert without_calls.max == 0


def test_empty_cache_costs_time(step, gpu_elapsed, report_result):
    ratio = gpu_elapsed.ratio(work_and_empty_cache, step, rounds=12, tolerance=0.1)
    report_result(ratio)
    assert ratio.low > 1.5
