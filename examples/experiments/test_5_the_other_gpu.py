"""A thousand products on one GPU, with a synchronize of the other or of its own.

A synchronize waits for the device that it names. That of an idle one is a sync all the same, and waits for nothing.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

PRODUCTS, SIZE = 1000, 512


@pytest.fixture
def matrix(two_gpus):
    """Return a matrix that a product was made of: the first one waits, while cuBLAS takes its memory."""
    matrix = torch.randn(SIZE, SIZE, device="cuda:0")
    torch.mm(matrix, matrix)
    return matrix


def run(a, synchronized):
    for _ in range(PRODUCTS):
        torch.mm(a, a)
        torch.cuda.synchronize(synchronized)


@pytest.mark.parametrize("synchronized", [0, 1])
def test_a_synchronize_counts_whichever_gpu_it_waits_for(matrix, planted, gpu_sync, synchronized):
    with gpu_sync.budget(exact=PRODUCTS):
        run(matrix, synchronized)
        if planted:
            torch.cuda.synchronize(1 - synchronized)


@pytest.mark.gpu_only
def test_only_that_of_the_busy_gpu_waits(matrix, planted, gpu_sync, figure):
    blocked = {}
    for synchronized in (0, 1):
        with gpu_sync.record() as seen:
            run(matrix, 0 if planted else synchronized)
        blocked[synchronized] = sum(site.blocked_ms or 0.0 for site in seen.sites)
    figure(f"blocked {blocked[0]:.1f} ms on its own GPU, {blocked[1]:.1f} ms on the other")
    assert blocked[0] > 2 * blocked[1]
