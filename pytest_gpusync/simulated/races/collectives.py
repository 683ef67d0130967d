"""Collectives under way, each on the stream of its process group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_gpusync.simulated.races import reports, tracking
from pytest_gpusync.simulated.races.accesses import COLLECTIVE
from pytest_gpusync.simulated.races.clocks import timeline
from pytest_gpusync.simulated.races.current_stream import current
from pytest_gpusync.simulated.races.device_memory import histories, touch
from pytest_gpusync.simulated.races.extents import base_of
from pytest_gpusync.simulated.races.lines import Line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from torch import Tensor

    from pytest_gpusync.simulated.races.clocks import Snapshot


class Collective:
    """A collective under way on the stream of its process group."""

    def __init__(self, device: int, reached: Snapshot) -> None:
        self._device = device
        self._reached = reached
        self._waited = False

    def wait(self) -> None:
        """Let the current stream wait for it; the host goes on."""
        current(self._device).wait(self._reached)
        if not self._waited:
            self._waited = True
            tracking.collective_awaited()


def start(group: str, reads: Sequence[Tensor], writes: Sequence[Tensor], frame: FrameType) -> Collective | None:
    """A collective is started; its own stream waits for the current one. None if no tensor of the device takes part.

    Its tensors stay alive until somebody waits for it.
    """
    tensors = [tensor for tensor in (*writes, *reads) if tensor.is_cuda]
    if not tensors or not reports.is_listening():
        return None
    device = tensors[0].get_device()
    tracking.collective_started()
    stream = timeline(device, f"stream of {group}")
    stream.wait(current(device).snapshot())
    line = Line.of(frame)
    for used, is_write in ((reads, False), (writes, True)):
        for tensor in used:
            if tensor.is_cuda and tensor.numel():
                touch(tensor, is_write, stream, line, COLLECTIVE)
                histories[base_of(tensor)].recorded.add(stream)
    return Collective(device, stream.snapshot())
