"""The recorder of the simulated device: every sync is announced by the kernel or function that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pytest_gpusync.recorders.base import Recorder, RecorderUnavailable
from pytest_gpusync.simulated import is_on

if TYPE_CHECKING:
    from pytest_gpusync.events import Coverage
    from pytest_gpusync.recorders.base import Sink


class SimulatedRecorder(Recorder):
    """Sees the syncs of the simulated CUDA device."""

    name: ClassVar[str] = "simulated"
    coverage: ClassVar[Coverage] = "simulated"
    blind_spots: ClassVar[str] = (
        "waits inside NCCL, in processes that the program starts, and in libraries that call CUDA themselves"
    )

    def __init__(self) -> None:
        self._sink: Sink | None = None

    def start(self, sink: Sink) -> None:  # noqa: D102
        if not is_on():
            raise RecorderUnavailable(
                "the simulated CUDA device is off: open simulated_cuda() around the region or call switch_on()"
            )
        from pytest_gpusync.simulated import ledger

        self.stop()
        ledger.subscribe(sink)
        self._sink = sink

    def stop(self) -> None:  # noqa: D102
        if self._sink is not None:
            from pytest_gpusync.simulated import ledger

            ledger.unsubscribe(self._sink)
            self._sink = None

    def plant(self) -> None:  # noqa: D102
        import torch

        torch.cuda.synchronize()
