"""The recorder of the simulated device, whose kernels and functions announce every sync they make."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, ClassVar

from pytest_gpusync.recorders.base import Recorder, RecorderUnavailable
from pytest_gpusync.recorders.forward_lines import ForwardLines, operator_counter
from pytest_gpusync.simulated import is_on
from pytest_gpusync.source import attribution

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.model.measurement import Coverage, Race, RawSync, SyncSink


class SimulatedRecorder(Recorder):
    """Sees the syncs of the simulated CUDA device."""

    name: ClassVar[str] = "simulated"
    coverage: ClassVar[Coverage] = "simulated"
    blind_spots: ClassVar[str] = (
        "waits inside NCCL, in libraries that call CUDA themselves, and in processes that do not report"
    )

    finds_races: ClassVar[bool] = True

    def __init__(self) -> None:
        self._sink: SyncSink | None = None
        self._race_sink: Callable[[Race], None] | None = None
        self._forward = ForwardLines()

    def start(self, sink: SyncSink) -> None:  # noqa: D102
        if not is_on():
            raise RecorderUnavailable(
                "the simulated CUDA device is off: open simulated_cuda() around the region or call switch_on()"
            )
        from pytest_gpusync.simulated.base import sync_events

        self.stop()
        self._sink = self._naming_lines_of_forward(sink)
        sync_events.subscribe(self._sink)
        attribution.forward_line_of = self._forward.line_of

    def watch_device_work(self, watcher: Callable[[int], bool]) -> None:  # noqa: D102
        from pytest_gpusync.simulated.base import state

        state.watch_use(watcher)

    def stop(self) -> None:  # noqa: D102
        if self._sink is not None:
            from pytest_gpusync.simulated.base import state, sync_events

            self.look_for_races(None)
            sync_events.unsubscribe(self._sink)
            state.watch_use(None)
            self._sink = None
            attribution.forward_line_of = None

    def look_for_races(self, sink: Callable[[Race], None] | None) -> None:  # noqa: D102
        from pytest_gpusync.simulated.races import tracking

        if self._race_sink is not None:
            tracking.stop_listening(self._race_sink)
        self._race_sink = sink
        if sink is not None:
            tracking.listen(sink)

    def _naming_lines_of_forward(self, sink: SyncSink) -> SyncSink:
        """Return a sink that, before it calls `sink`, keeps how many operators had been created at the time of
        a sync.
        """
        function, forward = operator_counter(), self._forward
        if not function:
            return sink
        operators_made = ctypes.PYFUNCTYPE(ctypes.c_uint64)(function)
        main = threading.main_thread().ident

        def note(raw: RawSync) -> None:
            if raw.thread == main:
                charged = attribution.charge(raw.frame, raw.thread)
                forward.note(operators_made(), charged)
                raw = raw._replace(attribution=charged)
            sink(raw)

        return note

    def plant(self) -> None:  # noqa: D102
        import torch

        torch.cuda.synchronize()
