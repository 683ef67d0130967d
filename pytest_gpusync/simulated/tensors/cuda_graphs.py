"""CUDA graphs: kernels issued during a capture are recorded, and run again on the same memory by each replay."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pytest_gpusync.simulated.base import capture_rules
from pytest_gpusync.simulated.base.capture_streams import CaptureStreams
from pytest_gpusync.simulated.base.state import current_device, ensure_usable, process
from pytest_gpusync.simulated.base.sync_events import conditions
from pytest_gpusync.simulated.races import captured, device_work, reports
from pytest_gpusync.simulated.tensors import generators, memory, streams
from pytest_gpusync.simulated.tensors.caching_allocator import SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType


class Kernel(NamedTuple):
    """A kernel of a graph: a CPU operator and its arguments, whose memory is that of the device."""

    name: str
    """The operator: ``aten::mul.Tensor``."""
    run: Callable[..., Any]
    arguments: list[Any]
    keywords: dict[str, Any]
    result: Any
    """The new tensors into which later results are copied; None for an operator that only writes to existing ones."""
    place: Any
    """What `place_of` returned for it; None if nobody wants to know."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """The tensors among its arguments."""
        return _tensors([*self.arguments, *self.keywords.values()])


_handles = itertools.count(1)


class _Capture:
    kernels: list[Kernel] | None = None
    place_of: Callable[[FrameType], Any] | None = None
    """Describes the line that issues a kernel, if somebody wants to know; it is kept as `Kernel.place`."""
    ended: Callable[[CUDAGraph], None] | None = None
    """Called with each graph when its capture has ended, if somebody wants to know."""


capture = _Capture()


def record(name: str, run: Callable[..., Any], arguments: list[Any], keywords: dict[str, Any], *, writes: bool) -> Any:
    """Record one kernel of the graph being captured.

    As on a GPU, a capture does not run kernels that write to existing tensors. A new tensor is computed anyway, to know
    its shape. A kernel on a stream that takes no part in the capture runs at once.
    """
    assert capture.kernels is not None and conditions.captured_streams is not None
    frame = sys._getframe(1)
    if not conditions.captured_streams.work(streams.key_of(current_device()), frame, allocates=not writes):
        return run(*arguments, **keywords)
    result = None if writes else run(*arguments, **keywords)
    place = None if capture.place_of is None else capture.place_of(frame)
    capture.kernels.append(Kernel(name, run, arguments, keywords, result, place))
    return result


def is_capturing() -> bool:
    """Return whether a graph is being captured from the current stream."""
    taking_part = conditions.captured_streams
    return taking_part is not None and taking_part.takes_part(streams.key_of(current_device()))


def pool_handle() -> tuple[int, int]:
    """Return a new memory pool handle."""
    return (0, next(_handles))


class CUDAGraph:
    """Replaces ``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.kernels: Sequence[Kernel] | None = None
        """What a replay runs; None before a capture."""
        self._accesses: Sequence[captured.Captured] = ()
        self._generators: list[Any] = []
        self._pool = pool_handle()
        self._holds_pool = False

    def register_generator_state(self, generator: Any) -> None:
        """Let kernels of the graph draw from a generator other than the default ones."""
        self._generators.append(generator)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Start recording kernels."""
        if conditions.capturing:
            raise RuntimeError(capture_rules.NOT_PERMITTED)
        stream = streams.key_of(current_device())
        if stream[1] == 0:
            raise RuntimeError(capture_rules.DEFAULT_STREAM)
        self._pool = tuple(pool) if pool else self._pool
        memory.use_pool(self._pool, 1)
        self._holds_pool = True
        capture.kernels = []
        captured.begin()
        generators.registered.update(generator._cdata for generator in self._generators)
        conditions.captured_streams = CaptureStreams(stream)
        conditions.capturing, conditions.pool = True, self._pool
        process.changed()

    def capture_end(self) -> None:
        """Stop recording kernels; the graph can be replayed from now on."""
        self.kernels, capture.kernels = capture.kernels, None
        self._accesses = captured.end()
        taking_part, conditions.captured_streams = conditions.captured_streams, None
        conditions.capturing, conditions.pool = False, SHARED
        generators.registered.clear()
        process.changed()
        if taking_part is not None:
            taking_part.end(streams.key_of(current_device()))
        if capture.ended is not None:
            capture.ended(self)

    def replay(self) -> None:
        """Run the kernels again, on the tensors they wrote when they were captured."""
        if self.kernels is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        if process.blocked:
            ensure_usable()
        if reports.is_listening():
            device_work.replay(self._accesses)
        with torch.no_grad():
            for kernel in self.kernels:
                _copy_into(kernel.result, kernel.run(*kernel.arguments, **kernel.keywords))

    def instantiate(self) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Discard the captured kernels and release the memory pool."""
        self.kernels = None
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


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
