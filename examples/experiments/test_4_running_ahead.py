"""A deep network over 150 batches of 1024 x 512: a barrier in each batch, none at all, and one batch of overlap.

Without any barrier the host issues all batches long before the device has done them. Tensors on the device are reused
in the order of the queue, so they do not pile up; batches in pinned host memory do: none can be reused before its copy
was made. One batch of overlap keeps the device busy and two batches in memory.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

LAYERS = 8
BATCHES = {"steps": 150, "warmup": 20}


@pytest.fixture
def one_host_thread():
    """Fill batches from one thread: of several some may wait for a core, and then the batch takes 8 ms."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def infer(simulated, one_host_thread):
    """Return a step that makes a batch in pinned memory, copies it and runs a deep network over it."""
    rows, columns, width = (8, 16, 16) if simulated else (1024, 512, 2048)
    hidden = [torch.nn.Linear(width, width) for _ in range(LAYERS)]
    model = torch.nn.Sequential(torch.nn.Linear(columns, width), *hidden).cuda()

    def step():
        batch = torch.empty(rows, columns, pin_memory=True).fill_(1.0)
        with torch.no_grad():
            return model(batch.to("cuda", non_blocking=True))

    return step


def test_no_barrier_is_no_sync_and_one_in_each_batch_is_one(infer, planted, gpu_train):
    def read():
        infer().sum().item()

    gpu_train(read, **BATCHES).assert_syncs(exact=1)
    gpu_train(read if planted else infer, **BATCHES).assert_syncs(exact=0)


@pytest.mark.gpu_only
def test_one_batch_of_overlap_keeps_the_host_from_running_away(infer, planted, gpu_train, figure):
    for limit in (None, 2):
        run = gpu_train(infer, **BATCHES, in_flight=None if planted else limit)
        figure(
            f"{limit or 'any number of'} batches in flight allowed: {run.max_in_flight} were, "
            f"issued in {run.dispatch_ratio.value:.2f} of the time to complete"
        )
    run.assert_max_in_flight(max=2)
    run.assert_memory_growth(max="64 KiB")


def test_overlap_costs_less_than_a_barrier(infer, planted, gpu_elapsed, figure):
    from pytest_gpusync import limit_in_flight

    def barrier_in_each():
        for _ in range(10):
            infer().sum().item()

    def one_of_overlap():
        for _ in limit_in_flight(range(10)):
            infer().sum().item() if planted else infer()

    def none():
        for _ in range(10):
            infer()

    figure(f"one batch of overlap against none: {gpu_elapsed.ratio(one_of_overlap, none, rounds=14, calls=1)}")
    ratio = gpu_elapsed.ratio(barrier_in_each, one_of_overlap, rounds=24, calls=1)
    figure(f"a barrier in each against one batch of overlap: {ratio}")
    assert ratio.low > 1.0
