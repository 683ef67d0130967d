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


def mallocs(run):
    from pytest_gpusync.memory import device_mallocs_per_step

    found = device_mallocs_per_step(run.measurement)
    if found is None:
        pytest.skip("calls of cudaMalloc are not counted here")
    return found.median


def test_reuse_calls_no_malloc(gpu_train, figure):
    run = gpu_train(work, steps=20)
    figure(f"reuse: {mallocs(run):g} calls of cudaMalloc per step")
    assert mallocs(run) == 0
    run.assert_syncs(max=0)


def test_giving_back_calls_it_in_every_step(gpu_train, figure):
    run = gpu_train(work_and_give_back, steps=20)
    figure(f"empty_cache() in each step: {mallocs(run):g} calls of cudaMalloc per step")
    assert mallocs(run) >= 1
    assert min(run.syncs_per_step) >= 1


def test_giving_back_costs_time(gpu_elapsed, figure):
    ratio = gpu_elapsed.ratio(work_and_give_back, work)
    figure(ratio)
    assert ratio.low > 1.5
