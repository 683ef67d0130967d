"""A timer that does not wait for the device measures how long it took to queue the work, not how long the work took.

A NumPy product is complete when the call returns. A torch product is only queued: the timer shows microseconds for ten
products that take the GPU a thousand times as long.
"""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

PRODUCTS = 10


def seconds(work, wait=None):
    """Return the time of `work`, including `wait` if given."""
    if wait is not None:
        wait()
    start = time.perf_counter()
    work()
    if wait is not None:
        wait()
    return time.perf_counter() - start


@pytest.fixture
def products(simulated):
    """Return a function that queues ten products of two matrices on the GPU, warmed up."""
    size = 64 if simulated else 4096
    a = torch.randn(size, size, device="cuda")

    def products():
        for _ in range(PRODUCTS):
            torch.mm(a, a)

    products()
    torch.cuda.synchronize()
    return products


@pytest.mark.gpu_only
def test_without_a_barrier_a_timer_measures_the_dispatch(products, planted, report_result):
    # The queue is empty before the first run, so that the launches do not wait for space in it.
    dispatched = seconds(products)
    torch.cuda.synchronize()
    done = seconds(products, None if planted else torch.cuda.synchronize)
    report_result(f"{PRODUCTS} products: {dispatched * 1e3:.2f} ms without a barrier, {done * 1e3:.2f} ms with one")
    assert dispatched < 0.2 * done


@pytest.mark.gpu_only
def test_a_numpy_product_is_complete_when_the_call_returns(products, planted, report_result):
    b = numpy.random.default_rng(0).standard_normal((1024, 1024), dtype=numpy.float32)

    def on_the_host():
        for _ in range(PRODUCTS):
            b @ b

    work = products if planted else on_the_host
    without, with_barrier = seconds(work), seconds(work, torch.cuda.synchronize)
    report_result(f"NumPy: {without * 1e3:.2f} ms, {with_barrier * 1e3:.2f} ms with a barrier on an idle device")
    assert without > 0.5 * with_barrier


def test_the_products_do_not_wait_and_the_barrier_is_one_sync(products, planted, gpu_sync, report_result):
    with gpu_sync.budget(max=0) as queued:
        products()
        if planted:
            torch.cuda.synchronize()
    with gpu_sync.budget(exact=1) as awaited:
        products()
        torch.cuda.synchronize()
    report_result(f"{PRODUCTS} products: {queued.syncs} syncs without a barrier, {awaited.syncs} with one")
