"""What is not permitted while a CUDA graph is captured, with the errors of CUDA and torch.

On a GPU the first such operation raises, and the capture is lost. Here somebody may collect them instead
(:mod:`pytest_gpusync.measure.captures`): the operation is then reported, and the capture goes on as if it were
permitted.

The texts of CUDA's errors are those of ``cudaGetErrorString``; those of torch are in ATen/native/cuda/Copy.cu,
ATen/cuda/CUDAGraph.cpp and ATen/cuda/CUDAGeneratorImpl.cpp.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpusync.model.measurement import Site

Rule = Literal["wait", "copy", "call", "stream", "generator"]
"""What an operation breaks: it waits, copies pageable memory, is a call that CUDA prohibits, is on a stream outside of
the capture, or draws from a generator that the graph does not know."""

NOT_PERMITTED: Final = "CUDA error: operation not permitted when stream is capturing"
UNPINNED: Final = (
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. Please use "
    "tensor.pin_memory() or allocate the tensor with pin_memory=True."
)
CAPTURED_EVENT: Final = "CUDA error: operation not permitted on an event last recorded in a capturing stream"
ISOLATION: Final = "CUDA error: dependency created on uncaptured work in another stream"
IMPLICIT: Final = "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
UNJOINED: Final = "CUDA error: capturing stream has unjoined work"
NOT_CAPTURED: Final = (
    "no error: the stream does not wait for the capturing one, so its work runs at once and is not part of the graph"
)
UNREGISTERED: Final = "Attempt to increase offset for a CUDA generator not in capture mode."
NEW_SEED: Final = (
    "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the "
    "original seed."
)
DEFAULT_STREAM: Final = (
    "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on the "
    "default stream.)"
)
OTHER_STREAM: Final = "Capture must end on the same stream it began on."


class _Collection:
    """Who collects what is not permitted, instead of having it raised."""

    collector: Callable[[Rule, str, FrameType | Site | None], None] | None = None


collection: Final = _Collection()


def refuse(rule: Rule, error: str, where: FrameType | Site | None = None) -> None:
    """Report an operation that is not permitted during the capture under way: one below a frame, or of a line.

    Raises:
        RuntimeError: nobody collects.
    """
    if collection.collector is None:
        if error != NOT_CAPTURED:
            raise RuntimeError(error)
        return
    collection.collector(rule, error, where or sys._getframe(1))
