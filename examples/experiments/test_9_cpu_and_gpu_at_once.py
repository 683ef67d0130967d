"""Work of the CPU while the GPU works: both take as long as the longer one, if no barrier stands between them.

A barrier in each batch is right if the CPU's next work needs the batch's result: it would wait for it anyway. It is
wrong if the CPU prepares the next batch meanwhile: the GPU idles while the CPU works, and the CPU while the GPU does.
"""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

PRODUCTS, BATCHES = 4, 20


@pytest.fixture
def weight(simulated):
    size = 64 if simulated else 4096
    return torch.randn(size, size, device="cuda") / size**0.5


def work_of_the_gpu(weight):
    value = weight
    for _ in range(PRODUCTS):
        value = value @ weight
    return value


def test_no_wait_stands_between_the_work_of_the_gpu_and_that_of_the_cpu(weight, planted, gpu_sync, report_result):
    prepared = numpy.random.default_rng(0).standard_normal((64, 64), dtype=numpy.float32)
    work_of_the_gpu(weight)
    with gpu_sync.budget(exact=1) as whole:
        with gpu_sync.budget(max=0) as at_once:
            result = work_of_the_gpu(weight).sum()
            if planted:
                torch.cuda.synchronize()
            prepared = prepared @ prepared
        # Both are done; the one barrier is the read that needs the result.
        result.item()
    report_result(f"{at_once.syncs} syncs while both work, {whole.syncs} with the read of the result")


@pytest.mark.parametrize(("cpu", "gpu"), [(5, 5), (2, 8), (8, 2)])
def test_a_barrier_in_each_batch_adds_the_times_up(cpu, gpu, planted, report_result):
    """A model without a GPU: host and device are two queues, and all times are given."""
    from pytest_gpusync.elapsed.queue_replay import Delays, Op, Wait, replay

    barrier = Op(0, 0, Wait(site=0, copy=0, reads=False, call=0))
    prepare_and_queue = Op(cpu, gpu)
    no_delays = Delays(launch=0, gap=0, wakeup=0)
    with_barriers = replay([[prepare_and_queue, barrier]] * BATCHES, no_delays).length
    at_once = replay([[prepare_and_queue, *([barrier] if planted else [])]] * BATCHES, no_delays).length
    report_result(f"CPU {cpu}, GPU {gpu}: {with_barriers:g} with a barrier in each batch, {at_once:g} without")
    assert with_barriers == BATCHES * (cpu + gpu)
    assert at_once == (BATCHES - 1) * max(cpu, gpu) + cpu + gpu


@pytest.mark.gpu_only
def test_the_work_of_the_cpu_hides_behind_that_of_the_gpu(weight, planted, gpu_elapsed, report_result):
    def on_the_cpu():
        end = time.perf_counter() + 8e-3
        while time.perf_counter() < end:
            pass

    def on_the_gpu():
        work_of_the_gpu(weight)

    def both():
        on_the_gpu()
        if planted:
            torch.cuda.synchronize()
        on_the_cpu()

    found = gpu_elapsed.overlap(on_the_cpu, on_the_gpu, both, rounds=12, calls=2)
    report_result(found)
    assert found.low > 0.5
