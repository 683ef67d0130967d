"""Where every sync of the simulated device is announced.

Kernels and the replaced parts of ``torch.cuda`` call :func:`sync`; recorders subscribe. The frame handed on is the
innermost Python frame, which may lie in this package or in torch.
"""

from __future__ import annotations

import sys
import threading
import warnings
from typing import TYPE_CHECKING

from pytest_gpusync.model.measurement import RawSync

if TYPE_CHECKING:
    from pytest_gpusync.model.measurement import Direction, Kind, SyncSink

_sinks: tuple[SyncSink, ...] = ()


class _Conditions:
    """What changes the meaning of a sync."""

    capturing = False
    """A CUDA graph is being captured: a sync is an error."""
    pool = (0, 0)
    """The memory pool that new tensors come from: that of the graph being captured, otherwise the shared one."""
    debug_mode = 0
    """As set by ``torch.cuda.set_sync_debug_mode``: 0 silent, 1 warn, 2 raise."""


conditions = _Conditions()


def subscribe(sink: SyncSink) -> None:
    """Call `sink` with each sync from now on, on the thread that makes it."""
    global _sinks
    _sinks = (*_sinks, sink)


def unsubscribe(sink: SyncSink) -> None:
    """Stop calling `sink`; harmless when it is not subscribed."""
    global _sinks
    remaining = list(_sinks)
    if sink in remaining:
        remaining.remove(sink)
    _sinks = tuple(remaining)


def sync(
    kind: Kind,
    count: int = 1,
    *,
    direction: Direction | None = None,
    nbytes: int | None = None,
    device: int | None = None,
) -> None:
    """Announce `count` syncs of one kind.

    Raises:
        RuntimeError: a CUDA graph is being captured, or the sync debug mode says that syncs are errors.
    """
    if count <= 0:
        return
    if conditions.capturing:
        raise RuntimeError(
            "CUDA error: operation not permitted when stream is capturing (the operation makes the host wait)"
        )
    debug_mode = conditions.debug_mode if kind == "stream" else 0
    if debug_mode == 2:
        # torch refuses before it waits: there is no sync.
        raise RuntimeError("called a synchronizing CUDA operation")
    if _sinks:
        raw = RawSync(kind, sys._getframe(1), threading.get_ident(), direction, nbytes, None, device)
        for sink in _sinks:
            for _ in range(count):
                sink(raw)
    if debug_mode:
        for _ in range(count):
            warnings.warn("called a synchronizing CUDA operation", stacklevel=3)
