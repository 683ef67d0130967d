"""The calls of the CUDA runtime and driver that block the host, copy or launch, by name.

Names are those of CUPTI without version and stream suffixes. Which of a call's parameters are read is given as a number
of words from the first one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import Direction, Kind

SYNCHRONIZE: Final[dict[str, Kind]] = {
    "cudaStreamSynchronize": "stream",
    "cudaDeviceSynchronize": "device",
    "cuStreamSynchronize": "stream",
    "cuCtxSynchronize": "device",
}
LOCKED: Final[dict[str, Kind]] = {
    "cudaEventSynchronize": "event",
    "cuEventSynchronize": "event",
    "cudaFree": "free",
    "cuMemFree": "free",
    "cudaFreeHost": "free",
    "cuMemFreeHost": "free",
}
"""Calls that the allocator makes under its lock: never dispatched to Python."""

BLOCKING_COPIES: Final[dict[str, Direction | None]] = {
    "cudaMemcpy": None,
    "cuMemcpyDtoH": "D2H",
    "cuMemcpyHtoD": "H2D",
}
ASYNC_COPIES: Final[dict[str, Direction | None]] = {
    "cudaMemcpyAsync": None,
    "cuMemcpyDtoHAsync": "D2H",
    "cuMemcpyHtoDAsync": "H2D",
}

LAUNCHES: Final = frozenset(
    {
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuLaunchCooperativeKernel",
        "cuGraphLaunch",
        "cuMemsetD8Async",
        "cuMemsetD32Async",
    }
)
"""Calls of the driver that give the device work; the runtime's launches make them too. They are enabled only until a
region is known to use the device."""

MEMCPY_KINDS: Final[dict[int, Direction]] = {1: "H2D", 2: "D2H"}
"""Values of cudaMemcpyKind. Copies between device buffers (3) do not wait; for cudaMemcpyDefault (4) the driver
determines the direction."""

COPY_WORDS: Final = 3
RUNTIME_COPY_WORDS: Final = 4
"""Parameters of a copy that are read: destination, source, bytes; in the runtime API also its kind."""

WAIT_WORDS: Final[dict[Kind, int]] = {"stream": 1}
"""Parameters of a synchronize that are read: the stream."""


def base_name(name: str) -> str:
    """Return a function's name without its version and stream suffixes: ``cuMemcpyDtoHAsync_v2_ptsz``."""
    return name.split("_", 1)[0]
