"""Which of two devices the host waits for; ``benchmarks/two_devices.py`` counts the same statements on two GPUs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from pytest_gpusync import record
from pytest_gpusync.simulated import simulated_cuda

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from two_devices import STATEMENTS, count, namespace


@pytest.fixture(scope="module")
def names():
    with simulated_cuda(devices=2):
        yield namespace()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_sync_is_of_the_device_that_is_waited_for(names, statement):
    assert count(statement, names) == STATEMENTS[statement]


def test_a_region_has_the_counts_of_each_device_and_each_line(names):
    with record() as region:
        for device in (0, 1, 1):
            torch.cuda.synchronize(device)
    assert region.syncs_by_device == {0: 1, 1: 2}
    (site,) = region.sites
    assert [(count.device, count.syncs, count.blocked_ms) for count in site.devices] == [(0, 1, None), (1, 2, None)]
