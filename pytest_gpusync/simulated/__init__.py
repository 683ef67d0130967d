"""A simulated CUDA device: code that says ``cuda`` runs on the CPU, with a GPU's errors and a GPU's syncs.

A tensor of the device is an ordinary tensor over host memory whose device says ``cuda``. The operators' CUDA kernels
run the CPU's kernels; torch above them is unchanged. So whatever makes the host wait on a GPU happens here too, and is
announced (see :mod:`.base.sync_events`). Values are those of the CPU. Time is not simulated. Python processes that the
program starts have the device too, however they are started.

It needs torch 2.11 to 2.15 on Linux (x86-64, aarch64), a CPU build or a CUDA build. Nothing is imported or changed
before it is switched on. On a machine with a GPU it must be switched on before the process uses the GPU, which is then
hidden.
"""

from __future__ import annotations

from pytest_gpusync.simulated.activation import is_on, simulated_cuda, switch_on
from pytest_gpusync.simulated.base.versions import SimulationUnavailable

__all__ = ["SimulationUnavailable", "is_on", "simulated_cuda", "switch_on"]
