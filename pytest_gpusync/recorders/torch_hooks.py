"""Counts the syncs that torch itself knows of, for use where CUPTI is not available.

torch's sync debug mode warns before each of its own synchronizing operations; the warnings are intercepted before they
are shown. ``torch.cuda.synchronize()``, ``Event.synchronize()`` and ``torch.accelerator.synchronize()`` do not warn, so
they are wrapped. A warning raised on one of autograd's threads reaches Python when ``backward()`` returns, on its line.
Syncs that do not go through torch's own functions are not seen.
"""

from __future__ import annotations

import re
import sys
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pytest_gpusync.machine.replacements import Replacements
from pytest_gpusync.model.measurement import RawSync
from pytest_gpusync.recorders.allocation_watch import AllocationWatch
from pytest_gpusync.recorders.base import FORKED, Recorder, RecorderUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from pytest_gpusync.model.measurement import Coverage, Kind, SyncSink

_MESSAGE: Final = "called a synchronizing CUDA operation"
_PATTERN: Final = re.compile(_MESSAGE)
_OFF, _WARN, _RAISE = 0, 1, 2


class TorchHooksRecorder(Recorder):
    """See the module docstring."""

    name: ClassVar[str] = "torch-hooks"
    coverage: ClassVar[Coverage] = "torch"
    blind_spots: ClassVar[str] = (
        "syncs made outside torch's own functions, freed memory and pageable non_blocking copies"
    )

    def __init__(self) -> None:
        self._sink: SyncSink | None = None
        self._undo: list[Callable[[], None]] = []
        self._replaced = Replacements()
        self._allocations = AllocationWatch()
        self._on_replay: Callable[[int], bool] | None = None

    def start(self, sink: SyncSink) -> None:
        """See :meth:`Recorder.start`."""
        torch = sys.modules.get("torch")
        if torch is None:
            raise RecorderUnavailable("torch is not loaded yet; import torch before the region opens")
        if torch.cuda._is_in_bad_fork():
            raise RecorderUnavailable(FORKED)
        if not torch.cuda.is_available():
            raise RecorderUnavailable("torch.cuda.is_available() is false")
        previous = torch.cuda.get_sync_debug_mode()
        if previous == _RAISE:
            raise RecorderUnavailable('torch.cuda.set_sync_debug_mode("error") is on; set it to "default" to count')
        self._sink = sink
        self._intercept_warnings(show_as_well=previous == _WARN)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first call in a process warns that the mode is a prototype
            torch.cuda.set_sync_debug_mode(_WARN)
        self._undo.append(lambda: torch.cuda.set_sync_debug_mode(previous))
        self._wrap(torch._C, "_cuda_synchronize", "device")
        self._wrap(torch._C, "_accelerator_synchronizeDevice", "device")
        self._wrap(torch.cuda.streams.Event, "synchronize", "event")
        self._follow_replays(torch.cuda.CUDAGraph)

    def watch_device_work(self, watcher: Callable[[int], bool]) -> None:
        """See :meth:`Recorder.watch_device_work`. Work that allocates no tensor and replays no graph is not seen."""
        self._allocations.start(watcher)
        self._on_replay = watcher

    def look_for_device_work(self) -> None:
        """See :meth:`Recorder.look_for_device_work`."""
        self._allocations.look(threading.get_ident())

    def stop(self) -> None:
        """See :meth:`Recorder.stop`."""
        self._allocations.stop()
        self._replaced.restore()
        while self._undo:
            self._undo.pop()()
        self._sink = None

    def forget_in_forked_child(self) -> None:
        """See :meth:`Recorder.forget_in_forked_child`."""
        self._replaced.restore()
        while self._undo:
            # torch refuses to set the mode where CUDA cannot be used; the mode has no effect there anyway.
            with suppress(RuntimeError, AssertionError):
                self._undo.pop()()
        self._sink = None

    def _intercept_warnings(self, *, show_as_well: bool) -> None:
        # Python's default filters show a warning once per line; every sync counts.
        entry = ("always", _PATTERN, UserWarning, None, 0)
        filters: list[Any] = warnings.filters  # type: ignore[assignment]
        filters.insert(0, entry)
        warnings._filters_mutated()  # type: ignore[attr-defined]
        shown = warnings.showwarning

        def showwarning(
            message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None
        ) -> None:
            if not _PATTERN.search(str(message)):
                shown(message, category, filename, lineno, file, line)
                return
            self._emit("stream", _caller(sys._getframe(1)))
            if show_as_well:
                shown(message, category, filename, lineno, file, line)

        warnings.showwarning = showwarning

        def undo() -> None:
            if warnings.showwarning is showwarning:
                warnings.showwarning = shown
            if entry in filters:
                filters.remove(entry)
                warnings._filters_mutated()  # type: ignore[attr-defined]

        self._undo.append(undo)

    def _follow_replays(self, graph: Any) -> None:
        """Report the replay of a CUDA graph, which allocates nothing, as work of the device."""
        original = graph.replay

        def replay(graph: Any) -> Any:
            if self._on_replay is not None:
                self._on_replay(threading.get_ident())
            return original(graph)

        self._replaced.put(graph, "replay", replay)

    def _wrap(self, owner: Any, name: str, kind: Kind) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        def synchronize(*arguments: Any, **options: Any) -> Any:
            self._emit(kind, sys._getframe(1), _waited_for(arguments))
            return original(*arguments, **options)

        self._replaced.put(owner, name, synchronize)

    def _emit(self, kind: Kind, frame: FrameType | None, device: int | None = None) -> None:
        sink = self._sink
        if sink is not None:
            sink(RawSync(kind, frame, threading.get_ident(), device=device))


def _waited_for(arguments: tuple[Any, ...]) -> int | None:
    """Return the ordinal of the device that a wrapped call waits for: that of an event, a given one, or the current
    one. torch's warnings do not say it.
    """
    if not arguments:
        index: int = sys.modules["torch"]._C._cuda_getDevice()
        return index
    device = getattr(arguments[0], "device", arguments[0])
    return device if isinstance(device, int) else getattr(device, "index", None)


def _caller(frame: FrameType | None) -> FrameType | None:
    """Return the first frame outside the warnings module: the line that called the operator."""
    while frame is not None and frame.f_code.co_filename == warnings.__file__:
        frame = frame.f_back
    return frame
