"""A thousand products on one GPU, each followed by a synchronize of that GPU or of the other one.

A synchronize waits for the device that it names. On an idle device it counts as a sync, but waits for nothing.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

PRODUCTS = 1000


@pytest.fixture
def matrix(two_gpus, simulated):
    """Return a matrix after one product: the first product waits, while cuBLAS allocates its workspace."""
    size = 32 if simulated else 512
    matrix = torch.randn(size, size, device="cuda:0")
    torch.mm(matrix, matrix)
    return matrix


def run(a, synchronized):
    for _ in range(PRODUCTS):
        torch.mm(a, a)
        torch.cuda.synchronize(synchronized)


@pytest.mark.parametrize("synchronized", [0, 1])
def test_a_synchronize_counts_for_the_gpu_that_it_names(matrix, planted, gpu_sync, report_result, synchronized):
    with gpu_sync.record() as seen:
        # The hazard: the barrier is one of the other GPU.
        run(matrix, 1 - synchronized if planted else synchronized)
    report_result(f"synchronize of cuda:{synchronized}: {seen.syncs_by_device}")
    assert seen.syncs_by_device == {synchronized: PRODUCTS}


@pytest.mark.gpu_only
def test_only_the_synchronize_of_the_busy_gpu_blocks(matrix, planted, gpu_sync, report_result):
    blocked = {}
    for synchronized in (0, 1):
        with gpu_sync.record() as seen:
            run(matrix, 0 if planted else synchronized)
        blocked[synchronized] = sum(site.blocked_ms or 0.0 for site in seen.sites)
    report_result(f"blocked {blocked[0]:.1f} ms on its own GPU, {blocked[1]:.1f} ms on the other one")
    assert blocked[0] > 2 * blocked[1]
