"""Tests of the driver-level recorder: they need a real GPU and are skipped, with the reason, without one."""

from __future__ import annotations

import gc

import pytest

from pytest_gpusync import devices


def pytest_collection_modifyitems(items):
    for item in items:
        if "/gpu/" in str(item.path):
            item.add_marker(pytest.mark.gpu_only)


@pytest.fixture(scope="session", autouse=True)
def warm_gpu():
    """Create the context, the library handles and the caching allocator's first blocks outside every region."""
    if devices.detect().kind != "cuda":
        return
    import torch

    x = torch.randn(256, 256, device="cuda", requires_grad=True)
    (x @ x).sum().backward()
    torch.linalg.svd(x.detach())
    (x > 0).nonzero()
    torch.cuda.synchronize()


@pytest.fixture(autouse=True)
def nothing_left_to_collect():
    """Free what earlier tests left in reference cycles: freed inside a measured run it would look like a change."""
    gc.collect()
