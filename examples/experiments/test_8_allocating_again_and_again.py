"""Memory that is given back in every batch is asked for again in every batch, and each time the whole device waits.

torch keeps what is freed and hands it out again, so that a step in steady state calls no `cudaMalloc`. `empty_cache()`
in the loop undoes that: it frees, which waits, and the next batch allocates anew.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def work():
    batch = torch.ones(1 << 20, device="cuda")
    return (batch * 2).relu()


def work_and_give_back():
    work()
    torch.cuda.empty_cache()


@pytest.fixture
def step(planted):
    """Return the step that is held to what a step ought to be."""
    return work_and_give_back if planted else work


def test_reuse_calls_no_malloc_and_giving_back_does(step, gpu_train, figure):
    given_back, reused = (gpu_train(way, steps=20) for way in (work_and_give_back, step))
    reused.assert_syncs(max=0)
    if reused.device_mallocs is None or given_back.device_mallocs is None:
        pytest.skip("calls of cudaMalloc are not counted here")
    figure(
        f"cudaMalloc per step: {given_back.device_mallocs.median:g} given back, {reused.device_mallocs.median:g} reused"
    )
    assert given_back.device_mallocs.median >= 1
    assert reused.device_mallocs.max == 0


def test_giving_back_costs_time(step, gpu_elapsed, figure):
    ratio = gpu_elapsed.ratio(work_and_give_back, step, rounds=12, tolerance=0.1)
    figure(ratio)
    assert ratio.low > 1.5
