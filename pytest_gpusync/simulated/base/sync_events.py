"""Where every sync of the simulated device is announced.

Kernels and the replaced parts of ``torch.cuda`` call :func:`announce`; recorders subscribe. The frame passed to them is
the innermost Python frame, which may be in this package or in torch.
"""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING

from pytest_gpusync.model.measurement import RawSync
from pytest_gpusync.simulated.base import capture_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpusync.model.measurement import Direction, Kind, SyncSink
    from pytest_gpusync.simulated.base.capture_streams import CaptureStreams

_sinks: tuple[SyncSink, ...] = ()


class _Conditions:
    """Conditions that change the meaning of a sync."""

    capturing = False
    """A CUDA graph is being captured: a sync is an error."""
    captured_streams: CaptureStreams | None = None
    """The streams of that graph."""
    pool = (0, 0)
    """The memory pool of new tensors: that of the graph being captured, otherwise the shared one."""
    debug_mode = 0
    """The mode set by ``torch.cuda.set_sync_debug_mode``: 0 silent, 1 warn, 2 raise."""


conditions = _Conditions()


class _Hooks:
    """What other parts of the device want to know."""

    waited: Callable[[Kind, int | None, int | None], None] = staticmethod(lambda kind, device, stream: None)
    """Called with the kind, the device and the stream of each call in which the host has waited."""


hooks = _Hooks()


def subscribe(sink: SyncSink) -> None:
    """Call `sink` with each sync from now on, on the thread that makes it."""
    global _sinks
    _sinks = (*_sinks, sink)


def unsubscribe(sink: SyncSink) -> None:
    """Stop calling `sink`. Does nothing if it is not subscribed."""
    global _sinks
    remaining = list(_sinks)
    if sink in remaining:
        remaining.remove(sink)
    _sinks = tuple(remaining)


def announce(
    kind: Kind,
    count: int = 1,
    *,
    direction: Direction | None = None,
    nbytes: int | None = None,
    device: int | None = None,
    stream: int | None = None,
) -> None:
    """Announce `count` syncs of one kind; `stream` is the id of the stream waited for, None for the current one.

    Raises:
        RuntimeError: a CUDA graph is being captured and nobody collects what it does not permit, or the sync debug
            mode makes syncs errors.
    """
    if count <= 0:
        return
    if conditions.capturing:
        error = capture_rules.UNPINNED if kind == "pageable" else capture_rules.NOT_PERMITTED
        capture_rules.refuse("wait", error, sys._getframe(1))
        return
    debug_mode = conditions.debug_mode if kind == "stream" else 0
    if debug_mode == 2:
        # torch raises before it waits, so there is no sync.
        raise RuntimeError("called a synchronizing CUDA operation")
    hooks.waited(kind, device, stream)
    if _sinks:
        raw = RawSync(kind, sys._getframe(1), threading.get_ident(), direction, nbytes, None, device)
        for sink in _sinks:
            for _ in range(count):
                sink(raw)
    if debug_mode:
        for _ in range(count):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=3)
