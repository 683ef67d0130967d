"""The simulated device on a machine with a GPU, in processes of their own: a driver finds its GPUs but once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]


def run(source: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "lint"), *sys.path])}
    return subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


ASKED_FOR = """
import os
before = os.environ.get("CUDA_VISIBLE_DEVICES")
import torch
from pytest_gpusync.simulated import simulated_cuda
with simulated_cuda():
    print(torch.cuda.get_device_name(), torch.ones(3, device="cuda").sum().item())
assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
"""


def test_it_takes_the_place_of_the_gpu_when_asked_for():
    done = run(ASKED_FOR)
    assert (done.returncode, done.stdout) == (0, "Simulated CUDA device 3.0\n"), done.stderr


REFUSES = """
import torch
{before}
from pytest_gpusync.simulated import SimulationUnavailable, simulated_cuda
try:
    with simulated_cuda():
        pass
except SimulationUnavailable as error:
    print(error)
print(torch.ones(3, device="cuda").sum().item())
"""


def test_it_refuses_where_the_gpu_is_in_use_and_leaves_it_alone():
    done = run(REFUSES.format(before='torch.ones(3, device="cuda")'))
    assert "already uses a GPU" in done.stdout, done.stderr
    assert done.stdout.endswith("3.0\n")


def test_it_refuses_where_the_driver_has_found_the_gpu_and_leaves_it_alone():
    done = run(REFUSES.format(before="torch._C._cuda_getDeviceCount()"))
    assert "hide the GPU" in done.stdout, done.stderr
    assert done.stdout.endswith("3.0\n")
