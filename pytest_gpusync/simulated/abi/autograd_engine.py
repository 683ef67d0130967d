"""Runs backward passes of simulated tensors on the thread that starts them.

At the first backward pass of the process, the autograd engine starts one thread per device of every device guard.
Simulated devices have no use for these threads, because the host computes everything. Moreover, the engine does not
wait until such a thread has first taken the GIL, and if the interpreter ends at that moment, it aborts the process. So
the engine is made to start before there is a guard for CUDA, without threads, and each backward pass runs with
multithreading disabled, on its caller's thread. Syncs in a backward pass are then seen on that thread, below the line
that called it.
"""

from __future__ import annotations

from typing import Any

import torch

from pytest_gpusync.simulated.base.state import enter_backward, in_backward


def start_without_threads() -> None:
    """Make the engine start now; call before the device guard is installed."""
    with torch.enable_grad(), torch.inference_mode(mode=False):
        torch.zeros((), requires_grad=True).clone().backward()


class SingleThreadedEngine:
    """Replaces ``Variable._execution_engine``."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_backward(self, *arguments: Any, **keywords: Any) -> Any:
        """Run a backward pass on the calling thread."""
        previous, within = torch._C._is_multithreading_enabled(), in_backward()
        try:
            torch._C._set_multithreading_enabled(False)
            enter_backward()
            return self._engine.run_backward(*arguments, **keywords)
        finally:
            try:
                enter_backward(within)
            finally:  # also if a signal handler raises above
                torch._C._set_multithreading_enabled(previous)
