"""CUDA graphs: kernels issued during a capture are recorded, and run again on the same memory by each replay."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pytest_gpusync.simulated.base.state import ensure_usable, process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.races import tracker
from pytest_gpusync.simulated.tensors import memory
from pytest_gpusync.simulated.tensors.caching_allocator import SHARED

_Step = tuple[Callable[..., Any], list[Any], dict[str, Any], Any]
"""A CPU operator, its arguments, its keywords, and the result into which later results are copied."""

_handles = itertools.count(1)


class _Capture:
    steps: list[_Step] | None = None


_capture = _Capture()


def record(run: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any], *, writes: bool) -> Any:
    """Record one kernel of the graph being captured.

    As on a GPU, a capture does not run kernels that write to existing tensors. A new tensor is computed anyway, to know
    its shape.
    """
    assert _capture.steps is not None
    if writes:
        _capture.steps.append((run, arguments, keywords, None))
        return None
    result = run(*arguments, **keywords)
    _capture.steps.append((run, arguments, keywords, result))
    return result


def is_capturing() -> bool:
    """Return whether a graph is being captured in this process."""
    return conditions.capturing


def pool_handle() -> tuple[int, int]:
    """Return a new memory pool handle."""
    return (0, next(_handles))


class CUDAGraph:
    """Replaces ``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._steps: Sequence[_Step] | None = None
        self._accesses: Sequence[tracker.Captured] = ()
        self._pool = pool_handle()
        self._holds_pool = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Start recording kernels."""
        if conditions.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._pool = tuple(pool) if pool else self._pool
        memory.use_pool(self._pool, 1)
        self._holds_pool = True
        _capture.steps = []
        tracker.captured.accesses = []
        conditions.capturing, conditions.pool = True, self._pool
        process.changed()

    def capture_end(self) -> None:
        """Stop recording kernels; the graph can be replayed from now on."""
        self._steps, _capture.steps = _capture.steps, None
        self._accesses, tracker.captured.accesses = tracker.captured.accesses or [], None
        conditions.capturing, conditions.pool = False, SHARED
        process.changed()

    def replay(self) -> None:
        """Run the kernels again, on the tensors they wrote when they were captured."""
        if self._steps is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if process.blocked:
            ensure_usable()
        if tracker.is_listening():
            tracker.replay(self._accesses)
        with torch.no_grad():
            for run, arguments, keywords, captured in self._steps:
                _copy_into(captured, run(*arguments, **keywords))

    def instantiate(self) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Discard the captured kernels and release the memory pool."""
        self._steps = None
        if self._holds_pool:
            self._holds_pool = False
            memory.use_pool(self._pool, -1)

    def __del__(self) -> None:
        self.reset()

    def pool(self) -> tuple[int, int]:
        """Return the handle of the graph's memory pool."""
        return self._pool

    def enable_debug_mode(self) -> None:
        """Do nothing."""

    def debug_dump(self, path: str) -> None:
        """Write nothing."""


def _copy_into(captured: Any, result: Any) -> None:
    if isinstance(captured, torch.Tensor):
        captured.copy_(result)
    elif isinstance(captured, (list, tuple)):
        for target, value in zip(captured, result, strict=True):
            _copy_into(target, value)
