"""A clock that is read without waiting shows how long it took to ask for the work, not how long the work took.

NumPy returns when a product is there. torch returns when it is queued: the clock shows some microseconds for ten
products that take the GPU a thousand times as long.
"""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

PRODUCTS = 10


def seconds(work, wait=None):
    """Return the time of `work`, and of `wait` after it."""
    if wait is not None:
        wait()
    begun = time.perf_counter()
    work()
    if wait is not None:
        wait()
    return time.perf_counter() - begun


@pytest.fixture
def products(simulated):
    """Return ten products of two matrices on the GPU, warmed up."""
    size = 64 if simulated else 4096
    a = torch.randn(size, size, device="cuda")

    def products():
        for _ in range(PRODUCTS):
            torch.mm(a, a)

    products()
    torch.cuda.synchronize()
    return products


@pytest.mark.gpu_only
def test_without_a_barrier_the_clock_shows_the_dispatch(products, planted, figure):
    # Once with nothing queued before, so that the launches themselves do not wait for room.
    dispatched = seconds(products)
    torch.cuda.synchronize()
    done = seconds(products, None if planted else torch.cuda.synchronize)
    figure(f"{PRODUCTS} products: {dispatched * 1e3:.2f} ms without a barrier, {done * 1e3:.2f} ms with one")
    assert dispatched < 0.2 * done


@pytest.mark.gpu_only
def test_numpy_is_there_when_it_returns(products, planted, figure):
    b = numpy.random.default_rng(0).standard_normal((1024, 1024), dtype=numpy.float32)

    def on_the_host():
        for _ in range(PRODUCTS):
            b @ b

    work = products if planted else on_the_host
    without, with_barrier = seconds(work), seconds(work, torch.cuda.synchronize)
    figure(f"NumPy: {without * 1e3:.2f} ms, {with_barrier * 1e3:.2f} ms with a barrier that has nothing to wait for")
    assert without > 0.5 * with_barrier


def test_the_products_wait_for_nothing_and_the_barrier_is_one_sync(products, planted, gpu_sync):
    with gpu_sync.budget(max=0):
        products()
        if planted:
            torch.cuda.synchronize()
    with gpu_sync.budget(exact=1):
        products()
        torch.cuda.synchronize()
