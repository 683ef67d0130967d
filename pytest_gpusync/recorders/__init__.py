"""Recorders: one interface, chosen by name and imported only when chosen."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from pytest_gpusync.recorders.base import Recorder, RecorderUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NAMES", "Recorder", "RecorderUnavailable", "candidates", "create"]

NAMES: Final = ("cupti", "torch-hooks", "dispatcher", "simulated")


@cache
def create(name: str) -> Recorder:
    """Return the process's recorder of that name.

    Raises:
        ValueError: there is no recorder of that name.
    """
    if name == "cupti":
        from pytest_gpusync.recorders.cupti import CuptiRecorder

        return CuptiRecorder()
    if name == "torch-hooks":
        from pytest_gpusync.recorders.torch_hooks import TorchHooksRecorder

        return TorchHooksRecorder()
    if name == "dispatcher":
        from pytest_gpusync.recorders.dispatcher import DispatcherRecorder

        return DispatcherRecorder()
    if name == "simulated":
        from pytest_gpusync.recorders.simulated import SimulatedRecorder

        return SimulatedRecorder()
    raise ValueError(f"no recorder is named {name!r}; there are {', '.join(NAMES)}")


def candidates(device: str, wanted: str) -> Sequence[str]:
    """Return the names of the recorders to try, the one that sees most first.

    Args:
        device: "simulated", "cuda" for an NVIDIA GPU, or "other".
        wanted: the name of a recorder, or "auto".
    """
    if wanted != "auto":
        return (wanted,)
    if device == "simulated":
        return ("simulated",)
    return ("cupti", "torch-hooks") if device == "cuda" else ("dispatcher",)
