"""A deep network over 150 batches of 1024 x 512: a barrier in each batch, none at all, and one batch of overlap.

Without a barrier the host queues all batches long before the device has run them. Tensors on the device are reused in
stream order, so they do not accumulate. Batches in pinned host memory do: none can be reused before its copy has run.
One batch of overlap keeps the device busy with two batches in memory.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

LAYERS = 8
BATCHES = {"steps": 150, "warmup": 20}


@pytest.fixture
def one_host_thread():
    """Fill batches from one thread: if one of several threads waits for a core, a batch takes 8 ms."""
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
def test_one_batch_of_overlap_keeps_the_host_from_running_away(infer, planted, gpu_train, report_result):
    for limit in (None, 2):
        run = gpu_train(infer, **BATCHES, in_flight=None if planted else limit)
        report_result(
            f"{limit or 'any number of'} batches in flight allowed, {run.max_in_flight} reached; "
            f"queued in {run.dispatch_ratio.value:.2f} of the run's time"
        )
    run.assert_max_in_flight(max=2)
    run.assert_memory_growth(max="64 KiB")


def test_overlap_costs_less_than_a_barrier(infer, planted, gpu_elapsed, report_result):
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

    ratio = gpu_elapsed.ratio(one_of_overlap, none, rounds=14, calls=1)
    report_result(f"one batch of overlap, compared with no limit: {ratio}")
    ratio = gpu_elapsed.ratio(barrier_in_each, one_of_overlap, rounds=24, calls=1)
    report_result(f"a barrier in each batch, compared with one batch of overlap: {ratio}")
    assert ratio.low > 1.0
