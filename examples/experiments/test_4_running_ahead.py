"""A deep network over 150 batches of 1024 x 512: a barrier in each batch, none at all, and one batch of overlap.

Without any barrier the host issues all batches long before the device has done them. Tensors on the device are reused
in the order of the queue, so they do not pile up; batches in pinned host memory do: none can be reused before its copy
was made. One batch of overlap keeps the device busy and two batches in memory.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

LAYERS = 8
HAZARD = {"steps": 150, "warmup": 20}


@pytest.fixture
def infer(simulated):
    """Return a step that makes a batch in pinned memory, copies it and runs a deep network over it."""
    rows, columns, width = (8, 16, 16) if simulated else (1024, 512, 4096)
    hidden = [torch.nn.Linear(width, width) for _ in range(LAYERS)]
    model = torch.nn.Sequential(torch.nn.Linear(columns, width), *hidden).cuda()

    def step():
        batch = torch.empty(rows, columns, pin_memory=True).fill_(1.0)
        with torch.no_grad():
            return model(batch.to("cuda", non_blocking=True))

    return step


def test_a_barrier_in_each_batch_is_a_sync_in_each(infer, gpu_train):
    gpu_train(lambda: infer().sum().item(), **HAZARD).assert_syncs(exact=1)


def test_no_barrier_is_no_sync(infer, gpu_train):
    gpu_train(infer, **HAZARD).assert_syncs(exact=0)


@pytest.mark.gpu_only
def test_without_a_barrier_the_host_runs_away(infer, gpu_train, figure):
    run = gpu_train(infer, **HAZARD)
    figure(f"no barrier: {run.max_in_flight} batches in flight, dispatch ratio {run.dispatch_ratio.value:.2f}")
    assert run.max_in_flight > 10


@pytest.mark.gpu_only
def test_one_batch_of_overlap_bounds_it(infer, gpu_train, figure):
    run = gpu_train(infer, **HAZARD, in_flight=2)
    run.assert_max_in_flight(max=2)
    run.assert_memory_growth(max="64 KiB")
    figure(f"one batch of overlap: {run.max_in_flight} in flight")


def test_overlap_costs_nothing_and_a_barrier_does(infer, gpu_elapsed, figure):
    from pytest_gpusync import limit_in_flight

    def barrier_in_each():
        for _ in range(10):
            infer().sum().item()

    def one_of_overlap():
        for _ in limit_in_flight(range(10)):
            infer()

    def none():
        for _ in range(10):
            infer()

    barrier, overlap = gpu_elapsed.ratio(barrier_in_each, none), gpu_elapsed.ratio(one_of_overlap, none)
    figure(f"barrier in each against none: {barrier}")
    figure(f"one batch of overlap against none: {overlap}")
    assert barrier.low > 1.0
    assert overlap.value < barrier.value
