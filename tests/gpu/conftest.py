"""Tests of the driver-level recorder: they need a real GPU and are skipped, with the reason, without one."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from pytest_gpusync.machine import devices

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
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


@pytest.fixture(scope="session")
def cycles_per_ms():
    """Cycles for which ``torch.cuda._sleep`` keeps the GPU busy for a millisecond, in the median of a few tries."""
    import torch

    tries = []
    for _ in range(7):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
        tries.append(20_000_000 / start.elapsed_time(end))
    return sorted(tries)[3]


@pytest.fixture
def busy(cycles_per_ms):
    """Return a step that keeps the GPU busy for some milliseconds and the host for none."""
    import torch

    def busy(milliseconds):
        cycles = int(milliseconds * cycles_per_ms)
        return lambda: torch.cuda._sleep(cycles)

    return busy
